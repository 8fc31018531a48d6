"""Train on clients' events; resumes when it is started again."""

import re
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS
from nystromformer.tasks.finetuning.flags import Conv, Flags, open_recipe
from nystromformer.tasks.transactions.declaration import Architecture


@with_flag_groups
def transactions(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder written by experiments/transactions/prepare.py. Default: data_folder of config.json.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Name of the data in folders and tables. Default: that of the --data folder."),
    ] = None,
    architecture: Annotated[
        Architecture,
        typer.Option(
            "--architecture",
            help="What reads the events: encoder (config.json's), or the baselines lstm and gru of its width and "
            "number of layers.",
        ),
    ] = "encoder",
    conv: Conv = None,
    *,
    shared: Annotated[Flags, Without("checkpoint", "freeze")],
) -> None:
    """Train an encoder with any attention, an LSTM or a GRU on clients' events; the best epoch's weights are tested on
    the latest clients."""
    if architecture != "encoder" and (shared.attention is not None or conv is not None):
        raise UserError(f"--architecture {architecture}: expected no --attention and no --conv with it")
    if task is not None and not re.fullmatch(r"\w[\w.-]{0,79}", task):
        raise UserError(f"--task {task}: expected letters, digits, and . _ - between them, at most 80")
    experiment, usual = open_recipe(shared, conv, EXPERIMENTS / "transactions" / "encoder")
    grid = shared.grid(usual)

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.run import finetune
    from nystromformer.tasks.transactions.task import Transactions

    source = data or experiment.path(experiment.config.data_folder)
    finetune(experiment, [Transactions(source, task or source.resolve().name, architecture)], shared, grid)


if __name__ == "__main__":
    cli.run(transactions)
