"""Score the checkpoints of an experiment folder on the validation rows, with the same masks every time."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DatasetFolder, DeviceName, ModelFolder, Overrides


def validation(
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Checkpoints to score: last, all, or an epoch's number.")
    ] = "last",
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", min=1, help="Score this many validation rows, always the same random ones. Default: all."
        ),
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also score two baselines: the most frequent token and a bigram table.")
    ] = False,
    device: DeviceName = "auto",
    overrides: Overrides = None,
) -> None:
    """Score checkpoints; prints a table and writes validation.json beside them."""
    from nystromformer.tasks.experiment.folder import open_experiment

    experiment = open_experiment(model, overrides or [])

    # After the config was checked: importing torch takes seconds.
    from nystromformer.tasks.experiment.run import run_device
    from nystromformer.tasks.pretraining.validation import validate
    from nystromformer.training import Group

    chosen = run_device(experiment, device, Group())
    validate(experiment, dataset, chosen, checkpoint, rows, baselines, typer.echo)


if __name__ == "__main__":
    cli.run(validation)
