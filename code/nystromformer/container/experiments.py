"""Which container a script needs for an experiment folder: the folders of the authors' README, the script, and its log
beside the config."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path, PurePosixPath

from nystromformer.config import ExperimentConfig
from nystromformer.container import per_gpu
from nystromformer.container.compose import Mounts, Place, compose, engine_name
from nystromformer.container.flags import ScriptFlags
from nystromformer.container.options import LaunchOptions
from nystromformer.container.preprocessing import how_to_make
from nystromformer.container.scripts import PRETRAINING, Script
from nystromformer.container.spec import Gpus, RunSpec
from nystromformer.errors import UserError
from nystromformer.paths import PROJECT, experiment_folder, shipped_experiments
from nystromformer.tasks.declaration import Data
from nystromformer.tasks.experiment.folder import CONTAINER_MODEL, Experiment, open_experiment

_FILES = "/tables"
"""Below it, in a container, are files that flags name one by one."""
_FILE = re.compile(r"(?!hub:).*\.[A-Za-z]+")
"""What such a flag may name that is a file; else it is a share, or data of the hub."""


def find_experiment(name: str) -> Path:
    """The folder of an experiment: a path, or the name of a folder of the project.

    Raises:
        UserError: there is no such folder.
    """
    folder = experiment_folder(name)
    if folder.is_dir():
        return folder.resolve()
    shipped = ", ".join(shipped_experiments())
    raise UserError(
        f"{name}: no such folder, here or in {PROJECT}. An experiment is a folder with a config.json"
        + (f", such as {shipped}" if shipped else "")
    )


def experiment_spec(script: Script, folder: Path, flags: ScriptFlags, options: LaunchOptions, place: Place) -> RunSpec:
    """The container that runs a script on an experiment folder.

    Raises:
        UserError: the config, a folder, or a flag is wrong.
    """
    if flags.values("--model"):
        raise UserError(f"--model: the launcher takes the experiment folder itself: launch.py {script.command} FOLDER")
    experiment = open_experiment(folder, flags.values("--set"))
    on_cpu = flags.last("--device") == "cpu"
    gpus = Gpus() if on_cpu and options.devices.every else options.devices
    mounts = Mounts(place)
    mounts.add(folder, str(CONTAINER_MODEL))
    if place.is_here and not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot be written by this user; checkpoints and the log go there")
    _check_checkpoints(experiment)
    _add_linked(mounts, experiment, experiment.checkpoints)
    mounts.add_code(options.code)
    flags = _add_data(mounts, script, experiment, flags)
    flags = _add_tokenizer(mounts, flags)
    if script.command == "pretrain":
        _add_from_cp(mounts, experiment)
    if gpus != Gpus() and not flags.values("--device"):
        # A GPU that the engine does not hand over is an error then, not a run on the CPU.
        flags = flags.with_flag("--device", "cuda")
    return compose(
        options,
        mounts,
        (*_program(script, gpus, on_cpu), f"/code/{script.file}", *flags.words),
        name=options.name or f"{engine_name(folder.name)}-{script.command}",
        output=PurePosixPath(CONTAINER_MODEL) / f"{options.name or script.command}.txt",
        command=script.command,
        home=folder,
        gpus=gpus,
    )


def _program(script: Script, gpus: Gpus, on_cpu: bool) -> tuple[str, ...]:
    if script.shares_gpus and gpus.every:
        return per_gpu.PROGRAM
    if script.shares_gpus and len(gpus.ids) > 1:
        return per_gpu.torchrun(len(gpus.ids)) if on_cpu else per_gpu.expecting(len(gpus.ids))
    return ("python3",)


def _check_checkpoints(experiment: Experiment) -> None:
    key = experiment.config.model_checkpoints
    target = PurePosixPath(posixpath.normpath(str(PurePosixPath(CONTAINER_MODEL) / key)))
    if not target.is_relative_to(CONTAINER_MODEL):
        raise UserError(
            f"{experiment.folder / 'config.json'}: model_checkpoints: {key} is not below /model, which is all that "
            "outlives a container. Expected a folder below it, such as /model/model"
        )


def _add_linked(mounts: Mounts, experiment: Experiment, path: Path, read_only: bool = False) -> None:
    """What a link in the experiment folder puts on another disk is where the link says in the container, too; and so is
    what an absolute link puts into the folder itself, which goes by another name there."""
    if not path.is_symlink():
        return
    if path.readlink().is_absolute() or not path.resolve().is_relative_to(experiment.folder):
        inside = CONTAINER_MODEL / path.relative_to(experiment.folder).parent / path.readlink()
        mounts.add(path.resolve(), posixpath.normpath(str(inside)), read_only)


def _add_data(mounts: Mounts, script: Script, experiment: Experiment, flags: ScriptFlags) -> ScriptFlags:
    """Mount a script's data where its config looks for them; returns the flags that remain."""
    data = script.data
    given = flags.last(data.flag)
    if data.has_hub and given == "hub":
        return flags
    if data.files and not given:
        return _add_files(mounts, data, experiment, flags)
    flags = flags.without(data.flag)
    target = _in_container(getattr(experiment.config, data.key))
    if given:
        source = Path(given)
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


def _add_files(mounts: Mounts, data: Data, experiment: Experiment, flags: ScriptFlags) -> ScriptFlags:
    """Mount the files that flags name one by one, each in a folder of its flag's name; what names no file stays."""
    for flag in data.files:
        name = flags.last(flag) or ""
        if not _FILE.fullmatch(name):
            continue
        # Where the script would look for a relative name, and where the data of all experiments are.
        folders = (Path(), experiment.path(getattr(experiment.config, data.key)), PROJECT / data.folder)
        there = [folder / name for folder in folders if (folder / name).is_file()]
        if mounts.place.is_here and not there:
            raise UserError(f"{flag} {name}: no such file, here or in {PROJECT / data.folder}")
        source = there[0] if mounts.place.is_here else Path(name)
        target = f"{_FILES}/{flag.strip('-')}/{source.name}"
        mounts.add(source, target, read_only=True)
        flags = flags.without(flag).with_flag(flag, target)
    return flags


def _check_data(data: Data, source: Path, experiment: Experiment) -> None:
    if not source.exists():
        advice = (
            f"Make it (`{how_to_make(experiment.config.model.max_seq_len)}`, after the corpora)"
            if data is PRETRAINING
            else f"{data.folder}/README.md says which files go there"
        )
        raise UserError(f"{source}: no such folder. {advice}, or name another with {data.flag}")
    if data is PRETRAINING:
        experiment.dataset(source)
    elif source.is_dir() and all(entry.name == "README.md" for entry in source.iterdir()):
        raise UserError(
            f"{source}: there are no data in it. {data.folder}/README.md says which files go there; another folder is "
            f"named with {data.flag}"
        )


def _add_tokenizer(mounts: Mounts, flags: ScriptFlags) -> ScriptFlags:
    given = flags.last("--tokenizer")
    if given is None:
        return flags
    source = Path(given)
    if mounts.place.is_here and not source.is_dir():
        raise UserError(f"--tokenizer {source}: no such folder")
    mounts.add(source, "/tokenizer", read_only=True)
    return flags.without("--tokenizer").with_flag("--tokenizer", "/tokenizer")


def _add_from_cp(mounts: Mounts, experiment: Experiment) -> None:
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
