"""Fine-tune a pretrained model on tasks of GLUE; run again, it goes on where it was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli, flags


def glue(
    task: Annotated[
        list[str], typer.Option("--task", help="A task, several separated by commas, paper or all; repeatable.")
    ],
    model: flags.ModelFolder = Path("/model"),
    glue: Annotated[
        str | None, typer.Option("--glue", help="GLUE's folder, or hub; default: glue_dataset_folder.")
    ] = None,
    checkpoint: flags.Checkpoint = "last",
    batch_size: flags.BatchSize = "32",
    lr: flags.LearningRate = "3e-5",
    epoch: flags.Epochs = 4,
    seed: flags.Seeds = "0",
    warmup: flags.Warmup = 0.1,
    length: flags.Length = None,
    pad_to: flags.PadTo = None,
    bucket: flags.Bucket = 50,
    train_rows: flags.TrainRows = None,
    skip_bad_rows: Annotated[bool, typer.Option("--skip_bad_rows", help="Leave malformed rows out.")] = False,
    baselines: flags.Baselines = False,
    predict: flags.Predict = "best",
    discard_weights: flags.DiscardWeights = False,
    tokenizer: flags.TokenizerFolder = None,
    device: flags.DeviceName = "auto",
    overrides: flags.Overrides = None,
) -> None:
    """Fine-tune on CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI; prints a table and writes predictions."""
    from nystromformer.tasks.experiment.folder import open_experiment
    from nystromformer.tasks.finetuning.settings import make_sweep
    from nystromformer.tasks.glue.catalog import find_tasks

    experiment = open_experiment(model, overrides or [])
    tasks = find_tasks(",".join(task))
    sweep = make_sweep(
        batch_size,
        lr,
        seed,
        predict,
        epochs=epoch,
        warmup=warmup,
        bucket=bucket,
        length=length,
        pad_to=pad_to,
        train_rows=train_rows,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        discard_weights=discard_weights,
        baselines=baselines,
        command=flags.command_line(),
    )

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.command import run_sweeps
    from nystromformer.tasks.glue.task import Glue

    folder = Path(glue) if glue else experiment.path(experiment.config.glue_dataset_folder)
    source = None if glue == "hub" else folder
    run_sweeps(experiment, [Glue(each, source, skip_bad_rows) for each in tasks], sweep, device, typer.echo)


if __name__ == "__main__":
    cli.run(glue)
