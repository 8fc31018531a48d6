"""ListOps: expressions, their values, and what is drawn."""

import random
import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.tasks.lra.listops import (
    END_OF_LIST,
    FIRST_OPERATOR,
    TOKENS,
    Expressions,
    draw,
    parse,
)

seeds = st.integers(0, 2**31)


def written(tokens: bytes) -> str:
    return " ".join(TOKENS[token] for token in tokens)


def depth_of(tokens: bytes) -> int:
    """How many lists are open at most."""
    steps = ((FIRST_OPERATOR <= token < END_OF_LIST) - (token == END_OF_LIST) for token in tokens)
    return max(accumulate(steps))


def by_rewriting(text: str) -> int:
    """The value of an expression: the innermost lists give way to theirs, until one digit is left."""

    def value(found: re.Match[str]) -> str:
        ordered = sorted(map(int, found[2].split()))
        if found[1] == "MED":
            return str(int((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2))
        return str({"MIN": ordered[0], "MAX": ordered[-1], "SM": sum(ordered) % 10}[found[1]])

    while "[" in text:
        text = re.sub(r"\[(MIN|MAX|MED|SM)((?: \d)+) \]", value, text)
    return int(text)


@given(seeds)
def test_an_expression_is_drawn_with_its_value(seed: int) -> None:
    tokens, value = draw(random.Random(seed), Expressions(longer_than=10, shorter_than=80, depth=6, most_values=5))
    assert value == by_rewriting(written(tokens))
    assert 10 < len(tokens) < 80
    assert depth_of(tokens) < 6
    assert parse(written(tokens)) == tokens


def test_the_long_range_arenas_distribution() -> None:
    drawn = [draw(random.Random(seed), Expressions()) for seed in range(150)]
    lengths = sorted(len(tokens) for tokens, _ in drawn)
    assert 500 < lengths[0] <= lengths[-1] < 2000
    assert 850 < lengths[75] < 1150, "a median of 1,012 elsewhere"
    assert max(depth_of(tokens) for tokens, _ in drawn) <= 9


def test_what_is_no_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"found '\[FIRST'"):
        parse("[FIRST 1 ]")
