"""Pretrain the model of an experiment folder; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DatasetFolder, DeviceName, ModelFolder, Overrides, Verify


def pretrain(
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    device: DeviceName = "auto",
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Processes that prepare batches; 0: a thread of the main process.")
    ] = 0,
    verify: Verify = False,
    overrides: Overrides = None,
) -> None:
    """Pretrain by masked language modelling, and sentence order if config.json's objectives include it."""
    from nystromformer.tasks.experiment.folder import open_experiment

    experiment = open_experiment(model, overrides or [])

    # After the config was checked: importing torch takes seconds.
    from nystromformer.tasks.experiment.opening import run_device
    from nystromformer.tasks.pretraining.pretrain import pretrain as run
    from nystromformer.training import join_group

    with join_group() as group:
        stopped_by = run(experiment, dataset, run_device(experiment, device, group), workers, verify, group)
    group.leave(0 if stopped_by is None else 128 + stopped_by)


if __name__ == "__main__":
    cli.run(pretrain)
