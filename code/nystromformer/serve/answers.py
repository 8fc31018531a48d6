"""What a service answers with, and what it asks of a model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Choice:
    """One of the answers: how likely it is, or a value."""

    label: str
    probability: float | None
    value: float | None = None


@dataclass(frozen=True)
class Answer:
    """What a model says of a text."""

    choices: list[Choice]
    """The likeliest first; of several masked tokens those of the first, then those of the next."""
    tokens: int
    """That the model read, special ones included, in all its rows."""
    cut: bool
    """Whether the text was longer."""
    rows: int = 1
    """That the text took."""

    def as_data(self) -> dict[str, Any]:
        """As plain data; a choice has either a probability or a value."""
        choices = [{name: each for name, each in asdict(choice).items() if each is not None} for choice in self.choices]
        return asdict(self) | {"choices": choices}


class Model(Protocol):
    """A trained model; its methods are called in one thread, one call after another."""

    name: str
    """Of the run, for people."""
    does: str
    """What it does with a text, in a sentence."""
    longest: int
    """Tokens of the longest row that it reads."""
    window: tuple[int, int] | None
    """Rows, and tokens of each, that are computed together of a text that takes several; None: each takes one."""

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        """Of each text, in their order.

        Raises:
            ValueError: a text that it cannot answer; says why.
        """

    def explain(self, text: str) -> str | None:
        """A page with the tokens shaded that the answer goes by; None where the model has none."""
