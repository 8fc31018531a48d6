"""Which container a script needs for an experiment folder: the folders of the authors' README, the script, and its log
beside the config."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path, PurePosixPath

from nystromformer.config import ExperimentConfig
from nystromformer.container import per_gpu
from nystromformer.container.command_line import ScriptFlags
from nystromformer.container.mounts import Mounts, Place
from nystromformer.container.options import LaunchOptions
from nystromformer.container.preprocessing import how_to_make
from nystromformer.container.scripts import PRETRAINING, Script
from nystromformer.container.spec import RunSpec, container_name, gpu_ids
from nystromformer.errors import UserError
from nystromformer.files.paths import PROJECT, experiment_folder, shipped_experiments
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
    experiment = open_experiment(folder, flags.values("--set"))
    on_cpu = flags.last("--device") == "cpu"
    gpus = "none" if on_cpu and options.gpus == "all" else options.gpus
    mounts = Mounts(place)
    mounts.add(folder, str(CONTAINER_MODEL), read_only=False)
    if place.is_here and not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot be written by this user; checkpoints and the log go there")
    checkpoints = experiment.config.model_checkpoints
    if not _in_container(checkpoints).is_relative_to(CONTAINER_MODEL):
        raise UserError(
            f"{folder / 'config.json'}: model_checkpoints: {checkpoints} is not below /model, the only folder that is "
            "kept after a container is removed. Expected a folder below it, such as /model/model"
        )
    mounts.follow(experiment.checkpoints, read_only=False)
    mounts.add_code(options.code)
    flags = _add_data(mounts, script, experiment, flags)
    flags = _add_tokenizer(mounts, flags)
    if script.command == "pretrain":
        _add_what_a_run_begins_with(mounts, experiment)
    if (begun := flags.last("--from_run")) is not None:
        if place.is_here and not Path(begun).is_dir():
            raise UserError(f"--from_run {begun}: no such folder")
        target = f"{_FILES}/from_run/{Path(begun).name}"
        mounts.add(Path(begun), target)
        flags = flags.with_value("--from_run", target)
    if gpus != "none" and not flags.values("--device"):
        # A GPU that the engine does not hand over is an error then, not a run on the CPU.
        flags = flags.with_value("--device", "cuda")
    return RunSpec(
        name=options.name or f"{container_name(folder.name)}-{script.command}",
        options=options,
        argv=(*_program(script, gpus, on_cpu), f"/code/{script.file}", *flags.words),
        output=str(CONTAINER_MODEL / f"{options.name or script.command}.txt"),
        mounts=(*mounts.entries, *options.more_mounts),
        command=script.command,
        home=place.path(folder),
        gpus=gpus,
        user=place.user,
    )


def _program(script: Script, gpus: str, on_cpu: bool) -> tuple[str, ...]:
    if script.shares_gpus and gpus == "all":
        return per_gpu.PROGRAM
    count = len(gpu_ids(gpus))
    if script.shares_gpus and count > 1:
        return per_gpu.torchrun(count) if on_cpu else per_gpu.expecting(count)
    return ("python3",)


def _in_container(name: str) -> PurePosixPath:
    """What a path of config.json is in a container: relative ones are in the experiment folder."""
    return PurePosixPath(posixpath.normpath(CONTAINER_MODEL / name))


def _add_named(mounts: Mounts, experiment: Experiment, name: str) -> None:
    """Mount what a path of config.json names where that path leads in the container."""
    target = _in_container(name)
    if target.is_relative_to(CONTAINER_MODEL):
        mounts.follow(experiment.path(name))
    else:
        mounts.add(experiment.path(name), str(target))
        if experiment.path(name).is_dir():
            mounts.follow_below(experiment.path(name))


def _add_what_a_run_begins_with(mounts: Mounts, experiment: Experiment) -> None:
    """Mount the weights of another model, where they are there.

    Where they are not the run says so, if it needs them at all: one that goes on reads its own checkpoints.
    """
    config = experiment.config
    names: list[str] = []
    if config.from_cp is not None:
        # The authors' checkpoints are described by a file beside them or in the folder above.
        near = [posixpath.join(posixpath.dirname(config.from_cp), up, "config.json") for up in ("", "..")]
        names += [config.from_cp, *(near if experiment.path(config.from_cp).is_file() else [])]
    for name in names:
        if experiment.path(name).exists():
            _add_named(mounts, experiment, name)


def _add_data(mounts: Mounts, script: Script, experiment: Experiment, flags: ScriptFlags) -> ScriptFlags:
    """Mount a script's data where its config looks for them; returns the flags that remain."""
    data = script.data
    given = flags.last(data.flag)
    if data.has_hub and given == "hub":
        return flags
    if data.files and not given:
        return _add_files(mounts, data, experiment, flags)
    flags = flags.without(data.flag)
    name = getattr(experiment.config, data.key)
    target = str(_in_container(name))
    is_default = target == ExperimentConfig.model_fields[data.key].default
    source = PROJECT / data.folder.format(length=experiment.config.model.max_seq_len)
    if given or not is_default:
        source = Path(given) if given else experiment.path(name)
    if given and _in_container(name).is_relative_to(CONTAINER_MODEL):
        # To mount it there, an engine would make a folder in the experiment.
        target = str(ExperimentConfig.model_fields[data.key].default)
        flags = flags.with_value(data.flag, target)
    if mounts.place.is_here:
        _check_data(data, source, experiment)
        # What config.json names has its place in the container already.
        if source.is_file() and (given or is_default):
            target = f"{target}/{source.name}"
            flags = flags.with_value(data.flag, target)
    if script.command == "transactions" and (given or is_default) and flags.last("--task") is None:
        # Else data and runs would be called as the folder is in the container.
        flags = flags.with_value("--task", (source.resolve() if mounts.place.is_here else source).name)
    if given or is_default:
        mounts.add(source, target)
    else:
        _add_named(mounts, experiment, name)
    return flags


def _add_files(mounts: Mounts, data: Data, experiment: Experiment, flags: ScriptFlags) -> ScriptFlags:
    """Mount the tables that flags name one by one, files or folders, each in a folder of its flag's name; what names
    none stays.
    """
    for flag in data.files:
        name = flags.last(flag) or ""
        # Where the script would look for a relative name, and where the data of all experiments are.
        folders = (Path(), experiment.path(getattr(experiment.config, data.key)), PROJECT / data.folder)
        there = [folder / name for folder in folders if name and (folder / name).exists()]
        if not _FILE.fullmatch(name) and not (mounts.place.is_here and there):
            continue
        if mounts.place.is_here and not there:
            raise UserError(f"{flag} {name}: no such file, here or in {PROJECT / data.folder}")
        source = there[0] if mounts.place.is_here else Path(name)
        target = f"{_FILES}/{flag.strip('-')}/{source.name}"
        mounts.add(source, target)
        flags = flags.with_value(flag, target)
    return flags


def _check_data(data: Data, source: Path, experiment: Experiment) -> None:
    advice = f"{data.folder}/README.md says which files go there"
    if data is PRETRAINING:
        advice = f"Make it (`{how_to_make(experiment.config.model.max_seq_len)}`, after the corpora)"
    if not source.exists():
        raise UserError(f"{source}: no such folder. {advice}, or name another with {data.flag}")
    if data is PRETRAINING:
        experiment.dataset(source)
    elif source.is_dir() and all(entry.name == "README.md" for entry in source.iterdir()):
        raise UserError(f"{source}: there are no data in it. {advice}, or name another with {data.flag}")


def _add_tokenizer(mounts: Mounts, flags: ScriptFlags) -> ScriptFlags:
    given = flags.last("--tokenizer")
    if given is None:
        return flags
    if mounts.place.is_here and not Path(given).is_dir():
        raise UserError(f"--tokenizer {given}: no such folder")
    mounts.add(Path(given), "/tokenizer")
    return flags.with_value("--tokenizer", "/tokenizer")
