"""Train on clients' events; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS
from nystromformer.tasks.finetuning.flags import Flags, RecipeFlags, recipe_folder
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
    pretrain_epoch: Annotated[
        int,
        typer.Option(
            "--pretrain_epoch",
            min=0,
            max=MOST,
            help="Passes of pretraining on masked events over the training clients, with or without a label; 0: none.",
        ),
    ] = 0,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from_run",
            help="Start from the encoder of a finished run on the same columns, such as one on shorter rows.",
        ),
    ] = None,
    cycle_shift: Annotated[
        bool,
        typer.Option(
            "--cycle_shift", help="Rotate the events of each training row cyclically by a random number of places."
        ),
    ] = False,
    *,
    recipe: RecipeFlags,
    shared: Annotated[Flags, Without("checkpoint", "freeze")],
) -> None:
    """Train an encoder with any attention, an LSTM or a GRU on clients' events; the best epoch's weights are tested on
    the latest clients."""
    # Only now: it imports numpy.
    from nystromformer.tasks.experiment.folder import open_experiment

    if architecture != "encoder" and (shared.attention is not None or recipe.conv is not None):
        raise UserError(f"--architecture {architecture}: expected no --attention and no --conv with it")
    if from_run is not None and pretrain_epoch:
        raise UserError("--from_run: expected no --pretrain_epoch with it: each of the two gives the initial encoder")
    folder = recipe_folder(shared.model, EXPERIMENTS / "transactions" / "encoder")
    experiment = open_experiment(folder, recipe.overrides(folder / "config.json", shared))
    usual = recipe.usual(experiment.config.pretraining_setting)
    grid = shared.grid(usual)
    if pretrain_epoch and len({settings.combination for settings in grid}) > 1:
        raise UserError("--pretrain_epoch: expected one --batch_size and one --lr, found several")

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.documents.question import name_of
    from nystromformer.tasks.finetuning.run import finetune, finetune_in_phases
    from nystromformer.tasks.transactions.task import MaskedTransactions, Transactions, begin_with

    source = data or experiment.path(experiment.config.data_folder)
    name = source.resolve().name if task is None else name_of(task, source.name)
    labels = Transactions(source, name, architecture, cycle_shift)
    if pretrain_epoch:
        events = MaskedTransactions(source, name, architecture)
        finetune_in_phases(experiment, events, labels, shared, usual, pretrain_epoch)
    finetune(experiment, [labels], shared, grid, None if from_run is None else begin_with(from_run, labels))


if __name__ == "__main__":
    cli.run(transactions)
