"""Flags that several commands have, declared once."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

ModelFolder = Annotated[Path, typer.Option("--model", help="Experiment folder with a config.json.")]
DatasetFolder = Annotated[Path | None, typer.Option("--dataset", help="Dataset folder; default: data_folder.")]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Verify = Annotated[bool, typer.Option("--verify", help="Check the dataset's sha256 first.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value instead of config.json's; repeatable.")
]

# Of fine-tuning
Checkpoint = Annotated[str, typer.Option("--checkpoint", help="Epoch of the pretraining to begin with, or last.")]
TokenizerFolder = Annotated[
    Path | None, typer.Option("--tokenizer", help="The checkpoint's tokenizer; default: the one beside it.")
]
BatchSize = Annotated[str, typer.Option("--batch_size", help="Examples of a step; 8,16,32: try each.")]
LearningRate = Annotated[str, typer.Option("--lr", help="Highest learning rate; 2e-5,3e-5: try each.")]
Epochs = Annotated[int, typer.Option("--epoch", min=1, help="Passes over the training data.")]
Seeds = Annotated[str, typer.Option("--seed", help="Of the head, the order and dropout; 0,1,2: mean and deviation.")]
Warmup = Annotated[float, typer.Option("--warmup", min=0, max=1, help="Share of the steps in which the rate rises.")]
Length = Annotated[int | None, typer.Option("--length", min=8, help="Tokens of the longest row; default: the model's.")]
PadTo = Annotated[
    int | None, typer.Option("--pad_to", min=8, help="Tokens of every row; default: the longest of its batch.")
]
Bucket = Annotated[int, typer.Option("--bucket", min=1, help="Most batches sorted by length together; 1: no sorting.")]
TrainRows = Annotated[int | None, typer.Option("--train_rows", min=1, help="Train on so many examples only.")]
Predict = Annotated[
    str, typer.Option("--predict", help="Whose weights predict: of the best epoch on validation, or of the last.")
]
DiscardWeights = Annotated[bool, typer.Option("--discard_weights", help="Keep results and predictions only.")]
Baselines = Annotated[bool, typer.Option("--baselines", help="Also score guessers without a network.")]


def command_line() -> str:
    """How the command was called, for the record."""
    return shlex.join(["python", *sys.argv])
