"""What a task in GLUE's form is: its tables, their columns, its classes and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Metric = Literal["accuracy", "f1", "matthews", "pearson", "spearman", "pearson_spearman"]


@dataclass(frozen=True)
class GlueSplit:
    """A split of a task."""

    name: str
    files: tuple[str, ...]
    """Where it is, seen from the task's folder, the usual place first."""
    rows: int
    """How many the official one has."""
    prediction_file: str | None = None
    """What GLUE's server calls its predictions; None for a split with labels."""

    @property
    def has_labels(self) -> bool:
        """False for test splits, whose labels GLUE keeps."""
        return self.prediction_file is None


@dataclass(frozen=True)
class GlueTask:
    """A task: one or two sentences a row, and a class or a number from 0 to 5.

    name: also of its folder. sentences, label: names of their columns. labels: the classes in the order of their
    numbers, spelled as in the files and for GLUE's server; None where the label is a number from 0 to 5. splits: train
    first, then the dev splits, of which the first one chooses a model. metrics: what is reported, the one that models
    are chosen by first. measures: what they are at the head of a column of tables. headerless: the columns of train and
    dev files without a header; None: all have one.
    """

    name: str
    sentences: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    splits: tuple[GlueSplit, ...]
    metrics: tuple[Metric, ...] = ("accuracy",)
    measures: str = ""
    headerless: tuple[str, ...] | None = None

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """Names of the splits that a model is measured on, the one that it is chosen by first."""
        return tuple(split.name for split in self.splits if split.has_labels and split.name != "train")

    @property
    def test_splits(self) -> tuple[str, ...]:
        """Names of the splits that GLUE's server measures predictions for."""
        return tuple(split.name for split in self.splits if not split.has_labels)

    def split(self, name: str) -> GlueSplit:
        """The split of this name."""
        return {split.name: split for split in self.splits}[name]


def three_splits(name: str, train: int, dev: int, test: int) -> tuple[GlueSplit, ...]:
    """Splits in train.tsv, dev.tsv and test.tsv, of so many rows, of the task of this name."""
    return (
        GlueSplit("train", ("train.tsv",), train),
        GlueSplit("dev", ("dev.tsv",), dev),
        GlueSplit("test", ("test.tsv",), test, f"{name}.tsv"),
    )
