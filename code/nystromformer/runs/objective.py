"""What a run is trained for where that is not its task's own loss: a metric that is no sum over examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

from nystromformer.config.messages import Duplicate
from nystromformer.config.overrides import parse_value
from nystromformer.files.checked_json import STRICT, checked

Name = Literal["f_beta", "auroc", "average_precision", "precision_at_recall", "recall_at_precision"]
Method = Literal["eban", "dual", "cross_entropy"]
METHODS: Mapping[str, tuple[Method, ...]] = {
    "f_beta": ("dual", "cross_entropy"),
    "auroc": ("eban", "cross_entropy"),
    "average_precision": ("eban", "cross_entropy"),
    "precision_at_recall": ("eban", "cross_entropy"),
    "recall_at_precision": ("eban", "cross_entropy"),
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
    """What --objective says."""

    name: Name
    """Also of the metric, by which the best epoch is chosen."""
    method: Method
    """"cross_entropy": that is what is trained with; the metric chooses the epoch and the threshold."""
    beta: Annotated[float, Field(gt=0, lt=1000)] | None = None
    """Of f_beta."""
    target: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The recall or the precision that is to be reached."""
    warm_start: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of all steps that train with cross-entropy first."""
    stratify: bool = False
    """Whether each batch gets its share of positives."""
    __pydantic_config__ = STRICT

    def __str__(self) -> str:
        parameters = [f"{value:g}" for value in (self.beta, self.target) if value is not None]
        return " ".join([self.name, *parameters, f"by {self.method}", *(["stratified"] if self.stratify else [])])


def objective_of(text: str) -> ObjectiveSettings | None:
    """What `NAME,KEY=VALUE,…` asks for, such as `f_beta,beta=2`; None: the task's own loss. For typer."""
    if text == "cross_entropy":
        return None
    found = parse_value(text, is_attention=True)
    values: dict[str, Any] = dict(found) if isinstance(found, dict) else {"name": text}
    if repeated := [f"{key}: {value}" for key, value in values.items() if isinstance(value, Duplicate)]:
        raise typer.BadParameter(repeated[0])
    methods = METHODS.get(str(values.get("name")))
    if methods is None:
        expected = f"expected cross_entropy alone, or one of {', '.join(METHODS)}, as NAME,KEY=VALUE,…"
        raise typer.BadParameter(f"{text[:200]}: {expected}")
    name, method = values["name"], values.setdefault("method", methods[0])
    if method not in methods:
        raise typer.BadParameter(f"expected a method of {', '.join(methods)}, found {method!r:.60}")
    usual: dict[str, Any] = {"beta": 1.0} if name == "f_beta" else {"target": None} if name in WITH_TARGET else {}
    usual |= {} if method == "cross_entropy" else {"warm_start": WARM_START}
    known = ["method", "stratify", *usual]
    if unknown := sorted(values.keys() - {"name", *known}):
        raise typer.BadParameter(f"{name} by {method} has no {unknown[0]}; expected {', '.join(known)}")
    if name in WITH_TARGET and "target" not in values:
        raise typer.BadParameter(f"expected target=SHARE with it, such as {name},target=0.9")
    try:
        return checked(ObjectiveSettings, usual | values)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
