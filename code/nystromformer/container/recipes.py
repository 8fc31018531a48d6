"""Which container a script needs: for an experiment folder the mounts of the authors' README, with its log beside the
config; for a finished run, folders where they are on this machine."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from nystromformer.config import ExperimentConfig, load_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.container.options import LaunchOptions, Mount
from nystromformer.container.scripts import SCRIPTS, Script, check_words, merged, mount_flag, take, values
from nystromformer.container.spec import ContainerSpec, program
from nystromformer.files.paths import PROJECT, experiment_folder
from nystromformer.tasks.experiment.folder import CONTAINER_MODEL, Experiment


def spec_of(command: str, place: str, flags: Sequence[str], options: LaunchOptions) -> ContainerSpec:
    """The container of a command.

    Args:
        place: an experiment's or run's folder, or the name of an experiment of the project.
        flags: the script's.
    """
    if command in SCRIPTS:
        return _of_experiment(SCRIPTS[command], place, flags, options)
    return _of_run(command, place, flags, options)


def _of_experiment(script: Script, place: str, flags: Sequence[str], options: LaunchOptions) -> ContainerSpec:
    check_words(script.file, flags)
    folder, words = experiment_folder(place).resolve(), [*flags]
    for text in values(words, "--attention"):
        if ".py:" not in text:
            parse_attention(text)  # mistakes show before the container starts
    experiment = Experiment(folder, load_config(folder / "config.json", values(words, "--set")))
    mounts = [Mount(folder, str(CONTAINER_MODEL), read_only=False), *_data(script, experiment, words)]
    mounts += _mount_of(experiment, experiment.config.model_checkpoints, read_only=False)
    if script.command == "pretrain" and experiment.config.from_cp is not None:
        mounts += _mount_of(experiment, experiment.config.from_cp)
    for flag in script.data.files:
        mount_flag(words, flag, mounts, if_there=True)
    options = _on_device(words, options)
    name = f"{options.name or script.command}.txt"
    return ContainerSpec(
        options,
        command=script.command,
        folder=folder,
        argv=(*program(options, script.shares_gpus), f"/code/{script.file}", *words),
        mounts=merged(mounts, options),
        log=(folder / name, str(CONTAINER_MODEL / name)),
    )


def _of_run(command: str, place: str, flags: Sequence[str], options: LaunchOptions) -> ContainerSpec:
    """The container that predicts with a finished run, or serves it; the engine keeps its output."""
    file = f"run_{command}.py"
    check_words(file, [place, *flags])
    run, words, publish = experiment_folder(place).resolve(), [*flags], None
    # With the folder around it, which holds what is kept beside runs.
    mounts = [Mount(run.parent, str(run.parent))]
    if command == "serve":
        address, port = take(words, "--host") or "127.0.0.1", int(take(words, "--port") or 8000)
        hosts = ",".join(filter(None, (take(words, "--allowed_hosts"), address)))
        listen = address if options.network == "host" else "0.0.0.0"
        words += ["--host", listen, "--port", str(port), "--allowed_hosts", hosts]
        publish = (address, port)
    mount_flag(words, "--input", mounts)
    mount_flag(words, "--out", mounts, writes=True)
    options = _on_device(words, options)
    argv = ("python3", f"/code/{file}", str(run), *words)
    return ContainerSpec(options, command, run, argv, merged(mounts, options), publish=publish)


def _on_device(words: list[str], options: LaunchOptions) -> LaunchOptions:
    """The options, without GPUs where the script is to use the CPU. Where there are GPUs and it is told nothing, a GPU
    that the engine does not hand over shall be an error, not a run on the CPU."""
    if values(words, "--device")[-1:] == ["cpu"]:
        return replace(options, gpus="none")
    if options.gpus != "none" and not values(words, "--device"):
        words += ["--device", "cuda"]
    return options


def _mount_of(experiment: Experiment, name: str, read_only: bool = True) -> list[Mount]:
    """Of what config.json names: relative paths are in the experiment folder, which is mounted itself."""
    inside = PurePosixPath(posixpath.normpath(CONTAINER_MODEL / name))
    if inside.is_relative_to(CONTAINER_MODEL):
        return []
    return [Mount(Path(os.path.abspath(experiment.path(name))), str(inside), read_only)]


def _data(script: Script, experiment: Experiment, words: list[str]) -> list[Mount]:
    """Of a script's data: what its flag names, or else what config.json does, by default a folder of the project."""
    data, given = script.data, take(words, script.data.flag)
    default, configured = ExperimentConfig.model_fields[data.key].default, getattr(experiment.config, data.key)
    if given is not None:
        source = Path(given).resolve()
        found = [Mount(source, f"{default}/{source.name}" if source.is_file() else default)]
        words += [data.flag, found[0].target]
    elif configured == default:
        folder = data.folder.format(length=experiment.config.model.max_seq_len)
        found = [Mount((PROJECT / folder).resolve(), default)]
    else:
        found = _mount_of(experiment, configured)
    if script.command == "transactions" and found and not values(words, "--task"):
        words += ["--task", found[0].source.name]  # else data and runs would be called as the folder in the container
    return found
