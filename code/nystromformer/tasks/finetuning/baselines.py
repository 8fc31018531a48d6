"""What guessers without a network reach on a task's data: the scale that fine-tuning is read against.

Shapes: n rows, C outputs: classes, one value, or yes-or-no questions.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples, Labels
from nystromformer.tasks.finetuning.target import NEVER, Classes, Questions, Value
from nystromformer.tasks.finetuning.trainable import Metrics

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
        found[name] = {}
        for ending, examples in compared.items():
            scores_nC = torch.from_numpy(np.tile(constant_C, (len(examples), 1))).float()
            values = metrics(scores_nC, torch.from_numpy(examples.labels))
            found[name] |= {metric + ending: Spread(value, None) for metric, value in values.items()}
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
    neighbouring words of the whole texts.

    Args:
        compared: the splits to score them on, by the ending of their metrics' names.
        target: what is learned.
        metrics: from scores (n, C) and labels (n,).
        seeds: each draws its own tenth of the training rows to choose the penalty by, and its own resample of them (as
            many rows, with replacement).

    Returns:
        By the guesser's name, then by the metric's. Of the regressions the mean is over those of all training rows with
        the seeds' penalties, which hardly differ; the deviation, for several seeds alone, is that of the regressions of
        their resamples: what other training rows would have changed.
    """
    # Imported here: scikit-learn, which brings scipy, is an extra.
    from scipy.sparse import csr_matrix

    from nystromformer.tasks.finetuning.bag_of_words import (
        Fitted,
        Sample,
        choose_strength,
        resample,
        samples,
        tfidf_samples,
    )

    def measured(scores: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        figures: dict[str, float] = {}
        for ending, examples in compared.items():
            values = metrics(torch.from_numpy(scores[ending]).float(), torch.from_numpy(examples.labels))
            figures |= {name + ending: value for name, value in values.items()}
        return figures

    constant = constant_baseline(train, compared, target, metrics)
    names = [name for figures in constant.values() for name in figures]
    assert train.labels is not None
    learned, num_classes = _learned(train.labels, target), target.count if isinstance(target, Classes) else None

    def regressions(whole: Sample, inputs: Sequence[csr_matrix]) -> dict[str, Spread]:
        def figures_of(regression: Fitted) -> dict[str, float]:
            return measured({ending: regression.scores(x_nF) for ending, x_nF in zip(compared, inputs, strict=True)})

        strengths = [choose_strength(whole, seed) for seed in seeds]
        by_strength = {strength: figures_of(whole.fit(strength)) for strength in dict.fromkeys(strengths)}
        fitted = [by_strength[strength] for strength in strengths]
        drawn = zip(seeds, strengths, strict=True) if len(seeds) > 1 else ()
        resampled = [figures_of(resample(whole, seed).fit(strength)) for seed, strength in drawn]
        return {name: _spread(name, fitted, resampled) for name in names}

    kinds = {"bag of words": samples, "tf-idf": tfidf_samples}
    others = list(compared.values())
    return constant | {kind: regressions(*draw(train, others, learned, num_classes)) for kind, draw in kinds.items()}


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


def _spread(name: str, fitted: Sequence[Mapping[str, float]], resampled: Sequence[Mapping[str, float]]) -> Spread:
    """The mean of the regressions of all rows, and the deviation of those of resamples, where there are some."""
    mean = Spread.of([figures[name] for figures in fitted]).mean
    return Spread(mean, Spread.of([figures[name] for figures in resampled]).deviation if resampled else None)
