"""What a service answers with, and what it asks of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Choice:
    """One of the answers, and how likely it is; of a value the value itself."""

    label: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """What a model says of a text."""

    choices: list[Choice]
    """The likeliest first; of several masked tokens those of the first, then those of the next."""
    tokens: int
    """That the model read, special ones included."""
    cut: bool
    """Whether the text was longer."""


class Model(Protocol):
    """A trained model; its methods are called in one thread, one call after another."""

    name: str
    """Of the run, for people."""
    does: str
    """What it does with a text, in a sentence."""
    longest: int
    """Tokens of the longest row that it reads."""

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        """Of each text, in their order.

        Raises:
            ValueError: a text that it cannot answer; says why.
        """

    def explain(self, text: str) -> str | None:
        """A page with the tokens shaded that the answer goes by; None where the model has none."""
