"""A table of documents as a fine-tuning task."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.config.ranges import MOST
from nystromformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer, save_tokenizer, train_tokenizer
from nystromformer.errors import UserError
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import open_table
from nystromformer.tasks.documents.cut import Cut, cut_of, encode_cut
from nystromformer.tasks.documents.divide import divide
from nystromformer.tasks.documents.labels import Look, kind_of, look_at, numbers_of
from nystromformer.tasks.documents.metrics import MAIN, score
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.recipe import Answer, Recipe, write_split
from nystromformer.tasks.documents.source import Rows, read_rows
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts, describe, reduce
from nystromformer.tasks.finetuning.examples import Examples, Labels, Texts, select
from nystromformer.tasks.finetuning.opening import Start
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.target import Target
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

_SHARE_WHOLE = 0.95
"""Of the texts that fit into rows whose length is chosen."""
_LOOKED_AT, _LENGTH_STEP = 2000, 32


class Documents(Definition):
    """What the labels of a table ask for. Each table is read when it is first needed, and once; relative names that are
    not in the current folder are in `default`.
    """

    kind = "classify"

    def __init__(self, question: Question, reading: Reading = Reading(), default: Path = Path()) -> None:  # noqa: B008
        self.question, self.reading, self.default = question, reading, default
        self.kind_of_labels, self.separator, self.order = kind_of(question.kind)
        self.asked_cut = cut_of(question.cut)
        self.cut = self.asked_cut or Cut()
        self.validation_table, self.class_weights = question.validation_table, question.weights
        self.name = f"documents/{question.name}"
        self.choices = {"table": question.name}
        self._of_lengths: list[str] = []
        self._test: dict[str, EncodedTexts] = {}

    def _read(self, place: str, labelled: bool = True, divided: bool = False) -> Rows:
        table = open_table(place, self.reading, None, self.default)
        return read_rows(table, self.question, self.separator, labelled, divided)

    @cached_property
    def rows(self) -> Rows:
        """The training table's."""
        return self._read(self.question.train, divided=True)

    @cached_property
    def test_rows(self) -> Rows | None:
        """The test table's; labels are read where it has them."""
        test = self.question.test
        return None if test is None else self._read(test, labelled=False)

    @cached_property
    def look(self) -> Look:
        """What the training table's labels are."""
        assert self.rows.labels is not None
        return look_at(self.rows.labels, self.kind_of_labels, self.order)

    @cached_property
    def tested(self) -> Texts | None:
        """The rows of the test table."""
        return None if self.test_rows is None else self.texts_of(self.test_rows, "test")

    def texts_of(self, rows: Rows, split: str) -> Texts:
        """A table's rows as texts."""
        labels = None if rows.labels is None else numbers_of(self.answer, rows.labels)
        second = [texts[1] for texts in rows.texts] if len(rows.text_columns) > 1 else None
        return Texts(f"{self.question.name} {split}", [texts[0] for texts in rows.texts], second, labels, rows.ids)

    @cached_property
    def _divided(self) -> tuple[Texts, Texts]:
        """The rows to train on and those to choose by."""
        texts = self.texts_of(self.rows, "train")
        if self.validation_table is not None:
            return texts, self.texts_of(self._read(self.validation_table), "validation")
        is_class = self.answer.kind in ("classes", "ordered")
        return divide(texts, self.question.validation, is_class, self.rows.group, self.rows.time)

    def _encode(self, texts: Texts, loading: Loading) -> EncodedTexts:
        return encode_cut(texts, loading.tokenizer, loading.length, loading.sentence_types, self.cut)

    def fit_length(self, tokenizer: Tokenizer, most: int) -> int:
        """Rows as long as 95 % of the training table's texts are, rounded up; where that is more than `most`, rows of
        that many, and windows unless another rule is asked for.
        """
        texts = self.texts_of(self.rows, "train")
        looked_at = select(texts, subset(len(texts), _LOOKED_AT))
        lengths = EncodedTexts(looked_at, tokenizer, MOST, sentence_types=False).lengths
        longest = int(np.quantile(lengths, _SHARE_WHOLE, method="higher"))
        length = min(most, -(-longest // _LENGTH_STEP) * _LENGTH_STEP)
        self.cut = self.asked_cut or Cut("head" if longest <= most else "windows")
        note = f"{100 * _SHARE_WHOLE:.0f} % of the texts have at most {longest:,} tokens: --length {length}"
        self._of_lengths = [note + ("" if longest <= most else f", the model's longest row, and --cut {self.cut.rule}")]
        return length

    def open_from_scratch(self, experiment: Experiment) -> Start:
        """Initial weights, and a tokenizer trained on the training table's texts, kept below the checkpoints."""
        # What is wrong with the tables is said before anything is written.
        _ = self._divided, self.target, self.tested
        size = experiment.config.model.vocab_size
        texts = [text for row in self.rows.texts for text in row]
        digest = hashlib.sha256(json.dumps([size, texts]).encode()).hexdigest()
        folder = experiment.checkpoints / self.name / "cache" / f"tokenizer-{digest[:12]}"
        if not (folder / TOKENIZER_FILE).is_file():
            logger.info("training a tokenizer of at most %s tokens on %s", f"{size:,}", self.rows.table.name)
            save_tokenizer(train_tokenizer(texts, size), folder)
        return None, load_tokenizer(folder)

    @property
    def answer(self) -> Answer:
        return self.look.answer

    @property
    def main_metric(self) -> str:  # type: ignore[override]  # known once the labels are
        return MAIN[self.answer.kind]

    @property
    def target(self) -> Target:  # type: ignore[override]
        return self.answer.target(self.weights)

    @cached_property
    def weights(self) -> tuple[float, ...] | None:
        """Of the classes."""
        weights, answer = self.class_weights, self.answer
        if weights is None:
            return None
        if answer.kind == "value":
            raise UserError("--class_weights: expected classes, found values")
        if isinstance(weights, str):
            labels = self._divided[0].labels
            assert labels is not None
            return tuple(balanced_weights(answer, labels))
        if unknown := [name for name in weights if name not in answer.names]:
            raise UserError(f"--class_weights: expected classes of {', '.join(answer.names)}, found {unknown[0]}")
        return tuple(weights.get(name, 1.0) for name in answer.names)

    def load(self, loading: Loading) -> Splits:
        train, held_out = self._divided
        tested = self.tested
        rows, reduced = reduce(train, loading.train_rows)
        encoded = self._encode(rows, loading), self._encode(held_out, loading)
        warnings = [*(f"{self.rows.table.name}: {doubt}" for doubt in self.look.doubts), *reduced]
        warnings += self._warn_of_cut_texts(encoded[0], loading) + _warn_of_trained_texts(rows, held_out)
        of_test, tables = list[str](), [held_out]
        if tested is not None:
            self._test = {"test": self._encode(tested, loading)}
            of_test = self._warn_of_cut_texts(self._test["test"], loading) + _warn_of_trained_texts(rows, tested)
            tables.append(tested)
        return Splits(
            encoded[0],
            {"": encoded[1]},
            warnings,
            notes=[*self._notes, *map(describe, encoded)],
            recipe=json.dumps({"answer": asdict(self.answer), "weights": self.weights}, sort_keys=True),
            shown=" ".join(hashlib.sha256(json.dumps(each.ids).encode()).hexdigest() for each in tables),
            test_warnings=of_test,
            positive=self.answer.names[1] if len(self.answer.names) == 2 else "",
        )

    def _warn_of_cut_texts(self, examples: EncodedTexts, loading: Loading) -> list[str]:
        """A warning of a split of which most texts lose their end; in windows they do not."""
        if self.cut.rule == "windows" or 2 * examples.truncated <= len(examples):
            return []
        return [
            f"{examples.name}: the end of {examples.truncated:,} of {number_of(len(examples), 'text')} is dropped, "
            f"beyond --length {loading.length}; raise --length, or use --cut windows"
        ]

    @property
    def _notes(self) -> list[str]:
        """What was understood, for people who meant something else."""
        answer, names, tested = self.answer, self.answer.names, self.test_rows
        shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        what = {
            "classes": f"one of the classes {shown}",
            "several": f"any of the labels {shown}",
            "ordered": f"one of these, in order, {shown}",
            "value": "a value",
        }[answer.kind]
        told = "" if self.question.kind else " (another kind is asked for by --kind)"
        table = self.rows.table.name
        notes = [f"{table}: {number_of(len(self.rows.texts), 'row')}; what is learned is {what}{told}"]
        notes += [f"  {line}" for line in self.look.lines]
        tables = [each for each in (self.rows, tested) if each is not None and each.left_out]
        notes += [f"{each.table.name}: {number_of(each.left_out, 'row')} left out (--skip_empty)" for each in tables]
        if tested is not None and tested.labels is None:
            notes.append(f"{tested.table.name}: no labels in {self.question.label}: predicted, and not scored")
        return [*notes, *self._of_lengths]

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        return score(self.answer, scores_NC, labels_N)

    def test(self, loading: Loading) -> dict[str, Examples]:
        return dict(self._test)

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`."""
        figures: dict[str, float] = {}
        for name, examples in {"validation": splits.validation[""], **test}.items():
            assert isinstance(examples, EncodedTexts)
            found = scores["" if name == "validation" else name]
            write_split(folder / f"{name}.tsv", examples.texts, found, self.answer, self.separator)
            if name in test and examples.labels is not None:
                figures = self.metrics(found, torch.from_numpy(examples.labels))
        return figures

    def texts(self) -> dict[str, Any]:
        assert self.rows.labels is not None
        names = self.rows.text_columns, self.rows.labels.columns
        return asdict(Recipe(self.answer, *names, self.separator, self.cut))


def balanced_weights(answer: Answer, labels: Labels) -> list[float]:
    """Weights by which each class counts as much as the others, 1 in the mean over the rows; of several labels, by
    which those that have a label count as much as those that have not. A class without rows gets 1.
    """
    if answer.kind == "several":
        have = labels.sum(0)
        return [float((len(labels) - count) / count) if 0 < count < len(labels) else 1.0 for count in have]
    counts = np.bincount(labels, minlength=len(answer.names))
    present = int((counts > 0).sum())
    return [float(len(labels) / (present * count)) if count else 1.0 for count in counts]


def _warn_of_trained_texts(train: Texts, scored: Texts) -> list[str]:
    """A warning of a table that has texts of the training rows: what is learned by heart scores there."""
    known, asked = (
        [(first.strip(), other.strip()) for first, other in zip(each.first, each.second or repeat(""), strict=False)]
        for each in (train, scored)
    )
    if not (count := sum(map(set(known).__contains__, asked))):
        return []
    are = "is" if count == 1 else "are"
    return [
        f"{scored.name}: {count:,} of its {number_of(len(scored), 'text')} {are} trained on as well; scores there say "
        "less of new texts"
    ]
