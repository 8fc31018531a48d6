"""What a run is trained for where that is not its task's own loss: a metric that is no sum over examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT

Name = Literal["f_beta", "auroc", "average_precision", "precision_at_recall", "recall_at_precision", "iou"]
Method = Literal["eban", "dual", "cross_entropy"]
METHODS: Mapping[Name, tuple[Method, ...]] = {
    "f_beta": ("dual", "cross_entropy"),
    "auroc": ("eban", "dual", "cross_entropy"),
    "average_precision": ("eban", "cross_entropy"),
    "precision_at_recall": ("eban", "dual", "cross_entropy"),
    "recall_at_precision": ("eban", "cross_entropy"),
    "iou": ("dual", "cross_entropy"),
}
"""Of each objective, the usual one first."""
WITH_TARGET = ("precision_at_recall", "recall_at_precision")
WARM_START = 0.2
THRESHOLD = "threshold"
"""What an epoch's record calls the log-odds above which label 1 is predicted, as chosen on its validation rows."""
TEMPERATURE = "temperature"
"""What it calls the number that scores are divided by before they become probabilities."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """What --objective and the flags beside it say."""

    name: Name
    """Also of the metric, by which the best epoch is chosen."""
    method: Method
    """"cross_entropy": that is what is trained with; the metric chooses the epoch and the threshold."""
    beta: Annotated[float, Field(gt=0)] | None = None
    """Of f_beta."""
    target: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The recall or the precision that is to be reached."""
    warm_start: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of all steps that train with cross-entropy first."""
    stratified: bool = False
    """Whether each batch gets its share of positives."""
    __pydantic_config__ = STRICT

    def __str__(self) -> str:
        parameters = [f"{value:g}" for value in (self.beta, self.target) if value is not None]
        return " ".join([self.name, *parameters, f"by {self.method}", *(["stratified"] if self.stratified else [])])


def objective_of(
    objective: str, method: str | None, beta: float | None, target: float | None, warm: float | None, stratify: bool
) -> ObjectiveSettings | None:
    """What the flags ask for; None: the task's own loss.

    Args:
        warm: --warm_start.

    Raises:
        UserError: a name that is none, a pair of objective and method that does not exist, or a parameter that is out
            of range, missing, or of another objective.
    """
    others = {"--objective_method": method, "--beta": beta, "--target": target, "--warm_start": warm}
    if objective == "cross_entropy":
        if given := [flag for flag, value in others.items() if value is not None] + ["--stratify"] * stratify:
            raise UserError(f"{given[0]}: expected another --objective than cross_entropy with it")
        return None
    name = next((each for each in METHODS if each == objective), None)
    if name is None:
        raise UserError(f"--objective: expected one of cross_entropy, {', '.join(METHODS)}; found {objective!r:.60}")
    chosen = METHODS[name][0] if method is None else next((each for each in METHODS[name] if each == method), None)
    if chosen is None:
        known = f"one of {', '.join(METHODS[name])} for {name}" if method in get_args(Method) else "eban or dual"
        raise UserError(f"--objective_method: expected {known}, found {method!r:.60}")
    if beta is not None and name != "f_beta":
        raise UserError(f"--beta: expected --objective f_beta with it, found {name}")
    if beta is not None and not 0 < beta < 1000:
        raise UserError(f"--beta: expected a number above 0 and below 1000, found {beta:g}")
    if target is None and name in WITH_TARGET:
        raise UserError(f"--objective {name}: expected --target with a share between 0 and 1 with it, such as 0.9")
    if target is not None and name not in WITH_TARGET:
        raise UserError(f"--target: expected --objective {' or '.join(WITH_TARGET)} with it, found {name}")
    if target is not None and not 0 < target < 1:
        raise UserError(f"--target: expected a share between 0 and 1, found {target:g}")
    if warm is not None and chosen == "cross_entropy":
        raise UserError("--warm_start: expected --objective_method eban or dual with it, found cross_entropy")
    if warm is not None and not 0 <= warm <= 1:
        raise UserError(f"--warm_start: expected a share from 0 to 1, found {warm:g}")
    usual = 0.0 if chosen == "cross_entropy" else WARM_START
    return ObjectiveSettings(
        name,
        chosen,
        (1.0 if beta is None else beta) if name == "f_beta" else None,
        target,
        usual if warm is None else warm,
        stratify,
    )
