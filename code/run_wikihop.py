"""Fine-tune a pretrained model on WikiHop or MedHop; run again, it goes on where it was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli, flags


def wikihop(
    model: flags.ModelFolder = Path("/model"),
    wikihop: Annotated[
        Path | None, typer.Option("--wikihop", help="Folder with train.json; default: wikihop_dataset_folder.")
    ] = None,
    checkpoint: flags.Checkpoint = "last",
    batch_size: flags.BatchSize = "32",
    lr: flags.LearningRate = "3e-5",
    epoch: flags.Epochs = 15,
    seed: flags.Seeds = "0",
    warmup: flags.Warmup = 0.1,
    length: flags.Length = None,
    pad_to: flags.PadTo = None,
    bucket: flags.Bucket = 50,
    train_rows: flags.TrainRows = None,
    validation: Annotated[
        float | None, typer.Option("--validation", help="Choose by this share of train.json instead of by dev.json.")
    ] = None,
    split_seed: Annotated[int, typer.Option("--split_seed", min=0, help="Which instances are held out.")] = 0,
    skip_unanswerable: Annotated[
        bool, typer.Option("--skip_unanswerable", help="Leave out instances whose answer is not a candidate.")
    ] = False,
    predict: flags.Predict = "best",
    discard_weights: flags.DiscardWeights = False,
    tokenizer: flags.TokenizerFolder = None,
    device: flags.DeviceName = "auto",
    overrides: flags.Overrides = None,
) -> None:
    """Fine-tune on WikiHop: which candidate answers a query, given any number of documents."""
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
        command=flags.command_line(),
    )

    # After the flags were checked: importing torch takes seconds.
    from nystromformer.tasks.finetuning.command import run_sweeps
    from nystromformer.tasks.wikihop.task import WikiHop

    source = wikihop or experiment.path(experiment.config.wikihop_dataset_folder)
    task = WikiHop(source, skip_unanswerable, validation, split_seed)
    run_sweeps(experiment, [task], sweep, device, typer.echo)


if __name__ == "__main__":
    cli.run(wikihop)
