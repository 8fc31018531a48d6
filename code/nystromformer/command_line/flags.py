"""Flags that commands of all kinds have, declared once."""

from collections.abc import Sequence
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
        help="Folder of the experiment: its config.json, and its checkpoints in model/. A name alone is also that of a "
        "folder in experiments/.",
    ),
]
DatasetFolder = Annotated[
    Path | None,
    typer.Option("--dataset", help="Folder of the preprocessed rows. Default: data_folder of config.json."),
]
DeviceName = Annotated[
    str, typer.Option("--device", help="Where to compute: auto (on a GPU if there is one), cpu, cuda or cuda:N.")
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="First check that the dataset's files are as preprocessing left them (sha256), also those that were "
        "checked before; else new ones are checked while the work begins.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value: take this value instead of config.json's; repeatable."),
]


def refuse_given(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Refuse flags that have no use beside another one.

    Raises:
        UserError: one of them was given.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"{why}: expected no --{name}")
