"""Pretrain the model of an experiment folder; resumes when it is started again."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flags import DatasetFolder, DeviceName, ModelFolder, Overrides


def pretrain(
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    device: DeviceName = "auto",
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Attention of all layers, instead of config.json's: NAME, or NAME,KEY=VALUE,… with its parameters. "
            "Those in config.json, with its convolution, count for its own attention only.",
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Pretrain by masked language modelling, and sentence order if config.json's objectives include it."""
    from nystromformer.config.attention_text import attention_overrides
    from nystromformer.tasks.experiment.folder import open_experiment

    chosen = [] if attention is None else attention_overrides(model / "config.json", attention)
    experiment = open_experiment(model, [*chosen, *(overrides or [])])

    # After the config was checked: importing torch takes seconds.
    from nystromformer.tasks.experiment.run import run_device
    from nystromformer.tasks.pretraining.pretrain import pretrain as run
    from nystromformer.training import join_group

    with join_group() as group:
        stopped_by = run(experiment, dataset, run_device(experiment, device, group), group)
    group.leave(0 if stopped_by is None else 128 + stopped_by)


if __name__ == "__main__":
    cli.run(pretrain)
