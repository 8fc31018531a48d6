"""Train on a task of the Long Range Arena; resumes when it is started again."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.files.paths import EXPERIMENTS
from nystromformer.tasks.finetuning.flags import Conv, Flags, open_recipe
from nystromformer.tasks.lra.declaration import MODERN, PATH, TaskName, TrackName


@with_flag_groups
def lra(
    task: Annotated[
        TaskName, typer.Option("--task", help="listops, text, retrieval, image or pathfinder; or pathfinder_path.")
    ],
    track: Annotated[
        TrackName,
        typer.Option(
            "--track",
            help="Training recipe: paper (the authors') or modern (rotary positions, an auxiliary masked-token loss, "
            "augmented pictures).",
        ),
    ] = "paper",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Folder written by experiments/lra/prepare.py. Default: data_folder of config.json."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=0,
            max=MOST,
            help="Training steps; 0, with --baselines: only score the baselines. Default: config.json's.",
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option("--every", min=1, max=MOST, help="Steps between two validations. Default: config.json's."),
    ] = None,
    conv: Conv = None,
    *,
    shared: Annotated[Flags, Without("checkpoint", "epoch", "freeze", "predict")],
) -> None:
    """Train an encoder with any attention on a task of the Long Range Arena; the weights that are best on the
    validation data are tested once, on the whole test set."""
    if task == PATH and track != "paper":
        raise UserError(f"--task {PATH}: expected --track paper with it")
    keys = {each.partition("=")[0].strip() for each in shared.overrides or []}
    of_track = [f"{key}={value}" for key, value in MODERN.items() if track == "modern" and key not in keys]
    experiment, usual = open_recipe(shared, conv, EXPERIMENTS / "lra" / task, of_track)
    if steps == 0 and not shared.baselines:
        raise UserError("--steps 0: expected --baselines with it; without training only baselines can be scored")
    setting = experiment.config.pretraining_setting
    period, count = every or setting.batches_per_epoch, steps or setting.num_steps
    usual = replace(usual, epochs=-(-count // period), steps=count, every=min(period, count))
    grid = shared.grid(usual) if steps != 0 else []

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.run import finetune
    from nystromformer.tasks.lra.task import Arena, PathArena

    source = data or experiment.path(experiment.config.data_folder)
    most = setting.validate_batches_per_epoch * setting.batch_size
    finetune(experiment, [(PathArena if task == PATH else Arena)(task, source, most, track)], shared, grid)


if __name__ == "__main__":
    cli.run(lra)
