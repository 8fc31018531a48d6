"""What guessers without a network reach on a task's data: the scale that fine-tuning is read against.

Shapes: n rows, C outputs: classes, or one value.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples, Labels
from nystromformer.tasks.finetuning.spread import Spread
from nystromformer.tasks.finetuning.trainable import Metrics
from nystromformer.wording import number_of


def constant_baseline(
    train: Examples, compared: Mapping[str, Examples], num_classes: int | None, metrics: Metrics
) -> dict[str, dict[str, Spread]]:
    """Metrics of one answer for every row: "majority class", or "mean value" where the label is a value.

    Args:
        compared: the splits to score it on, by the ending of their metrics' names.
        num_classes: None where the label is a value.

    Raises:
        ValueError: a split without rows or labels, or labels that are no classes.
    """
    for examples in (train, *compared.values()):
        _check_labels(examples, num_classes)
    assert train.labels is not None, "as was checked"
    constant_C = _constant(train.labels, num_classes)
    figures: dict[str, Spread] = {}
    for ending, examples in compared.items():
        scores_nC = torch.from_numpy(np.tile(constant_C, (len(examples), 1))).float()
        values = metrics(scores_nC, torch.from_numpy(examples.labels))
        figures |= {name + ending: Spread(value, None) for name, value in values.items()}
    return {"mean value" if num_classes is None else "majority class": figures}


def text_baselines(
    train: EncodedTexts,
    compared: Mapping[str, EncodedTexts],
    num_classes: int | None,
    metrics: Metrics,
    seeds: Sequence[int],
) -> dict[str, dict[str, Spread]]:
    """Metrics of two guessers on validation and test splits.

    "majority class", or "mean value" where the label is a value: one answer for every row. "bag of words": logistic
    regression, or ridge regression of values, on which tokens a row has; for pairs on those of each sentence and those
    that both have. It sees the rows cut to the length that the model sees.

    Args:
        compared: the splits to score them on, by the ending of their metrics' names.
        num_classes: None where the label is a value.
        metrics: from scores (n, C) and labels (n,).
        seeds: each draws its own tenth of the training rows to choose the penalty by, and its own resample of them (as
            many rows, with replacement).

    Returns:
        By the guesser's name, then by the metric's. Of the bag of words the mean is over the regressions of all
        training rows with the seeds' penalties, which hardly differ; the deviation, for several seeds alone, is that of
        the regressions of their resamples: what other training rows would have changed.

    Raises:
        ValueError: no seed, a split without rows or labels, labels that are no classes, or pairs beside single texts.
    """
    if not seeds:
        raise ValueError("expected at least one seed, found none")
    for examples in (train, *compared.values()):
        _check(examples, train, num_classes)

    # Imported here: scikit-learn is an extra.
    from nystromformer.tasks.finetuning.bag_of_words import Regression, choose_strength, resample, samples

    def measured(scores: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        figures: dict[str, float] = {}
        for ending, examples in compared.items():
            values = metrics(torch.from_numpy(scores[ending]).float(), torch.from_numpy(examples.labels))
            figures |= {name + ending: value for name, value in values.items()}
        return figures

    def figures_of(regression: Regression) -> dict[str, float]:
        return measured({ending: regression.scores(x_nF) for ending, x_nF in zip(compared, inputs, strict=True)})

    constant = constant_baseline(train, compared, num_classes, metrics)
    names = [name for figures in constant.values() for name in figures]
    whole, inputs = samples(train, list(compared.values()), num_classes)
    strengths = [choose_strength(whole, seed) for seed in seeds]
    by_strength = {strength: figures_of(whole.fit(strength)) for strength in dict.fromkeys(strengths)}
    fitted = [by_strength[strength] for strength in strengths]
    drawn = zip(seeds, strengths, strict=True) if len(seeds) > 1 else ()
    resampled = [figures_of(resample(whole, seed).fit(strength)) for seed, strength in drawn]
    return {
        **constant,
        "bag of words": {name: _spread(name, fitted, resampled) for name in names},
    }


def _constant(labels: Labels, num_classes: int | None) -> NDArray[np.float64]:
    """Scores (C,) that are the same for all rows: the mean, or the classes' frequencies."""
    if num_classes is None:
        return np.array([labels.mean(dtype=np.float64)])
    return np.bincount(labels, minlength=num_classes) / len(labels)


def _spread(name: str, fitted: Sequence[Mapping[str, float]], resampled: Sequence[Mapping[str, float]]) -> Spread:
    """The mean of the regressions of all rows, and the deviation of those of resamples, where there are some."""
    mean = Spread.of([figures[name] for figures in fitted]).mean
    return Spread(mean, Spread.of([figures[name] for figures in resampled]).deviation if resampled else None)


def _check_labels(examples: Examples, num_classes: int | None) -> None:
    if examples.labels is None or not len(examples):
        raise ValueError(f"{examples.name}: expected rows with labels, found {number_of(len(examples), 'row')}")
    if num_classes is not None and not set(np.unique(examples.labels)) <= set(range(num_classes)):
        labels = ", ".join(map(str, np.unique(examples.labels)))
        raise ValueError(f"{examples.name}: expected classes from 0 to {num_classes - 1}, found {labels}")


def _check(examples: EncodedTexts, train: EncodedTexts, num_classes: int | None) -> None:
    _check_labels(examples, num_classes)
    if (examples.texts.second is None) != (train.texts.second is None):
        raise ValueError(f"{examples.name} and {train.name}: expected single texts or pairs in both, found one of each")
