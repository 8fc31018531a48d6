"""GLUE as fine-tuning tasks."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.recipe import Recipe
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts, describe, encode, reduce
from nystromformer.tasks.finetuning.examples import Examples, Texts
from nystromformer.tasks.finetuning.target import Classes, Target, Value
from nystromformer.tasks.glue.metrics import score, write_predictions
from nystromformer.tasks.glue.read import available_splits, check_size, read_hub_split, read_split
from nystromformer.tasks.glue.table_task import GlueTask


class Glue(Definition):
    """One of GLUE's tasks.

    Args:
        task: which.
        source: a folder as `read_split` takes it; None: the Hugging Face hub.
        skip_bad_rows: leave malformed rows out instead of refusing them.
    """

    kind = "glue"

    def __init__(self, task: GlueTask, source: Path | None, skip_bad_rows: bool = False) -> None:
        self.task = task
        self.source = source
        self.skip_bad_rows = skip_bad_rows
        self.name = f"glue/{task.name}"
        self.choices = {"task": task.name}
        self.target: Target = Classes(task.num_outputs) if task.labels else Value()
        self.main_metric: str = task.metrics[0]
        self._texts: dict[str, Texts] = {}

    def load(self, loading: Loading) -> Splits:
        warnings: list[str] = []
        notes: list[str] = []
        for split in self.task.splits:
            # A required one that is missing is refused by the reader, with what to do about it.
            if split.name in self._available or split.name in self.task.required_splits:
                self._texts[split.name], left_out = self._read(split.name)
                notes += filter(None, [left_out])
                warnings += check_size(self.task, split.name, len(self._texts[split.name]))
            elif split.has_labels:
                warnings.append(f"{self.task.name} has no {split.name} here: its metrics are left out")
        rows, reduced = reduce(self._texts["train"], loading.train_rows)
        train, dev = encode(rows, loading), [split for split in self.task.dev_splits if split in self._texts]
        validation = {_ending(split): encode(self._texts[split], loading) for split in dev}
        notes += [describe(examples) for examples in (train, *validation.values())]
        positive = self.task.labels[1] if self.task.labels else ""
        return Splits(train, dict(validation), warnings + reduced, notes, positive=positive)

    def texts(self, loading: Loading) -> dict[str, Any]:
        labels = self.task.labels
        answer = Answer("value") if labels is None else Answer("classes", labels)
        return asdict(Recipe(answer, self.task.hub_sentences, ("label",)))

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        return score(self.task, scores_NC, labels_N)

    def test(self, loading: Loading) -> dict[str, Examples]:
        splits = [split for split in self.task.test_splits if split in self._texts]
        return {split: encode(self._texts[split], loading) for split in splits}

    def write(
        self,
        splits: Splits,
        test: Mapping[str, Examples],
        scores: Mapping[str, Tensor],
        folder: Path,
    ) -> dict[str, float]:
        """Files for GLUE's server, and of each row's probabilities `dev.tsv`, `test.tsv` and the like."""
        validated = {split: splits.validation.get(_ending(split)) for split in self.task.dev_splits}
        for split, examples in (validated | dict(test)).items():
            if examples is not None:
                assert isinstance(examples, EncodedTexts)
                found = scores[_ending(split) if split in validated else split]
                write_predictions(self.task, split, examples.texts, found, folder)
        return {}

    @cached_property
    def _available(self) -> tuple[str, ...]:
        if self.source is None:
            return tuple(split.name for split in self.task.splits)
        return available_splits(self.task, self.source)

    def _read(self, split: str) -> tuple[Texts, str | None]:
        """A split, and what is to be said of rows that are left out."""
        if self.source is None:
            return read_hub_split(self.task, split), None
        return read_split(self.task, self.source, split, self.skip_bad_rows)


def _ending(split: str) -> str:
    """What a dev split's metrics end with: nothing for the one that the main metric is of."""
    return "_mismatched" if split == "dev_mismatched" else ""
