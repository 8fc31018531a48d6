"""What a task in GLUE's form is: its tables, their columns, its classes and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Metric = Literal["accuracy", "f1", "matthews", "pearson", "spearman", "pearson_spearman"]


@dataclass(frozen=True)
class GlueSplit:
    """A split of a task.

    files: where it is, seen from the task's folder, the usual place first; rows: how many the official one has.
    prediction_file: what GLUE's server calls its predictions, None for a split with labels.
    hub: configuration and split of the hub's copy; None where there is none.
    """

    name: str
    files: tuple[str, ...]
    rows: int
    hub: tuple[str, str] | None
    prediction_file: str | None = None

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
    dev files without a header. hub_name: of the data set on the Hugging Face hub, where the label is "label";
    hub_columns: of the sentences there. None: all have a header; as in the files.
    """

    name: str
    sentences: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    splits: tuple[GlueSplit, ...]
    metrics: tuple[Metric, ...] = ("accuracy",)
    measures: str = ""
    headerless: tuple[str, ...] | None = None
    hub_name: str = "nyu-mll/glue"
    hub_columns: tuple[str, ...] | None = None

    @property
    def hub_sentences(self) -> tuple[str, ...]:
        """Names of the sentences' columns in the hub's copy."""
        return self.hub_columns or self.sentences

    @property
    def num_outputs(self) -> int:
        """Width of a head's output: the number of classes, 1 for a number."""
        return len(self.labels) if self.labels else 1

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


def three_splits(name: str, hub: str | None, train: int, dev: int, test: int) -> tuple[GlueSplit, ...]:
    """Splits in train.tsv, dev.tsv and test.tsv, of so many rows.

    Args:
        name: of the task.
        hub: its configuration on the hub, where dev is called validation; None: it is not there.
    """
    places = {split: None if hub is None else (hub, split) for split in ("train", "validation", "test")}
    return (
        GlueSplit("train", ("train.tsv",), train, places["train"]),
        GlueSplit("dev", ("dev.tsv",), dev, places["validation"]),
        GlueSplit("test", ("test.tsv",), test, places["test"], f"{name}.tsv"),
    )
