"""What `run_classify.py` is asked: its flags about the tables and what is to be learned of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.errors import UserError
from nystromformer.tabular.cells import as_number
from nystromformer.tabular.reading import TABLE

BALANCED = "balanced"
_NAME = re.compile(r"[\w][\w.-]{0,79}")


@dataclass(frozen=True)
class Question:
    """Each field is a flag, as it was typed."""

    train: Annotated[
        str,
        typer.Option(
            "--train",
            help="Training table: a .csv, .tsv, .jsonl, .json, .parquet or .xlsx file (or FILE.xlsx:SHEET); a folder "
            "with a folder of .txt files for each class (columns text and label).",
        ),
    ]
    text: Annotated[str, typer.Option("--text", help="Text column; two for pairs, such as question,answer.")]
    label: Annotated[
        str,
        typer.Option(
            "--label",
            help="Label column; several columns of 0 and 1 for texts with any number of labels (--kind several).",
        ),
    ]
    test: Annotated[
        str | None,
        typer.Option("--test", help="Test table: predicted by the best run, and scored if it has labels."),
    ] = None
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Kind of labels: classes; several (any number of classes for a text; several,separator=; names what "
            "is between them in a cell, by default a comma); value; ordered (such as 1 to 5 stars; "
            "ordered,order=low/middle/high where they are no numbers). Default: detected, except ordered.",
        ),
    ] = None
    validation: Annotated[
        str,
        typer.Option(
            "--validation",
            help="Share of each class of the training table to hold out, to select the best epoch (0.1,seed=3 draws "
            "other rows); or a table.",
            rich_help_panel=TABLE,
        ),
    ] = "0.1"
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Column, such as an author: rows with the same value stay on one side of the split.",
            rich_help_panel=TABLE,
        ),
    ] = None
    time: Annotated[
        str | None,
        typer.Option("--time", help="Column of dates or numbers: the latest rows are held out.", rich_help_panel=TABLE),
    ] = None
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Column with the rows' ids, for predictions. Default: their numbers, from 1.",
            rich_help_panel=TABLE,
        ),
    ] = None
    skip_empty: Annotated[
        bool,
        typer.Option(
            "--skip_empty",
            help="Leave out rows without text or without a label instead of stopping.",
            rich_help_panel=TABLE,
        ),
    ] = False
    class_weights: Annotated[
        str | None,
        typer.Option(
            "--class_weights",
            help="Weights in the loss: balanced (each class counts as much as the others), or numbers, "
            "such as spam=3,other=1. Default: each example counts the same.",
            rich_help_panel=TABLE,
        ),
    ] = None
    cut: Annotated[
        str | None,
        typer.Option(
            "--cut",
            help="How to cut texts longer than --length: head (drop the end), or windows (drop nothing: read rows that "
            "overlap and classify their mean; windows,overlap=64 sets the overlap in tokens, by default an eighth of a "
            "row). Default: head; windows if --length is not given and more than 5 % of the texts are longer than the "
            "model's rows.",
            rich_help_panel=TABLE,
        ),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="Name of the task in folders and tables. Default: that of the training table.",
            rich_help_panel=TABLE,
        ),
    ] = None

    @property
    def name(self) -> str:
        """What the task is called: --task, or what the training table is called."""
        if self.task is None:
            return re.sub(r"[^\w.-]+", "-", Path(self.train).stem).strip("-.")[:80] or "table"
        if not _NAME.fullmatch(self.task):
            raise UserError(f"--task {self.task}: expected letters, digits, and . _ - between them, at most 80")
        return self.task

    @property
    def validation_table(self) -> str | None:
        """--validation where it names a table; None: the rows to choose by are a part of the training table."""
        is_share = as_number(self.validation.partition(",")[0]) is not None
        given = [flag for flag, column in {"--group": self.group, "--time": self.time}.items() if column]
        if given and not is_share:
            raise UserError(f"--validation {self.validation}: expected no {given[0]} together with a validation table")
        if self.time and (self.group or "," in self.validation):
            what = "--group" if self.group else "seed of --validation"
            raise UserError(f"--time {self.time}: expected no {what} with it")
        return None if is_share else self.validation

    @property
    def weights(self) -> str | Mapping[str, float] | None:
        """What --class_weights says: `balanced`, or of each class its weight."""
        text = self.class_weights
        if text is None or text == BALANCED:
            return text
        pairs = [(name.strip(), as_number(number)) for name, _, number in (p.rpartition("=") for p in text.split(","))]
        weights = {name: weight for name, weight in pairs if name and weight is not None and weight > 0}
        if len(weights) < len(pairs):
            raise UserError(
                f"--class_weights {text}: expected balanced, or a weight above 0 of each class, such as spam=3,other=1"
            )
        return weights
