"""The ranges of what a config.json may say: all that is sensible, and no slip by orders of magnitude."""

from typing import Annotated

from pydantic import AfterValidator, Field

from .messages import ImpossibleError, Problem, quoted

MOST = 10**9
"""Of a size or a number of steps: products of two of them fit 64 bits."""
MOST_LAYERS = 10_000
MOST_ITERATIONS = 1000
MOST_DROPOUT = 0.95
"""Past it hardly anything is left."""
LEAST_RATE, MOST_RATE = 1e-12, 10.0
"""Of a learning rate."""
MOST_SEED = 2**63 - 1

_LONGEST_PATH = 4095
_LONGEST_NAME = 255
"""Bytes that Linux takes at most: of a whole path, and of each of its parts."""

Size = Annotated[int, Field(ge=1, le=MOST)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]


def wrong_path(text: str) -> str | None:
    """What is expected instead of a path that no file can have; None where one can."""
    if not text:
        return "a path that is not empty"
    if "\0" in text:
        return "a path without NUL characters"
    try:
        parts = [part.encode() for part in text.split("/")]
    except UnicodeEncodeError:
        return "a path in UTF-8, as what a run writes down names it"
    if max(map(len, parts)) > _LONGEST_NAME or sum(map(len, parts)) + len(parts) - 1 > _LONGEST_PATH:
        return f"a path of at most {_LONGEST_PATH} bytes, each of its parts at most {_LONGEST_NAME}"
    return None


def _possible_path(text: str) -> str:
    if reason := wrong_path(text):
        raise ImpossibleError([Problem((), f"expected {reason}, found {quoted(text)}")])
    return text


Folder = Annotated[str, Field(min_length=1), AfterValidator(_possible_path)]
