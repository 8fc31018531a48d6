"""ListOps: nested lists of digits under operators, of which each gives a digit (Nangia and Bowman 2018), drawn with the
Long Range Arena's distribution (Tay et al. 2021): `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9. Its files have also brackets that
group; its loader leaves them out, and so 15 kinds of token are left.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.errors import UserError
from nystromformer.tasks.lra.store import Stored, TaskData, prepare_drawn

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
"""Smallest, largest, the median rounded down, the sum modulo ten."""
END = "]"
TOKENS = (*"0123456789", *OPERATORS, END)
"""By number."""
CLASSES = 10
_MOST_ATTEMPTS = 200_000
_OPERATOR_SHARE = 0.25
"""The probability that what stands above the deepest level is an operator."""

FIRST_OPERATOR, END_OF_LIST = 10, 14
"""Of the operators' tokens the first, and the token of END."""
_NUMBERS = {token: number for number, token in enumerate(TOKENS)}

LISTOPS = TaskData("listops", CLASSES, {"train": 96_000, "validation": 2_000, "test": 2_000}, kinds=len(TOKENS))


@dataclass(frozen=True)
class Expressions:
    """What is drawn, as the Long Range Arena does unless told otherwise; each field is a flag."""

    longer_than: Annotated[
        int, typer.Option("--longer_than", min=0, help="Expressions have more than this many tokens.")
    ] = 500
    shorter_than: Annotated[
        int, typer.Option("--shorter_than", min=2, max=10**6, help="Expressions have fewer than this many tokens.")
    ] = 2000
    train_longer_than: Annotated[
        int | None,
        typer.Option("--train_longer_than", min=0, help="The same as --longer_than for training expressions alone."),
    ] = None
    depth: Annotated[int, typer.Option(min=2, max=50, help="Levels of nesting, digits included.")] = 10
    most_values: Annotated[
        int, typer.Option("--most_values", min=2, max=1000, help="Largest number of values of a list.")
    ] = 10


class _TooLong(Exception):
    """An expression has more tokens than wanted."""


def draw(generator: random.Random, wanted: Expressions) -> tuple[bytes, int]:
    """An expression whose length is wanted: its tokens, and its value. Others are thrown away."""
    for _ in range(_MOST_ATTEMPTS):
        tokens = bytearray()
        try:
            value = _grow(generator, wanted, 1, tokens)
        except _TooLong:
            continue
        if wanted.longer_than < len(tokens) < wanted.shorter_than:
            return bytes(tokens), value
    raise UserError(
        f"none of {_MOST_ATTEMPTS:,} expressions with --depth {wanted.depth} and --most_values {wanted.most_values} "
        f"had more than {wanted.longer_than:,} and fewer than {wanted.shorter_than:,} tokens: change these limits"
    )


def _grow(generator: random.Random, wanted: Expressions, depth: int, tokens: bytearray) -> int:
    """Add a digit or a list to the tokens; its value."""
    if depth >= wanted.depth or generator.random() > _OPERATOR_SHARE:
        digit = generator.randrange(10)
        tokens.append(digit)
        return digit
    count = generator.randint(2, wanted.most_values)
    operator = generator.randrange(len(OPERATORS))
    tokens.append(FIRST_OPERATOR + operator)
    if len(tokens) >= wanted.shorter_than:
        raise _TooLong
    values = [_grow(generator, wanted, depth + 1, tokens) for _ in range(count)]
    tokens.append(END_OF_LIST)
    return apply(operator, values)


def apply(operator: int, values: Sequence[int]) -> int:
    """The digit that an operator, by its place in OPERATORS, makes of digits."""
    if operator == 0:
        return min(values)
    if operator == 1:
        return max(values)
    if operator == 2:
        ordered, middle = sorted(values), len(values) // 2
        return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
    return sum(values) % 10


def parse(text: str) -> bytes:
    """The tokens of an expression as the Long Range Arena's files write it, without the brackets that group."""
    try:
        return bytes(_NUMBERS[word] for word in text.split() if word not in ("(", ")"))
    except KeyError as error:
        raise ValueError(f"expected digits, {', '.join(OPERATORS)} and {END}, found {error.args[0]!r:.40}") from None


def draw_listops(folder: Path, wanted: Expressions, sizes: Mapping[str, int], seed: int, workers: int) -> Stored:
    """Draw ListOps into a folder, so many examples of each split."""
    warning = "drawn here as the Long Range Arena draws: its own expressions are others"
    if wanted != Expressions() or sizes != LISTOPS.official:
        warning = "not the Long Range Arena's ListOps: other lengths or sizes"
    settings = {"seed": seed, **asdict(wanted)}
    return prepare_drawn(folder, LISTOPS, partial(draw_example, wanted, seed), settings, sizes, workers, [warning])


def draw_example(wanted: Expressions, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
    """Tokens and value of an expression of a split."""
    if split == "train" and wanted.train_longer_than is not None:
        wanted = replace(wanted, longer_than=wanted.train_longer_than)
    return draw(random.Random(f"listops {seed} {split} {number} {attempt}"), wanted)
