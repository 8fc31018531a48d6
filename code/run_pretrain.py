"""Pretrain the model of an experiment folder; run again, it goes on where it was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli


def pretrain(
    model: Annotated[Path, typer.Option("--model", help="Experiment folder with a config.json.")] = Path("/model"),
    dataset: Annotated[Path | None, typer.Option("--dataset", help="Dataset folder; default: data_folder.")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that prepare batches.")] = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Check the dataset's sha256 first.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value instead of config.json's; repeatable.")
    ] = None,
) -> None:
    """Pretrain by masked language modelling, with sentence order where config.json's objectives say so."""
    from nystromformer.tasks.experiment import open_experiment

    experiment = open_experiment(model, overrides or [])

    # After the config was checked: importing torch takes seconds.
    from nystromformer.tasks.pretrain import pretrain as run
    from nystromformer.training import choose_device, join_group

    with join_group() as group:
        precision = experiment.config.model.mixed_precision
        chosen = group.check(lambda: choose_device(device, precision, group.local_rank if group.size > 1 else None))
        stopped_by = run(experiment, dataset, chosen, workers, verify, group)
    group.leave(0 if stopped_by is None else 128 + stopped_by)


if __name__ == "__main__":
    cli.run(pretrain)
