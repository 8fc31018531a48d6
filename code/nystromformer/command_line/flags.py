"""Flags that commands of all kinds have, declared once."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.errors import UserError
from nystromformer.files.paths import experiment_folder

ModelFolder = Annotated[
    Path,
    typer.Option(
        "--model",
        parser=experiment_folder,
        metavar="DIRECTORY",
        help="Experiment folder, with config.json, and checkpoints in model/. A name is also looked up in "
        "experiments/.",
    ),
]
DatasetFolder = Annotated[
    Path | None,
    typer.Option("--dataset", help="Folder of the preprocessed rows. Default: data_folder of config.json."),
]
DeviceName = Annotated[str, typer.Option("--device", help="Device: auto (a GPU if there is one), cpu, cuda or cuda:N.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value: override a value of config.json; repeatable."),
]

ArrayIndex = Annotated[
    int | None,
    typer.Option(
        "--array_index",
        help="In an array job: number of the slice to process, from 0 to --array_size - 1. When all are finished, the "
        "command without these two flags processes missing slices and completes the output.",
    ),
]
ArraySize = Annotated[int | None, typer.Option("--array_size", min=1, help="In an array job: number of slices.")]


def array_slice(index: int | None, size: int | None) -> slice | None:
    """The part of the list of all work that the flags of an array job name; None: all of it."""
    if index is None and size is None:
        return None
    if index is None or size is None:
        raise UserError("--array_index and --array_size: expected both or none")
    if not 0 <= index < size:
        raise UserError(f"--array_index: expected 0 to {size - 1} with --array_size {size}, found {index}")
    return slice(index, None, size)
