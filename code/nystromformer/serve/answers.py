"""What a service answers with, and what it asks of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import ConfigDict

_CHECKED = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False, revalidate_instances="always")
"""The API's schema says what stands under each field, and a number that JSON has no word for is an error."""


@dataclass(frozen=True)
class Choice:
    """One of the answers: how likely it is, or a value."""

    __pydantic_config__ = _CHECKED

    label: str
    """The class, the label or the token; `value` where the model predicts a value."""
    probability: float | None = None
    """From 0 to 1; absent where the model predicts a value."""
    value: float | None = None
    """What the model predicts; absent where it predicts probabilities."""


@dataclass(frozen=True)
class Answer:
    """What a model says of a text."""

    __pydantic_config__ = _CHECKED

    choices: list[Choice]
    """The likeliest first, at most ten. For each masked token five, in the order of the masked tokens."""
    tokens: int
    """Tokens that the model read, special ones included, in all its rows."""
    cut: bool
    """Whether the text was longer than what the model reads; the rest was not read."""
    rows: int = 1
    """Rows that the text took."""
    predicted: list[str] | None = None
    """The predicted class (of ordered classes the median), or all labels that hold. Absent where the model predicts a
    value or tokens.
    """


@dataclass(frozen=True)
class Source:
    """What a served model was loaded from."""

    __pydantic_config__ = _CHECKED

    experiment: str
    """The experiment folder's name."""
    task: str | None
    """The task of a fine-tuning run, such as `glue/SST-2`; null for a pretrained experiment."""
    folder: str
    """The name of the folder that is served."""
    seed: int | None
    """Seed of the training; null for an imported model."""
    checkpoint: str
    """Name of the file with the weights."""
    checkpoint_sha256: str
    """SHA-256 of that file."""
    tokenizer_sha256: str | None
    """SHA-256 of the tokenizer's `tokenizer.json`; null for a model without one."""


class Model(Protocol):
    """A trained model; its methods are called in one thread, one call after another."""

    name: str
    """Of the run, for people."""
    does: str
    """What it does with a text, in a sentence."""
    example: str
    """A text that it can answer."""
    source: Source

    @property
    def longest(self) -> int | None:
        """Tokens of the longest row that it reads; None: it reads texts of any length."""

    @property
    def window(self) -> tuple[int, int] | None:
        """Rows, and tokens of each, that are computed together of a text that takes several; None: each takes one."""

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        """Of each text, in their order.

        Raises:
            ValueError: a text that it cannot answer; says why.
        """

    def explain(self, text: str) -> str | None:
        """A page with the tokens shaded that the answer goes by; None where the model has none."""
