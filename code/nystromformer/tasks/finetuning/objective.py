"""A run whose loss, threshold and best epoch follow a metric that is no sum over examples.

Shapes: I examples of a batch, n rows, C classes. A score is the log-odds of label 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nystromformer.errors import UserError
from nystromformer.objectives import (
    Auroc,
    AveragePrecision,
    FBeta,
    Objective,
    PrecisionAtRecall,
    RecallAtPrecision,
)
from nystromformer.runs.objective import TEMPERATURE, THRESHOLD, ObjectiveSettings
from nystromformer.tasks.finetuning.definition import Splits
from nystromformer.tasks.finetuning.examples import Labels
from nystromformer.tasks.finetuning.target import Classes, Target

Array = NDArray[Any]


def check_objective(settings: ObjectiveSettings, target: Target, splits: Splits) -> str:
    """Check that a task can be trained for an objective, and say how many of its labels are positive."""
    name = f"--objective {settings.name}"
    if not isinstance(target, Classes) or target.count != 2:
        classes = f"{target.count} classes" if isinstance(target, Classes) else "another kind of label"
        raise UserError(f"{name}: expected a task of two classes, found {classes}")
    if target.weights:
        raise UserError(f"{name}: expected no --class_weights with it")
    shares = []
    for split, labels in (("training", splits.train.labels), ("validation", splits.validation[""].labels)):
        assert labels is not None, "both have labels"
        if len(found := np.unique(labels)) < 2:
            raise UserError(f"{name}: expected labels 0 and 1 in the {split} data, found only {found[0]:g}")
        shares.append(f"{100 * float((labels == 1).mean()):.3g} % of {split}")
    return f"{name}: positive is {splits.positive or 'label 1'}, {' and '.join(shares)}"


def log_odds(scores: Tensor) -> Tensor:
    """Of label 1 of two classes, (n,)."""
    return scores[:, 1] - scores[:, 0]


class ObjectiveLoss(nn.Module):
    """The loss of each example in the place of cross-entropy (`eban`) or beside it (`dual`).

    It is a part of the model, as `objective`, so that its variables are in every checkpoint.
    """

    def __init__(self, settings: ObjectiveSettings, labels: Labels, warm_steps: int) -> None:
        super().__init__()
        self.settings, self.warm_steps = settings, warm_steps
        self.of = _build(settings, float((labels == 1).mean()))
        self.is_warm = False

    def at_step(self, step: int) -> None:
        """Of the training loop, before each step."""
        self.is_warm = step >= self.warm_steps
        for module in self.modules():
            if isinstance(module, Objective):
                module.project()

    def forward(self, scores: Tensor, labels: Tensor, losses_I: Tensor) -> Tensor:
        """What is learned of each example, (I,), by scores as of `log_odds` and the task's own losses."""
        found_I = self.of.each(scores, labels.float())
        if not self.is_warm:
            # Its variables are part of the graph all the same, as several processes expect.
            return losses_I + 0.0 * found_I
        return found_I if self.settings.method == "eban" else losses_I + found_I

    def variables(self) -> dict[str, float]:
        """The objective's own, of several of a kind the mean."""
        return {name.removeprefix("of."): float(value.detach().mean()) for name, value in self.named_parameters()}


def adjusted(scores_NC: Tensor, metrics: Mapping[str, float]) -> Tensor:
    """Scores whose higher one is the class that an epoch's threshold decides for, divided by its temperature."""
    if threshold := metrics.get(THRESHOLD):
        scores_NC = scores_NC - torch.tensor([0.0, threshold])
    temperature = metrics.get(TEMPERATURE)
    return scores_NC if temperature is None else scores_NC / temperature


def decided(content: Mapping[str, Any]) -> dict[str, Any]:
    """A run's weights whose scores are `adjusted`."""
    weights = dict(content["model"])
    history = content.get("history") or [{"metrics": {}}]
    metrics = history[-1]["metrics"]
    if threshold := metrics.get(THRESHOLD):
        bias_C = weights["head.classifier.bias"]
        weights["head.classifier.bias"] = bias_C - torch.tensor([0.0, threshold], dtype=bias_C.dtype)
    if temperature := metrics.get(TEMPERATURE):
        last = [name for name in weights if name.startswith("head.classifier.")]
        weights |= {name: weights[name] / torch.tensor(temperature, dtype=weights[name].dtype) for name in last}
    return {**content, "model": weights}


def choose_threshold(settings: ObjectiveSettings, scores: Array, labels: Array) -> float:
    """The score above which label 1 is to be predicted, so that the metric is the best on these rows: of precision at a
    recall, and recall at a precision, among those that keep the constraint, or, where none does, that of the highest
    precision; of AUROC and average precision, which need none, that of the best accuracy.
    """
    between, found, wrong = _counts(scores, labels)
    ones = float((labels == 1).sum())
    if settings.name in ("auroc", "average_precision"):
        values = found - wrong
    else:
        values = _values(settings, found, wrong, ones)
        if (values < 0).all():
            values = found / np.maximum(found + wrong, 1)
    return float(between[int(np.argmax(values))])


def measure(settings: ObjectiveSettings, scores: Array, labels: Array, threshold: float) -> dict[str, float]:
    """The metric on some rows: F-beta with the threshold, the others whatever it is. Recall at a precision that
    no threshold reaches is 0.
    """
    ones = float((labels == 1).sum())
    if settings.name in ("auroc", "average_precision"):
        # Imported here: it takes seconds.
        from torchmetrics.functional.classification import binary_auroc, binary_average_precision

        metric = binary_auroc if settings.name == "auroc" else binary_average_precision
        chances = torch.from_numpy(scores.astype(np.float64)).sigmoid()
        return {settings.name: metric(chances, torch.from_numpy(labels.astype(np.int64))).item()}
    if settings.target is None:
        chosen = scores > threshold
        found, wrong = (np.array([float((chosen & (labels == label)).sum())]) for label in (1, 0))
    else:
        _, found, wrong = _counts(scores, labels)
    return {settings.name: max(0.0, float(_values(settings, found, wrong, ones).max()))}


def measure_tested(settings: ObjectiveSettings, scores: Array, labels: Array, threshold: float) -> dict[str, float]:
    """The metric on rows that the threshold was not chosen on; with a constraint, which other rows may not keep, also
    what precision and recall are with it.
    """
    figures = measure(settings, scores, labels, threshold)
    if settings.target is not None:
        chosen = scores > threshold
        found = float((chosen & (labels == 1)).sum())
        figures |= {"precision": found / max(1, chosen.sum()), "recall": found / max(1, (labels == 1).sum())}
    return figures


def _counts(scores: Array, labels: Array) -> tuple[Array, Array, Array]:
    """All thresholds that make a difference, the highest first, and the true and false positives of each: (k,) each."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order].astype(np.float64)
    last = np.flatnonzero(np.append(np.diff(ranked) != 0, True))
    ones, every = np.cumsum(labels[order] == 1), np.arange(1, len(ranked) + 1)
    found = np.append(0, ones[last]).astype(np.float64)
    named = np.append(0, every[last]).astype(np.float64)
    values = ranked[last]
    between = np.concatenate([[values[0] + 1], (values[1:] + values[:-1]) / 2, [values[-1] - 1]])
    return between, found, named - found


def _values(settings: ObjectiveSettings, found: Array, wrong: Array, ones: float) -> Array:
    """The metric of each number of true and false positives; -1 where the constraint is not kept."""
    named = found + wrong
    if settings.name == "f_beta":
        assert settings.beta is not None
        squared = settings.beta**2
        return np.asarray((1 + squared) * found / np.maximum(squared * ones + named, 1e-12))
    assert settings.target is not None
    precision, recall = found / np.maximum(named, 1), found / max(ones, 1)
    if settings.name == "precision_at_recall":
        return np.where(recall >= settings.target, precision, -1.0)
    return np.where((precision >= settings.target) & (named > 0), recall, -1.0)


def _build(settings: ObjectiveSettings, share: float) -> Objective:
    if settings.name == "f_beta":
        assert settings.beta is not None
        return FBeta(share, settings.beta)
    if settings.name == "auroc":
        return Auroc(share)
    if settings.name == "average_precision":
        return AveragePrecision(share)
    assert settings.target is not None
    if settings.name == "recall_at_precision":
        return RecallAtPrecision(settings.target, share)
    return PrecisionAtRecall(settings.target, share)
