"""What guessers without a network reach on a task's data: the scale that fine-tuning is read against.

Shapes: n rows, F features (the first is every row's, for the bias), C outputs: classes, or one value.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.data.counter import permute, random_bits
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.finetuning.spread import Spread
from nystromformer.tasks.finetuning.trainable import Metrics

STRENGTHS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""L2 penalties to choose from, strongest first: the factor of half the squared weights beside the rows' summed loss."""
_HELD_OUT_STREAM, _RESAMPLE_STREAM = 40, 41
_FIRST, _SECOND, _COMMON = range(3)


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

    def measured(scores: Mapping[str, Tensor]) -> dict[str, float]:
        found: dict[str, float] = {}
        for ending, examples in compared.items():
            values = metrics(scores[ending].float(), torch.from_numpy(examples.labels))
            found |= {name + ending: value for name, value in values.items()}
        return found

    targets_nC = _targets(train, num_classes)
    # Of one-hot targets the mean is the classes' frequencies.
    constant_1C = targets_nC.mean(0, keepdim=True)
    constant = measured({ending: constant_1C.expand(len(rows), -1) for ending, rows in compared.items()})

    bags = bags_of(train)
    known = np.unique(bags.features)
    everything = Sample.of(bags, known, targets_nC, num_classes is not None)
    inputs = {ending: _matrix(bags_of(examples), known) for ending, examples in compared.items()}
    weights: dict[float, Tensor] = {}
    fitted: list[dict[str, float]] = []
    resampled: list[dict[str, float]] = []
    for seed in seeds:
        strength = _choose_strength(bags, known, everything, seed)
        if strength not in weights:
            weights[strength] = everything.fit(strength)
        fitted.append(measured({ending: x_nF @ weights[strength] for ending, x_nF in inputs.items()}))
        if len(seeds) > 1:
            drawn = _resample(bags.size, seed)
            sample = Sample.of(bags.select(drawn), known, targets_nC[drawn], everything.classes)
            weights_FC = sample.fit(strength, weights[strength])
            resampled.append(measured({ending: x_nF @ weights_FC for ending, x_nF in inputs.items()}))
    means = {name: Spread.of([found[name] for found in fitted]).mean for name in constant}
    deviations = {name: Spread.of([found[name] for found in resampled]).deviation for name in constant if resampled}
    return {
        "mean value" if num_classes is None else "majority class": {k: Spread.of([v]) for k, v in constant.items()},
        "bag of words": {name: Spread(mean, deviations.get(name)) for name, mean in means.items()},
    }


@dataclass(frozen=True)
class Bags:
    """Which features each row has: pairs of a row's and a feature's number, ascending, none twice."""

    size: int
    """Rows."""
    rows: Ints
    features: Ints

    def select(self, chosen: Ints) -> "Bags":
        """Rows by their numbers, in this order, each as often as it is named."""
        starts = np.searchsorted(self.rows, np.arange(self.size + 1))
        sizes = np.diff(starts)[chosen]
        rows = np.repeat(np.arange(len(chosen)), sizes)
        within = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[rows]
        return Bags(len(chosen), rows, self.features[starts[chosen][rows] + within])


@dataclass(frozen=True)
class Sample:
    """Rows to learn from; sparse matrices in float64, because near the optimum float32's losses are all noise."""

    x_nF: Tensor
    x_Fn: Tensor
    targets_nC: Tensor
    classes: bool
    """Whether the targets are classes, one-hot, or values."""

    @classmethod
    def of(cls, bags: Bags, known: Ints, targets_nC: Tensor, classes: bool) -> "Sample":
        x_nF = _matrix(bags, known)
        with _quiet():
            return cls(x_nF, x_nF.t().to_sparse_csr(), targets_nC, classes)

    def loss(self, weights_FC: Tensor) -> float:
        """The mean over the rows, without penalty."""
        return float(self._losses(self.x_nF @ weights_FC).mean())

    def objective(self, weights_FC: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Mean loss with the penalty, which spares the bias, and its gradient by the weights."""
        rows = len(self.targets_nC)
        scores_nC = self.x_nF @ weights_FC
        guesses_nC = scores_nC.softmax(-1) if self.classes else scores_nC
        penalised_FC = weights_FC.clone()
        penalised_FC[0] = 0
        gradient_FC = (self.x_Fn @ (guesses_nC - self.targets_nC) + strength * penalised_FC) / rows
        return self._losses(scores_nC).mean() + strength / (2 * rows) * penalised_FC.square().sum(), gradient_FC

    def fit(self, strength: float, start_FC: Tensor | None = None) -> Tensor:
        """The weights (F, C) at the optimum, which is unique but for a shift of all classes' biases."""
        weights_FC = self.x_nF.new_zeros(self.x_nF.shape[1], self.targets_nC.shape[1], layout=torch.strided)
        if start_FC is not None:
            weights_FC.copy_(start_FC)
        search = torch.optim.LBFGS(
            [weights_FC], max_iter=2000, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
        )

        def closure() -> float:
            value, weights_FC.grad = self.objective(weights_FC, strength)
            return float(value)

        search.step(closure)  # type: ignore[no-untyped-call]
        return weights_FC

    def _losses(self, scores_nC: Tensor) -> Tensor:
        if self.classes:
            return F.cross_entropy(scores_nC, self.targets_nC, reduction="none")
        return (scores_nC - self.targets_nC).square().squeeze(-1) / 2


def _choose_strength(bags: Bags, known: Ints, everything: Sample, seed: int) -> float:
    """The penalty whose weights of nine tenths of the rows do best on the others; the strongest for under ten rows."""
    held = bags.size // 10
    if not held:
        return STRENGTHS[0]
    outside = np.zeros(bags.size, dtype=bool)
    outside[permute(np.arange(held), bags.size, seed, _HELD_OUT_STREAM)] = True
    inner, outer = (
        Sample.of(bags.select(rows), known, everything.targets_nC[rows], everything.classes)
        for rows in (np.flatnonzero(~outside), np.flatnonzero(outside))
    )
    losses: dict[float, float] = {}
    weights_FC: Tensor | None = None
    for strength in STRENGTHS:
        weights_FC = inner.fit(strength, weights_FC)
        losses[strength] = outer.loss(weights_FC)
    return min(losses, key=losses.__getitem__)


def _resample(size: int, seed: int) -> Ints:
    """As many rows as there are, drawn with replacement."""
    drawn: Ints = (random_bits(seed, _RESAMPLE_STREAM, np.arange(size)) % np.uint64(size)).astype(np.int64)
    return drawn


def _check(examples: EncodedTexts, train: EncodedTexts, num_classes: int | None) -> None:
    if examples.labels is None or not len(examples):
        raise ValueError(f"{examples.name}: expected rows with labels, found {len(examples)} rows")
    if num_classes is not None and not set(np.unique(examples.labels)) <= set(range(num_classes)):
        found = ", ".join(map(str, np.unique(examples.labels)))
        raise ValueError(f"{examples.name}: expected classes from 0 to {num_classes - 1}, found {found}")
    if (examples.texts.second is None) != (train.texts.second is None):
        raise ValueError(f"{examples.name} and {train.name}: expected single texts or pairs in both, found one of each")


def _targets(examples: EncodedTexts, num_classes: int | None) -> Tensor:
    labels_n = torch.from_numpy(examples.labels)
    return labels_n.double()[:, None] if num_classes is None else F.one_hot(labels_n, num_classes).double()


def bags_of(examples: EncodedTexts) -> Bags:
    """The features of a split's rows: 0 for the bias, then three for each token: in A, in B, in both."""
    tokens = np.concatenate([examples.tokens_of(number) for number in range(len(examples))])
    starts = np.cumsum(examples.lengths) - examples.lengths
    rows = np.repeat(np.arange(len(examples)), examples.lengths)
    # A row is `<s> A </s>` or `<s> A </s> B </s>`, and no text holds the token of `</s>`.
    separators = tokens == tokens[-1]
    passed = np.cumsum(separators)
    sentence = passed - passed[starts][rows]
    words = ~separators
    words[starts] = False

    width = 1 + 3 * (int(tokens.max()) + 1)
    plain = rows * width + 1 + 3 * tokens
    first, second = (np.unique(plain[words & (sentence == block)]) for block in (_FIRST, _SECOND))
    common = np.intersect1d(first, second, assume_unique=True)
    bias = np.arange(len(examples)) * width
    pairs = np.sort(np.concatenate([bias, first + _FIRST, second + _SECOND, common + _COMMON]))
    return Bags(len(examples), pairs // width, pairs % width)


def _matrix(bags: Bags, known: Ints) -> Tensor:
    """(n, F) of zeros and ones, sparse; features that are not among the known ones are left out."""
    columns = np.searchsorted(known, bags.features)
    kept = known[np.minimum(columns, len(known) - 1)] == bags.features
    starts = np.searchsorted(bags.rows[kept], np.arange(bags.size + 1))
    columns = columns[kept]
    with _quiet():
        return torch.sparse_csr_tensor(
            torch.from_numpy(starts.astype(np.int32)),
            torch.from_numpy(columns.astype(np.int32)),
            torch.ones(len(columns), dtype=torch.float64),
            size=(bags.size, len(known)),
            check_invariants=True,
        )


def _quiet() -> AbstractContextManager[object]:
    """Without torch's word that its sparse matrices are new, and that it does not check them."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
