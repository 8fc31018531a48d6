"""GLUE as fine-tuning tasks: metrics by torchmetrics, and files for its server and for people.

Shapes: n rows, C classes.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.tasks.documents.metrics import correlations, is_constant
from nystromformer.tasks.documents.recipe import Answer, Recipe, write_split
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import describe, encode, reduce
from nystromformer.tasks.finetuning.examples import Examples, Labels, Texts
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import accuracy
from nystromformer.tasks.glue.read import check_size, find_files, read_split
from nystromformer.tasks.glue.table_task import GlueTask


class Glue(Definition):
    """One of GLUE's tasks."""

    kind = "glue"

    def __init__(self, task: GlueTask, source: Path, skip_bad_rows: bool = False) -> None:
        self.task, self.source, self.skip_bad_rows = task, source, skip_bad_rows
        self.name = f"glue/{task.name}"
        self.choices = {"task": task.name}
        self.answer = _answer(task)
        self.target = self.answer.target()
        self.main_metric: str = task.metrics[0]
        self._texts: dict[str, Texts] = {}

    def load(self, loading: Loading) -> Splits:
        task, warnings, notes = self.task, list[str](), list[str]()
        for split, path in find_files(task, self.source).items():
            self._texts[split], left_out = read_split(task, split, path, self.skip_bad_rows)
            notes += filter(None, [left_out])
            warnings += check_size(task, split, len(self._texts[split]))
        absent = [split for split in task.dev_splits if split not in self._texts]
        warnings += [f"{task.name} has no {split} here: its metrics are left out" for split in absent]
        dev = [split for split in task.dev_splits if split in self._texts]
        rows, reduced = reduce(self._texts["train"], loading.train_rows)
        train, validation = encode(rows, loading), {_ending(each): encode(self._texts[each], loading) for each in dev}
        notes += [describe(examples) for examples in (train, *validation.values())]
        positive = task.labels[1] if task.labels else ""
        return Splits(train, dict(validation), warnings + reduced, notes, positive=positive)

    def texts(self) -> dict[str, Any]:
        return asdict(Recipe(self.answer, self.task.sentences, ("label",)))

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        return score(self.task, scores_NC, labels_N)

    def test(self, loading: Loading) -> dict[str, Examples]:
        splits = [split for split in self.task.test_splits if split in self._texts]
        return {split: encode(self._texts[split], loading) for split in splits}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """Files for GLUE's server, and of each row's probabilities `dev.tsv`, `test.tsv` and the like."""
        dev = {split: _ending(split) for split in self.task.dev_splits if _ending(split) in splits.validation}
        for split in (*dev, *test):
            write_predictions(self.task, split, self._texts[split], scores[dev.get(split, split)], folder)
        return {}


def _answer(task: GlueTask) -> Answer:
    return Answer("value") if task.labels is None else Answer("classes", task.labels)


def _ending(split: str) -> str:
    """What a dev split's metrics end with: nothing for the one that the main metric is of."""
    return "_mismatched" if split == "dev_mismatched" else ""


def score(task: GlueTask, scores: Tensor, labels: Tensor | Labels) -> dict[str, float]:
    """The task's metrics in its order, each a fraction (1.0 is best), of logits (n, C) or values (n, 1). Class 1 is the
    positive one of F1. Where a metric is undefined (F1 without positives, correlations of constants) it is 0.0.
    """
    # imported here: it takes seconds
    from torchmetrics.functional.classification import binary_f1_score, binary_matthews_corrcoef

    target = torch.as_tensor(labels).cpu()
    if task.labels is None:
        values = correlations(scores[:, 0].detach().cpu().double(), target.double())
        values["pearson_spearman"] = (values["pearson"] + values["spearman"]) / 2
        return {metric: values[metric] for metric in task.metrics}
    predicted = scores.argmax(dim=1).cpu()
    values = {"accuracy": accuracy(scores.cpu(), target)}
    if "f1" in task.metrics:
        values["f1"] = binary_f1_score(predicted, target).item()
    if "matthews" in task.metrics:
        # torchmetrics gives 1 or -1 where both are constant
        constant = is_constant(predicted) or is_constant(target)
        values["matthews"] = 0.0 if constant else binary_matthews_corrcoef(predicted, target).item()
    return {metric: values[metric] for metric in task.metrics}


def write_predictions(task: GlueTask, split: str, texts: Texts, scores: Tensor, folder: Path) -> None:
    """Write what was predicted for each row of a split, such as dev.tsv (see `write_split`), and of a test split also
    the file that GLUE's server takes, such as MNLI-m.tsv, with values clipped to 0 … 5.
    """
    # Some file systems take ax.tsv for AX.tsv, which is the server's.
    path = folder / ("diagnostic.tsv" if split == "ax" else f"{split}.tsv")
    write_split(path, texts, scores, _answer(task))
    name = task.split(split).prediction_file
    if name is None:
        return
    if task.labels is None:
        spelled = [f"{max(0.0, min(value, 5.0)):.3f}" for value in scores[:, 0].tolist()]
    else:
        spelled = [task.labels[number] for number in scores.argmax(dim=1).tolist()]
    write_rows(folder / name, ("index", "prediction"), ((str(row), text) for row, text in enumerate(spelled)))
