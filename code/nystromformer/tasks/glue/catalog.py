"""The nine tasks of GLUE (Wang et al. 2018): files, columns, classes, sizes and metrics; and others in its form."""

from __future__ import annotations

import re
from importlib import import_module

from nystromformer.errors import UserError
from nystromformer.tasks.glue.table_task import GlueSplit, GlueTask, three_splits

_OTHERS: tuple[str, ...] = (
    # The names of modules of this package, each with a task beside GLUE's own as TASK.
)

# GLUE's diagnostic set lies beside the tasks' folders, under another name in each of its downloads.
_AX_FILES = tuple(
    f"../{file}" for file in ("AX/AX.tsv", "AX/diagnostic.tsv", "AX/test.tsv", "diagnostic/diagnostic.tsv")
)

_MNLI_SPLITS = (
    GlueSplit("train", ("train.tsv",), 392702),
    GlueSplit("dev_matched", ("dev_matched.tsv",), 9815),
    GlueSplit("dev_mismatched", ("dev_mismatched.tsv",), 9832),
    GlueSplit("test_matched", ("test_matched.tsv",), 9796, "MNLI-m.tsv"),
    GlueSplit("test_mismatched", ("test_mismatched.tsv",), 9847, "MNLI-mm.tsv"),
    GlueSplit("ax", _AX_FILES, 1104, "AX.tsv"),
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
        splits=three_splits("CoLA", 8551, 1043, 1063),
        metrics=("matthews",),
        headerless=("source", "label", "mark", "sentence"),
        measures="(Matthews)",
    ),
    GlueTask("SST-2", _ONE, "label", _BINARY, three_splits("SST-2", 67349, 872, 1821)),
    GlueTask(
        "MRPC",
        sentences=("#1 String", "#2 String"),
        label="Quality",
        labels=_BINARY,
        splits=three_splits("MRPC", 3668, 408, 1725),
        metrics=("f1", "accuracy"),
        measures="(F1 / accuracy)",
    ),
    GlueTask(
        "STS-B",
        sentences=_PAIR,
        label="score",
        labels=None,
        splits=three_splits("STS-B", 5749, 1500, 1379),
        metrics=("pearson_spearman", "pearson", "spearman"),
        measures="(correlation)",
    ),
    GlueTask(
        "QQP",
        sentences=_QUESTIONS,
        label="is_duplicate",
        labels=_BINARY,
        splits=three_splits("QQP", 363846, 40430, 390965),
        metrics=("f1", "accuracy"),
        measures="(F1 / accuracy)",
    ),
    GlueTask(
        "MNLI",
        sentences=_PAIR,
        label="gold_label",
        labels=("entailment", "neutral", "contradiction"),
        splits=_MNLI_SPLITS,
        measures="m / mm",
    ),
    GlueTask("QNLI", _ANSWER, "label", _ENTAILMENT, three_splits("QNLI", 104743, 5463, 5463)),
    GlueTask("RTE", _PAIR, "label", _ENTAILMENT, three_splits("RTE", 2490, 277, 3000)),
    GlueTask("WNLI", _PAIR, "label", _BINARY, three_splits("WNLI", 635, 71, 146)),
)
"""GLUE's own."""

PAPER_TASKS = ("SST-2", "MRPC", "QNLI", "QQP", "MNLI")
"""The tasks of the paper's table, in its order."""

EVERY_TASK: tuple[GlueTask, ...] = (
    *TASKS,
    *(import_module(f"{__package__}.{name}").TASK for name in _OTHERS),
)


def find_tasks(text: str) -> tuple[GlueTask, ...]:
    """The tasks that a comma-separated list names, each once, in its order.

    A name may be spelled in any case and without its hyphen; "paper" is the paper's five tasks, "all" GLUE's nine.
    """
    by_key = {_key(task.name): (task,) for task in EVERY_TASK}
    choices = by_key | {"paper": tuple(by_key[_key(name)][0] for name in PAPER_TASKS), "all": TASKS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or (unknown := [name for name in names if _key(name) not in choices]):
        valid, found = ", ".join(task.name for task in EVERY_TASK), unknown[0] if names else text
        raise UserError(f"--task: expected {valid}, paper ({', '.join(PAPER_TASKS)}) or all, found {found}")
    return tuple(dict.fromkeys(task for name in names for task in choices[_key(name)]))


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())
