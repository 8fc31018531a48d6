"""What is learned of a text: one of some classes, several at once, a value, or one of ordered classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from nystromformer.files.checked_json import STRICT

Kind = Literal["classes", "several", "value", "ordered"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Answer:
    """What is learned of each text, and how its label becomes a number and back."""

    __pydantic_config__ = STRICT

    kind: Kind
    names: tuple[str, ...] = ()
    """Of the classes, in the order of their numbers; none of a value."""
    mean: float = 0.0
    deviation: float = 1.0
    """Of the training rows' values: what is learned is how many deviations a value is from their mean."""

    @property
    def outputs(self) -> int:
        """Of the head."""
        return 1 if self.kind == "value" else len(self.names) - (self.kind == "ordered")
