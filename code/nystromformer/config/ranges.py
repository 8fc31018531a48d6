"""The ranges of what a config.json may say: all that is sensible, and no slip by orders of magnitude."""

from typing import Annotated

from pydantic import AfterValidator, Field

from ..files.paths import wrong_path
from .messages import ImpossibleError, Problem, quoted

MOST = 10**9
"""Of a size or a number of steps: products of two of them fit 64 bits."""
MOST_TOKENS = 10**15
MOST_LAYERS = 10_000
MOST_ITERATIONS = 1000
MOST_PINV_ITERATIONS = 24
"""More enlarge what float32 rounds off in the factors beside the inverse."""
LEAST_RIDGE, MOST_RIDGE = 1e-10, 1.0
"""Less is lost in float64 where a softmax matrix is of rank one; more leaves nothing of it."""
MOST_DROPOUT = 0.95
"""Past it hardly anything is left."""
LEAST_RATE, MOST_RATE = 1e-12, 10.0
"""Of a learning rate."""
MOST_SEED = 2**63 - 1

Size = Annotated[int, Field(ge=1, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]


def as_tuple(value: object) -> object:
    """A list as a tuple: strict pydantic takes none for the other, but JSON has only lists."""
    if isinstance(value, list) and len(value) > MOST_LAYERS:
        # Else each of any number of wrong items would be a mistake of its own.
        raise ValueError("expected fewer items")
    return tuple(value) if isinstance(value, list) else value


def _possible_path(text: str) -> str:
    if reason := wrong_path(text):
        raise ImpossibleError([Problem((), f"expected {reason}, found {quoted(text)}")])
    return text


Folder = Annotated[str, Field(min_length=1), AfterValidator(_possible_path)]
