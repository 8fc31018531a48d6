"""Which containers the scripts need: the folders of the authors' README, the script, and its log beside the config."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nystromformer.config import ExperimentConfig
from nystromformer.container.flags import ScriptFlags
from nystromformer.container.per_gpu import torchrun
from nystromformer.container.spec import ALL_GPUS, Gpus, Mount, RunSpec
from nystromformer.errors import UserError
from nystromformer.tasks.experiment.folder import CONTAINER_MODEL, Experiment, open_experiment

CODE_FOLDER = Path(__file__).resolve().parents[2]
PROJECT = CODE_FOLDER.parent
IMAGE = "nystromformer"

LABEL = "nystromformer."
COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL = LABEL + "command", LABEL + "experiment", LABEL + "gpus"


@dataclass(frozen=True)
class Data:
    """Where a script's data are.

    Args:
        key: of config.json, naming a folder in the container.
        flag: of the script, which the launcher takes for a folder of this machine.
        folder: in the project where neither names one; {length} is the model's `max_seq_len`.
    """

    key: str
    flag: str
    folder: str
    has_hub: bool = False
    """Whether the flag takes "hub", too, for data from the network."""


@dataclass(frozen=True)
class Script:
    """A script that runs on an experiment folder."""

    command: str
    file: str
    data: Data
    shares_gpus: bool = True
    """Whether several processes share its work (torchrun)."""


_PRETRAINING = Data("data_folder", "--dataset", "data-preprocessing/{length}-roberta")
SCRIPTS = {
    script.command: script
    for script in (
        Script("pretrain", "run_pretrain.py", _PRETRAINING),
        Script("validate", "run_validation.py", _PRETRAINING, shares_gpus=False),
        Script("glue", "run_glue.py", Data("glue_dataset_folder", "--glue", "glue", has_hub=True)),
        Script("imdb", "run_imdb.py", Data("imdb_dataset_folder", "--imdb", "imdb")),
        Script("wikihop", "run_wikihop.py", Data("wikihop_dataset_folder", "--wikihop", "wikihop")),
    )
}


@dataclass(frozen=True)
class Options:
    """What the launcher's own flags say of a container.

    Args:
        mounts: more of them, as HOST:CONTAINER or HOST:CONTAINER:ro.
        environment: variables, as NAME=VALUE.
        code: a code folder, if not this project's, or "image" for the code that the image was built with.
        remote_root: where this project lies on the engine's machine, if elsewhere than here.
        user: "uid:gid" of the files that are written.
    """

    image: str = IMAGE
    gpus: Gpus = ALL_GPUS
    name: str | None = None
    network: str = "host"
    shm_size: str | None = None
    mounts: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    restart: str = "no"
    code: str | None = None
    remote_root: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class Place:
    """The engine's machine: which folders it sees, and what they are called there.

    Args:
        is_here: whether it sees this machine's folders, so that they can be checked.
        remote_root: see `Options`.
    """

    is_here: bool
    remote_root: str | None = None

    def path(self, local: Path) -> str:
        """What a path of this machine is there."""
        absolute = Path(os.path.abspath(local))
        if self.remote_root is not None and absolute.is_relative_to(PROJECT):
            return str(PurePosixPath(self.remote_root) / absolute.relative_to(PROJECT).as_posix())
        return str(absolute)


@dataclass
class _Mounts:
    place: Place
    made: list[Mount] = field(default_factory=list)

    def add(self, source: Path, target: str, read_only: bool = False) -> None:
        # Resolved as this machine does: engines take `..` from what is written, links or not.
        self.made.append(Mount(self.place.path(source.resolve() if self.place.is_here else source), target, read_only))


def find_experiment(name: str) -> Path:
    """The folder of an experiment: a path, or the name of a folder of the project.

    Raises:
        UserError: there is no such folder.
    """
    for folder in (Path(name), PROJECT / name):
        if folder.is_dir():
            return folder.resolve()
    shipped = ", ".join(sorted(path.parent.name for path in PROJECT.glob("*/config.json")))
    raise UserError(
        f"{name}: no such folder, here or in {PROJECT}. An experiment is a folder with a config.json"
        + (f", such as {shipped}" if shipped else "")
    )


def experiment_spec(script: Script, folder: Path, flags: ScriptFlags, options: Options, is_here: bool) -> RunSpec:
    """The container that runs a script on an experiment folder.

    Raises:
        UserError: the config, a folder, or a flag is wrong.
    """
    if flags.has("--model"):
        raise UserError(f"--model: the launcher takes the experiment folder itself: launch.py {script.command} FOLDER")
    experiment = open_experiment(folder, flags.values("--set"))
    place = Place(is_here, options.remote_root)
    mounts = _Mounts(place)
    mounts.add(folder, str(CONTAINER_MODEL))
    if is_here and not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot be written by this user; checkpoints and the log go there")
    _check_checkpoints(experiment)
    _add_linked(mounts, experiment, experiment.checkpoints)
    _add_code(mounts, options)
    flags = _add_data(mounts, script, experiment, flags)
    flags = _add_tokenizer(mounts, flags)
    if script.command == "pretrain":
        _add_from_cp(mounts, experiment)
    if options.gpus != Gpus() and not flags.has("--device"):
        # A GPU that the engine does not hand over is an error then, not a run on the CPU.
        flags = flags.with_flag("--device", "cuda")
    output = f"{options.name or script.command}.txt"
    return RunSpec(
        name=options.name or f"{_engine_name(folder.name)}-{script.command}",
        image=options.image,
        argv=(*_program(script, options.gpus), f"/code/{script.file}", *flags.argv),
        output=str(PurePosixPath(CONTAINER_MODEL) / output),
        mounts=(*mounts.made, *_more_mounts(options.mounts)),
        gpus=options.gpus,
        user=options.user,
        shm_size=options.shm_size,
        network=options.network,
        environment=_environment(options.environment),
        restart=options.restart,
        labels={
            COMMAND_LABEL: script.command,
            EXPERIMENT_LABEL: place.path(folder),
            GPUS_LABEL: str(options.gpus),
        },
    )


def preprocess_spec(name: str, flags: ScriptFlags, options: Options, is_here: bool) -> RunSpec:
    """The container that runs a script of data-preprocessing/.

    Args:
        name: a corpus (wiki), a length (512), or the script's path.

    Raises:
        UserError: there is no such script.
    """
    home = PROJECT / "data-preprocessing"
    script = _find_preprocessing(home, name)
    short = script.parent.name if script.parent != home else script.stem.removeprefix("preprocess_data_")
    place = Place(is_here, options.remote_root)
    mounts = _Mounts(place)
    mounts.add(home, "/data-preprocessing")
    _add_code(mounts, options)
    label = options.name or f"preprocess-{_engine_name(short)}"
    return RunSpec(
        name=label,
        image=options.image,
        argv=("python3", f"/data-preprocessing/{script.relative_to(home).as_posix()}", *flags.argv),
        output=f"/data-preprocessing/{label}.txt",
        mounts=(*mounts.made, *_more_mounts(options.mounts)),
        user=options.user,
        shm_size=options.shm_size,
        network=options.network,
        environment=_environment(options.environment),
        restart=options.restart,
        labels={COMMAND_LABEL: f"preprocess {short}", EXPERIMENT_LABEL: place.path(home), GPUS_LABEL: "none"},
        working_dir="/data-preprocessing",
    )


def _program(script: Script, gpus: Gpus) -> tuple[str, ...]:
    if script.shares_gpus and gpus.every:
        return ("python3", "-m", "nystromformer.container.per_gpu")
    return torchrun(len(gpus.ids)) if script.shares_gpus and len(gpus.ids) > 1 else ("python3",)


def _engine_name(folder: str) -> str:
    """A folder's name with what engines refuse replaced."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in folder)
    return name if name[:1].isalnum() else f"x{name}"


def _check_checkpoints(experiment: Experiment) -> None:
    key = experiment.config.model_checkpoints
    target = PurePosixPath(posixpath.normpath(str(PurePosixPath(CONTAINER_MODEL) / key)))
    if not target.is_relative_to(CONTAINER_MODEL):
        raise UserError(
            f"{experiment.folder / 'config.json'}: model_checkpoints: {key} is not below /model, which is all that "
            "outlives a container. Expected a folder below it, such as /model/model"
        )


def _add_linked(mounts: _Mounts, experiment: Experiment, path: Path, read_only: bool = False) -> None:
    """What a link in the experiment folder puts on another disk is where the link says in the container, too."""
    if path.is_symlink() and not path.resolve().is_relative_to(experiment.folder):
        inside = CONTAINER_MODEL / path.relative_to(experiment.folder).parent / path.readlink()
        mounts.add(path.resolve(), posixpath.normpath(str(inside)), read_only)


def _add_code(mounts: _Mounts, options: Options) -> None:
    if options.code == "image":
        return
    code = Path(options.code or CODE_FOLDER)
    if mounts.place.is_here and not (code / "nystromformer").is_dir():
        raise UserError(f"--code {code}: no code folder of this project, which has nystromformer and run_*.py in it")
    mounts.add(code, "/code", read_only=True)


def _add_data(mounts: _Mounts, script: Script, experiment: Experiment, flags: ScriptFlags) -> ScriptFlags:
    """Mount a script's data where its config looks for them; returns the flags that remain."""
    data = script.data
    given = flags.values(data.flag)
    if data.has_hub and given[-1:] == ["hub"]:
        return flags
    flags = flags.without(data.flag)
    target = _in_container(getattr(experiment.config, data.key))
    if given:
        source = Path(given[-1])
    elif PurePosixPath(target).is_relative_to(CONTAINER_MODEL):
        # Mounted with the experiment.
        inside = experiment.path(getattr(experiment.config, data.key))
        if mounts.place.is_here:
            _check_data(data, inside, experiment)
        _add_linked(mounts, experiment, inside, read_only=True)
        return flags
    elif target == ExperimentConfig.model_fields[data.key].default:
        source = PROJECT / data.folder.format(length=experiment.config.model.max_seq_len)
    else:
        source = experiment.path(getattr(experiment.config, data.key))
    if mounts.place.is_here:
        _check_data(data, source, experiment)
        if source.is_file():
            target = f"{target}/{source.name}"
            flags = flags.with_flag(data.flag, target)
    mounts.add(source, target, read_only=True)
    return flags


def _check_data(data: Data, source: Path, experiment: Experiment) -> None:
    if not source.exists():
        advice = (
            f"Make it (`python code/launch.py preprocess {experiment.config.model.max_seq_len}`, after the corpora)"
            if data is _PRETRAINING
            else f"{data.folder}/README.md says which files go there"
        )
        raise UserError(f"{source}: no such folder. {advice}, or name another with {data.flag}")
    if data is _PRETRAINING:
        experiment.dataset(source)
    elif source.is_dir() and all(entry.name == "README.md" for entry in source.iterdir()):
        raise UserError(
            f"{source}: there are no data in it. {data.folder}/README.md says which files go there; another folder is "
            f"named with {data.flag}"
        )


def _add_tokenizer(mounts: _Mounts, flags: ScriptFlags) -> ScriptFlags:
    given = flags.values("--tokenizer")
    if not given:
        return flags
    source = Path(given[-1])
    if mounts.place.is_here and not source.is_dir():
        raise UserError(f"--tokenizer {source}: no such folder")
    mounts.add(source, "/tokenizer", read_only=True)
    return flags.without("--tokenizer").with_flag("--tokenizer", "/tokenizer")


def _add_from_cp(mounts: _Mounts, experiment: Experiment) -> None:
    """A checkpoint outside the experiment folder gets the path in the container that config.json's leads to."""
    name = experiment.config.from_cp
    if name is None:
        return
    target, source = _in_container(name), experiment.path(name)
    if PurePosixPath(target).is_relative_to(CONTAINER_MODEL):
        _add_linked(mounts, experiment, source, read_only=True)
    # Where it is missing the run says so, if it is needed at all: a run that goes on reads its own checkpoints.
    elif source.is_file():
        mounts.add(source.resolve(), target, read_only=True)


def _in_container(name: str) -> str:
    """What a path of config.json is in a container: relative ones are in the experiment folder."""
    return posixpath.normpath(str(PurePosixPath(CONTAINER_MODEL) / name))


def _more_mounts(texts: tuple[str, ...]) -> list[Mount]:
    mounts = []
    for text in texts:
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
            raise UserError(f"--mount {text}: expected FOLDER:/IN/CONTAINER or FOLDER:/IN/CONTAINER:ro")
        mounts.append(Mount(str(Path(source).absolute()), target, mode == "ro"))
    return mounts


def _environment(texts: tuple[str, ...]) -> dict[str, str]:
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"--env {text}: expected NAME=VALUE")
        variables[name] = value
    return variables


def _find_preprocessing(home: Path, name: str) -> Path:
    inside = Path(name)
    if inside.is_absolute() and inside.is_relative_to(home):
        inside = inside.relative_to(home)
    elif inside.parts[:1] == (home.name,):
        inside = inside.relative_to(home.name)
    found = sorted([*home.glob("*/preprocess.py"), *home.glob("preprocess_data_*.py")])
    for script in (home / inside, home / name / "preprocess.py", home / f"preprocess_data_{name}.py"):
        if script in found:
            return script
    names = [p.parent.name if p.parent != home else p.stem.removeprefix("preprocess_data_") for p in found]
    raise UserError(f"preprocess {name}: expected one of {', '.join(names)} (scripts of {home})")
