"""Fine-tune a pretrained model on IMDB reviews; run again, it goes on where it was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli, flags


def imdb(
    model: flags.ModelFolder = Path("/model"),
    imdb: Annotated[
        Path | None, typer.Option("--imdb", help="Folder or aclImdb_v1.tar.gz; default: imdb_dataset_folder.")
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
    validation: Annotated[float, typer.Option("--validation", help="Share of train that is held out.")] = 0.1,
    split_seed: Annotated[int, typer.Option("--split_seed", min=0, help="Which reviews are held out.")] = 0,
    baselines: flags.Baselines = False,
    predict: flags.Predict = "best",
    discard_weights: flags.DiscardWeights = False,
    tokenizer: flags.TokenizerFolder = None,
    device: flags.DeviceName = "auto",
    overrides: flags.Overrides = None,
) -> None:
    """Fine-tune on IMDB reviews, such as with --length 512 or 1024; one epoch's weights are tested, on all of test."""
    from nystromformer.tasks.experiment.folder import open_experiment
    from nystromformer.tasks.finetuning.settings import make_sweep

    experiment = open_experiment(model, overrides or [])
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
    from nystromformer.tasks.imdb.task import Imdb

    source = imdb or experiment.path(experiment.config.imdb_dataset_folder)
    run_sweeps(experiment, [Imdb(source, validation, split_seed)], sweep, device, typer.echo)


if __name__ == "__main__":
    cli.run(imdb)
