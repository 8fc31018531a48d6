"""What guessers without a network reach on a task's data: the scale that fine-tuning is read against.

Shapes: n rows, C outputs: classes, one value, or yes-or-no questions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples, Labels
from nystromformer.tasks.finetuning.target import NEVER, Pooled, Questions, Value
from nystromformer.wording import number_of

if TYPE_CHECKING:
    from nystromformer.tasks.finetuning.opening import Opened

Scores = Mapping[str, NDArray[Any]]
"""(n, C) of each split, by the ending of its metrics' names."""
logger = logging.getLogger(__name__)
Guesses = dict[str, dict[str, Spread]]
"""Metrics by the guesser's name; of test data their names end in "_test"."""


def measure_baselines(opened: Opened) -> Guesses:
    """What guessers reach: one answer for all rows, tf-idf, and the task's own rules."""
    task, splits, train = opened.task, opened.splits, opened.splits.train
    target = task.target
    labelled = {f"_{name}": rows for name, rows in opened.test.items() if rows.labels is not None}
    compared = splits.validation | labelled
    guesses: Guesses = {}
    if isinstance(target, Pooled):
        assert train.labels is not None
        for name, constant_C in constants(train.labels, target).items():
            scores: Scores = {ending: np.tile(constant_C, (len(rows), 1)) for ending, rows in compared.items()}
            guesses[name] = _metrics(opened, scores, compared)
        texts = {ending: rows.texts for ending, rows in compared.items() if isinstance(rows, EncodedTexts)}
        if isinstance(train, EncodedTexts) and len(texts) == len(compared):
            from nystromformer.tasks.finetuning.linear import fit_words  # scikit-learn takes seconds

            logger.info("fitting tf-idf to the words of %s", number_of(len(train), "text"))
            words = fit_words(target, train.texts)
            scores = {ending: words.scores(each) for ending, each in texts.items()}
            guesses["tf-idf"] = _metrics(opened, scores, compared)
    return guesses | task.rules(splits, compared)


def _metrics(opened: Opened, scores: Mapping[str, NDArray[Any]], compared: Mapping[str, Examples]) -> dict[str, Spread]:
    figures: dict[str, Spread] = {}
    for ending, examples in compared.items():
        found = torch.from_numpy(scores[ending]).float()
        values = opened.task.metrics(found, torch.from_numpy(examples.labels))
        figures |= {name + ending: Spread(value, None) for name, value in values.items()}
    return figures


def constants(labels: Labels, target: Pooled) -> dict[str, NDArray[np.float64]]:
    """By name, scores (C,) that are the same for all rows: the mean, the classes' frequencies, those of a yes as
    logits; of ordered classes also the most frequent one, which is more often right than the median.
    """
    if isinstance(target, Value):
        return {"mean value": np.array([labels.mean(dtype=np.float64)])}
    if isinstance(target, Questions):
        answers_nC = target.answers(torch.from_numpy(labels)).double()
        constants = {target.constant: answers_nC.mean(0)}
        if labels.ndim == 1:
            constants["majority class"] = answers_nC[int((labels == np.bincount(labels).argmax()).argmax())]
        return {name: torch.logit(yes_C, eps=NEVER).numpy() for name, yes_C in constants.items()}
    return {"majority class": np.bincount(labels, minlength=target.count) / len(labels)}
