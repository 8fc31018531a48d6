"""What guessers without a network reach on a task's data: the scale that fine-tuning is read against.

Shapes: n rows, C outputs: classes, one value, or yes-or-no questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples, Labels
from nystromformer.tasks.finetuning.target import NEVER, Classes, Questions, Value
from nystromformer.tasks.finetuning.trainable import Metrics

if TYPE_CHECKING:
    from nystromformer.tasks.finetuning.words import Words

Guessed = Classes | Value | Questions
"""What there are guessers of."""


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
        found[name] = {metric: Spread(value, None) for metric, value in measured(scores, compared, metrics).items()}
    return found


def text_baselines(
    train: EncodedTexts,
    compared: Mapping[str, EncodedTexts],
    target: Guessed,
    metrics: Metrics,
    seeds: Sequence[int],
) -> dict[str, dict[str, Spread]]:
    """Metrics of three guessers on validation and test splits.

    One answer for every row, as `constant_baseline` calls it. "bag of words": logistic regression, of questions one
    for each, or ridge regression of values, on which tokens a row has; for pairs on those of each sentence and those
    that both have. It sees the rows cut to the length that the model sees. "tf-idf": the same on words and pairs of
    neighbouring words of the whole texts, see `Words`.

    Args:
        compared: the splits to score them on, by the ending of their metrics' names.
        target: what is learned.
        metrics: from scores (n, C) and labels (n,).
        seeds: each draws its own resample of the training rows (as many, with replacement).

    Returns:
        By the guesser's name, then by the metric's. The regressions are those of all training rows; their deviation,
        for several seeds alone, is that of the regressions of resamples: what other training rows would have changed.
    """
    # Imported here: scikit-learn takes seconds.
    from scipy.sparse import csr_matrix

    from nystromformer.tasks.finetuning.bag_of_words import Fitted, Sample, choose_strength, resample, samples
    from nystromformer.tasks.finetuning.words import features, vectorizers_of

    constant = constant_baseline(train, compared, target, metrics)
    names = [name for figures in constant.values() for name in figures]
    learned, num_classes = learned_by(train, target)

    def regression(whole: Sample, inputs: Sequence[csr_matrix]) -> dict[str, Spread]:
        def figures_of(fitted: Fitted) -> dict[str, float]:
            scores = (fitted.scores(x_nF) for x_nF in inputs)
            return measured(dict(zip(compared, scores, strict=True)), compared, metrics)

        strength = choose_strength(whole)
        figures = figures_of(whole.fit(strength))
        drawn = seeds if len(seeds) > 1 else ()
        resampled = [figures_of(resample(whole, seed).fit(strength)) for seed in drawn]
        return {
            name: Spread(figures[name], Spread.of([each[name] for each in resampled]).deviation if resampled else None)
            for name in names
        }

    others = list(compared.values())
    vectorizers = vectorizers_of(train.texts)
    words_nF, *others_nF = (features(vectorizers, examples.texts) for examples in (train, *others))
    return constant | {
        "bag of words": regression(*samples(train, others, learned, num_classes)),
        "tf-idf": regression(Sample(words_nF, learned, num_classes), others_nF),
    }


def lacks_bag(train: Examples, found: Mapping[str, object]) -> bool:
    """Whether guessers of texts were measured without the bag of words, as they are without `--baselines`."""
    return isinstance(train, EncodedTexts) and "bag of words" not in found


def kept_words(folder: Path, train: EncodedTexts, target: Guessed) -> Words:
    """The regression on words of training rows, from the folder that keeps it or fitted now and kept there.

    Raises:
        UserError: something else is there, or it cannot be written.
    """
    from nystromformer.tasks.finetuning.words import Words, fit_words

    words = Words.read(folder)
    if words is None:
        words = fit_words(train.texts, *learned_by(train, target))
        words.save(folder)
    return words


def words_baseline(
    words: Words, compared: Mapping[str, EncodedTexts], metrics: Metrics
) -> dict[str, dict[str, Spread]]:
    """What it reaches, as `text_baselines` has it."""
    scores = {ending: words.scores(examples.texts) for ending, examples in compared.items()}
    return {"tf-idf": {name: Spread(value, None) for name, value in measured(scores, compared, metrics).items()}}


def measured(
    scores: Mapping[str, NDArray[Any]], compared: Mapping[str, Examples], metrics: Metrics
) -> dict[str, float]:
    """Metrics of scores (n, C) of each split, by its ending."""
    figures: dict[str, float] = {}
    for ending, examples in compared.items():
        values = metrics(torch.from_numpy(scores[ending]).float(), torch.from_numpy(examples.labels))
        figures |= {name + ending: value for name, value in values.items()}
    return figures


def learned_by(train: Examples, target: Guessed) -> tuple[Labels, int | None]:
    """What a regression learns, and of how many classes: classes or values (n,), or the answers (n, C) to questions."""
    assert train.labels is not None
    return _learned(train.labels, target), target.count if isinstance(target, Classes) else None


def _learned(labels: Labels, target: Guessed) -> Labels:
    """What a regression learns: classes or values (n,), or the answers (n, C) to questions."""
    if not isinstance(target, Questions):
        return labels
    answers: NDArray[np.int64] = target.answers(torch.from_numpy(labels)).numpy().astype(np.int64)
    return answers


def _constants(labels: Labels, target: Guessed) -> dict[str, NDArray[np.float64]]:
    """By name, scores (C,) that are the same for all rows: the mean, the classes' frequencies, those of a yes as
    logits; of ordered classes also the most frequent one, which is more often right than the median.
    """
    if isinstance(target, Value):
        return {"mean value": np.array([labels.mean(dtype=np.float64)])}
    if isinstance(target, Questions):
        answers_nC = torch.from_numpy(_learned(labels, target)).double()
        constants = {target.constant: answers_nC.mean(0)}
        if labels.ndim == 1:
            constants["majority class"] = answers_nC[int((labels == np.bincount(labels).argmax()).argmax())]
        return {name: torch.logit(yes_C, eps=NEVER).numpy() for name, yes_C in constants.items()}
    return {"majority class": np.bincount(labels, minlength=target.count) / len(labels)}
