"""ListOps: nested lists of digits under operators, each the result of which is a digit (Nangia and Bowman 2018), drawn
with the Long Range Arena's distribution (Tay et al. 2021).

An expression is a row of tokens: `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9. The Long Range Arena writes each also with brackets
that group an operator with its values one by one, and its loader leaves these out; so 15 kinds of token are left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from nystromformer.errors import UserError

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
"""Smallest, largest, the median rounded down, the sum modulo ten."""
END = "]"
TOKENS = (*"0123456789", *OPERATORS, END)
"""By number."""
BRACKETS = ("(", ")")
"""Beside TOKENS, where brackets are kept."""
CLASSES = 10
_MOST_ATTEMPTS = 200_000

FIRST_OPERATOR, END_OF_LIST = 10, 14
"""Of the operators' tokens the first, and the token of END."""
_OPEN, _CLOSE = 15, 16
_NUMBERS = {token: number for number, token in enumerate((*TOKENS, *BRACKETS))}


@dataclass(frozen=True)
class Expressions:
    """What is drawn; the defaults are the Long Range Arena's.

    longer_than, shorter_than: bounds of an expression's tokens, brackets of grouping not counted.
    depth: of the deepest operator, the outermost being 1, is one less.
    most_values: that an operator has; 2 at least.
    operator_share: the probability that what stands above that depth is an operator.
    brackets: whether the brackets that group are tokens, too.
    train_longer_than: the lower bound for training expressions; None: the same.
    """

    longer_than: int = 500
    shorter_than: int = 2000
    depth: int = 10
    most_values: int = 10
    operator_share: float = 0.25
    brackets: bool = False
    train_longer_than: int | None = None

    def of(self, split: str) -> Expressions:
        """What the expressions of a split have."""
        if split != "train" or self.train_longer_than is None:
            return self
        return replace(self, longer_than=self.train_longer_than)


class _TooLong(Exception):
    """An expression has more tokens than wanted."""


def draw(generator: random.Random, wanted: Expressions) -> tuple[bytes, int]:
    """An expression whose length is wanted: its tokens, and its value. Others are thrown away.

    Raises:
        UserError: almost none is of such a length.
    """
    for _ in range(_MOST_ATTEMPTS):
        tokens = bytearray()
        try:
            value = _grow(generator, wanted, 1, tokens)
        except _TooLong:
            continue
        grouping = tokens.count(_OPEN) + tokens.count(_CLOSE)
        if wanted.longer_than < len(tokens) - grouping < wanted.shorter_than:
            return bytes(tokens), value
    raise UserError(
        f"none of {_MOST_ATTEMPTS:,} expressions with --depth {wanted.depth} and --most_values {wanted.most_values} "
        f"had more than {wanted.longer_than:,} and fewer than {wanted.shorter_than:,} tokens: change these limits"
    )


def _grow(generator: random.Random, wanted: Expressions, depth: int, tokens: bytearray) -> int:
    """Add a digit or a list to the tokens; its value."""
    if depth >= wanted.depth or generator.random() > wanted.operator_share:
        digit = generator.randrange(10)
        tokens.append(digit)
        return digit
    count = generator.randint(2, wanted.most_values)
    operator = generator.randrange(len(OPERATORS))
    if wanted.brackets:
        tokens.extend([_OPEN] * (count + 1))
    tokens.append(FIRST_OPERATOR + operator)
    # With brackets there are fewer than three tokens for each that counts.
    if len(tokens) >= (3 if wanted.brackets else 1) * wanted.shorter_than:
        raise _TooLong
    values = []
    for _ in range(count):
        values.append(_grow(generator, wanted, depth + 1, tokens))
        if wanted.brackets:
            tokens.append(_CLOSE)
    tokens.append(END_OF_LIST)
    if wanted.brackets:
        tokens.append(_CLOSE)
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


def parse(text: str, brackets: bool = False) -> bytes:
    """The tokens of an expression as the Long Range Arena's files write it.

    Args:
        brackets: whether the brackets that group are kept.

    Raises:
        ValueError: a token that there is not, or brackets that do not match.
    """
    words = text.split()
    opening, closing = BRACKETS
    depths = list(accumulate((word == opening) - (word == closing) for word in words))
    if depths and (depths[-1] or min(depths) < 0):
        raise ValueError(f"its brackets {opening} and {closing} do not match")
    try:
        tokens = bytes(_NUMBERS[word] for word in words)
    except KeyError as error:
        raise ValueError(f"expected digits, {', '.join(OPERATORS)} and {END}, found {error.args[0]!r:.40}") from None
    return tokens if brackets else tokens.translate(None, bytes([_OPEN, _CLOSE]))


def evaluate(tokens: bytes) -> int:
    """The value of an expression, with brackets that group or without.

    Raises:
        ValueError: it is none: an operator without values, a list that does not end, or more than one expression.
    """
    results: list[int] = []
    open_lists = [results]  # above the results each list that has not ended: its operator, then its values
    for place, token in enumerate(tokens, start=1):
        if token < FIRST_OPERATOR:
            open_lists[-1].append(token)
        elif token < END_OF_LIST:
            open_lists.append([token - FIRST_OPERATOR])
        elif token == END_OF_LIST:
            if len(open_lists) == 1:
                raise ValueError(f"token {place}: closes a list that was not opened")
            operator, *values = open_lists.pop()
            if not values:
                raise ValueError(f"token {place}: closes an operator without values")
            open_lists[-1].append(apply(operator, values))
    if len(open_lists) > 1:
        raise ValueError(f"{len(open_lists) - 1} lists are not closed")
    if len(results) != 1:
        raise ValueError(f"expected one expression, found {len(results)}")
    return results[0]
