"""What guessers without a network reach on a task's data: the scale that fine-tuning is read against.

Shapes: n rows, C outputs: classes, one value, or yes-or-no questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples, Labels
from nystromformer.tasks.finetuning.target import NEVER, Guessed, Questions, Value
from nystromformer.tasks.finetuning.trainable import Metrics

if TYPE_CHECKING:
    from nystromformer.tasks.finetuning.linear import Words

Scores = Mapping[str, NDArray[Any]]
"""(n, C) of each split, by the ending of its metrics' names."""


def constant_baseline(
    train: Examples, compared: Mapping[str, Examples], target: Guessed, metrics: Metrics
) -> dict[str, dict[str, Spread]]:
    """Metrics of one answer for every row: "majority class", "mean value", or what questions call theirs.

    Args:
        compared: the splits to score it on, by the ending of their metrics' names.
    """
    assert train.labels is not None
    found: dict[str, dict[str, Spread]] = {}
    for name, constant_C in _constants(train.labels, target).items():
        scores = {ending: np.tile(constant_C, (len(examples), 1)) for ending, examples in compared.items()}
        found[name] = measured(scores, compared, metrics)
    return found


def words_baseline(words: Words, compared: Mapping[str, EncodedTexts], metrics: Metrics) -> dict[str, Spread]:
    """The same of the linear model on words."""
    return measured({ending: words.scores(rows.texts) for ending, rows in compared.items()}, compared, metrics)


def kept_words(folder: Path | None, train: EncodedTexts, target: Guessed) -> Words:
    """The linear model on the words of training rows, from the folder that keeps it, or fitted now and kept there.

    Raises:
        UserError: what is there is damaged.
    """
    from nystromformer.tasks.finetuning.linear import WORDS_FILE, Words, fit_words  # scikit-learn takes seconds

    if folder is not None and (folder / WORDS_FILE).is_file():
        return Words.read(folder / WORDS_FILE)
    words = fit_words(target, train.texts)
    if folder is not None:
        words.save(folder / WORDS_FILE)
    return words


def measured(scores: Scores, compared: Mapping[str, Examples], metrics: Metrics) -> dict[str, Spread]:
    """Metrics of scores."""
    figures: dict[str, Spread] = {}
    for ending, examples in compared.items():
        values = metrics(torch.from_numpy(scores[ending]).float(), torch.from_numpy(examples.labels))
        figures |= {name + ending: Spread(value, None) for name, value in values.items()}
    return figures


def _constants(labels: Labels, target: Guessed) -> dict[str, NDArray[np.float64]]:
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
