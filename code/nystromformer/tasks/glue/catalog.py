"""The nine tasks of GLUE (Wang et al. 2018): their files, columns, classes, sizes and metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from nystromformer.errors import UserError

Metric = Literal["accuracy", "f1", "matthews", "pearson", "spearman", "pearson_spearman"]


@dataclass(frozen=True)
class GlueSplit:
    """A split of a task.

    files: where it is, seen from the task's folder, the usual place first; rows: how many GLUE's own has.
    prediction_file: what GLUE's server calls its predictions, None for a split with labels.
    hub: configuration and split of the hub's copy.
    """

    name: str
    files: tuple[str, ...]
    rows: int
    hub: tuple[str, str]
    prediction_file: str | None = None

    @property
    def has_labels(self) -> bool:
        """False for test splits, whose labels GLUE keeps."""
        return self.prediction_file is None


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE.

    sentences, label: names of their columns; hub_sentences: of the same in the hub's copy, where the label is "label".
    labels: the classes in the order of their numbers, spelled as in the files and for GLUE's server; None where the
    label is a number from 0 to 5. headerless: the columns of train and dev files without a header, None where all have
    one. metrics: what is reported; main_metric: what models are chosen by.
    """

    name: str
    sentences: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    splits: tuple[GlueSplit, ...]
    hub_sentences: tuple[str, ...]
    metrics: tuple[Metric, ...] = ("accuracy",)
    main_metric: Metric = "accuracy"
    headerless: tuple[str, ...] | None = None

    @property
    def folder(self) -> str:
        """The task's folder in GLUE's download."""
        return self.name

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

    @property
    def required_splits(self) -> tuple[str, ...]:
        """Names of the splits without which there is no fine-tuning: train and the first dev split."""
        return ("train", self.dev_splits[0])

    def split(self, name: str) -> GlueSplit:
        """The split of this name.

        Raises:
            ValueError: there is none.
        """
        for split in self.splits:
            if split.name == name:
                return split
        raise ValueError(f"{self.name}: expected a split of {', '.join(s.name for s in self.splits)}, found {name!r}")


def _splits(name: str, hub: str, train: int, dev: int, test: int) -> tuple[GlueSplit, ...]:
    return (
        GlueSplit("train", ("train.tsv",), train, (hub, "train")),
        GlueSplit("dev", ("dev.tsv",), dev, (hub, "validation")),
        GlueSplit("test", ("test.tsv",), test, (hub, "test"), f"{name}.tsv"),
    )


# GLUE's diagnostic set lies beside the tasks' folders, under another name in each of its downloads.
_AX_FILES = tuple(
    f"../{file}" for file in ("AX/AX.tsv", "AX/diagnostic.tsv", "AX/test.tsv", "diagnostic/diagnostic.tsv")
)

_MNLI_SPLITS = (
    GlueSplit("train", ("train.tsv",), 392702, ("mnli", "train")),
    GlueSplit("dev_matched", ("dev_matched.tsv",), 9815, ("mnli", "validation_matched")),
    GlueSplit("dev_mismatched", ("dev_mismatched.tsv",), 9832, ("mnli", "validation_mismatched")),
    GlueSplit("test_matched", ("test_matched.tsv",), 9796, ("mnli", "test_matched"), "MNLI-m.tsv"),
    GlueSplit("test_mismatched", ("test_mismatched.tsv",), 9847, ("mnli", "test_mismatched"), "MNLI-mm.tsv"),
    GlueSplit("ax", _AX_FILES, 1104, ("ax", "test"), "AX.tsv"),
)

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_ONE, _PAIR, _QUESTIONS = ("sentence",), ("sentence1", "sentence2"), ("question1", "question2")
_ANSWER = ("question", "sentence")

TASKS = (
    GlueTask(
        "CoLA",
        sentences=_ONE,
        label="label",
        labels=_BINARY,
        splits=_splits("CoLA", "cola", 8551, 1043, 1063),
        hub_sentences=_ONE,
        metrics=("matthews",),
        main_metric="matthews",
        headerless=("source", "label", "mark", "sentence"),
    ),
    GlueTask("SST-2", _ONE, "label", _BINARY, _splits("SST-2", "sst2", 67349, 872, 1821), _ONE),
    GlueTask(
        "MRPC",
        sentences=("#1 String", "#2 String"),
        label="Quality",
        labels=_BINARY,
        splits=_splits("MRPC", "mrpc", 3668, 408, 1725),
        hub_sentences=_PAIR,
        metrics=("f1", "accuracy"),
        main_metric="f1",
    ),
    GlueTask(
        "STS-B",
        sentences=_PAIR,
        label="score",
        labels=None,
        splits=_splits("STS-B", "stsb", 5749, 1500, 1379),
        hub_sentences=_PAIR,
        metrics=("pearson_spearman", "pearson", "spearman"),
        main_metric="pearson_spearman",
    ),
    GlueTask(
        "QQP",
        sentences=_QUESTIONS,
        label="is_duplicate",
        labels=_BINARY,
        splits=_splits("QQP", "qqp", 363846, 40430, 390965),
        hub_sentences=_QUESTIONS,
        metrics=("f1", "accuracy"),
        main_metric="f1",
    ),
    GlueTask(
        "MNLI",
        sentences=_PAIR,
        label="gold_label",
        labels=("entailment", "neutral", "contradiction"),
        splits=_MNLI_SPLITS,
        hub_sentences=("premise", "hypothesis"),
    ),
    GlueTask("QNLI", _ANSWER, "label", _ENTAILMENT, _splits("QNLI", "qnli", 104743, 5463, 5463), _ANSWER),
    GlueTask("RTE", _PAIR, "label", _ENTAILMENT, _splits("RTE", "rte", 2490, 277, 3000), _PAIR),
    GlueTask("WNLI", _PAIR, "label", _BINARY, _splits("WNLI", "wnli", 635, 71, 146), _PAIR),
)

PAPER_TASKS = ("SST-2", "MRPC", "QNLI", "QQP", "MNLI")
"""The tasks of the paper's table, in its order."""


def find_tasks(text: str) -> tuple[GlueTask, ...]:
    """The tasks that a comma-separated list names, each once, in its order.

    A name may be spelled in any case and without its hyphen; "paper" is the paper's five tasks, "all" all nine.

    Raises:
        UserError: a name is unknown, or there is none.
    """
    by_key = {_key(task.name): (task,) for task in TASKS}
    choices = by_key | {"paper": tuple(by_key[_key(name)][0] for name in PAPER_TASKS), "all": TASKS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if _key(name) not in choices:
            raise UserError(_unknown(name, list(choices)))
    if not names:
        raise UserError(f"expected a GLUE task or a comma-separated list of them, found {text!r}. {_VALID}")
    return tuple(dict.fromkeys(task for name in names for task in choices[_key(name)]))


_VALID = f"Valid ones: {', '.join(task.name for task in TASKS)}, paper ({', '.join(PAPER_TASKS)}), all"


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


def _unknown(name: str, keys: list[str]) -> str:
    nearest = get_close_matches(_key(name), keys, n=1)
    shown = {_key(task.name): task.name for task in TASKS}
    hint = f"; did you mean {shown.get(nearest[0], nearest[0])}?" if nearest else "."
    return f"unknown GLUE task {name!r}{hint} {_VALID}"
