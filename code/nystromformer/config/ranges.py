"""The ranges of what a config.json may say: all that is sensible, and no slip by orders of magnitude."""

from typing import Annotated

from pydantic import Field

MOST = 10**9
"""Of a size or a number of steps: products of two of them fit 64 bits."""
MOST_TOKENS = 10**15
MOST_LAYERS = 10_000
MOST_ITERATIONS = 1000
MOST_PINV_ITERATIONS = 24
"""More enlarge what float32 rounds off in the factors beside the inverse."""
MOST_DROPOUT = 0.95
"""Past it hardly anything is left."""
LEAST_RATE, MOST_RATE = 1e-12, 10.0
"""Of a learning rate."""
MOST_SEED = 2**63 - 1

Size = Annotated[int, Field(ge=1, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Folder = Annotated[str, Field(min_length=1)]


def as_tuple(value: object) -> object:
    """A list as a tuple: strict pydantic takes none for the other, but JSON has only lists."""
    return tuple(value) if isinstance(value, list) else value
