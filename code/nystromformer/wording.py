"""Counts in words, for logs and messages."""

from collections.abc import Mapping, Sequence

MOST_LISTED = 20
"""Lines of a message that lists: who mends these runs the command again."""


def number_of(count: int, noun: str) -> str:
    """Such as `1 row` and `2,000 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counted(counts: Mapping[str, int]) -> str:
    """Such as `3 x empty document`; what was never counted is left out."""
    return ", ".join(f"{count} x {reason}" for reason, count in counts.items() if count) or "nothing"


def first_names(names: Sequence[object]) -> str:
    """The first ten, and how many more there are."""
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(map(str, names[:10])) + more


def listed(lines: Sequence[object]) -> str:
    """The first lines, each on one of its own and indented, and how many more there are."""
    more = len(lines) - len(lines[:MOST_LISTED])
    rest = [f"… and {more:,} more"] if more else []
    return "".join(f"\n  {line}" for line in [*lines[:MOST_LISTED], *rest])


def say_unknown(unknown: int, tokens: int) -> str:
    """Such as `3.2 % of the tokens are unknown to the tokenizer`; empty up to 1 %."""
    share = unknown / max(tokens, 1)
    return f"{100 * share:.1f} % of the tokens are unknown to the tokenizer" if share > 0.01 else ""


def warn_of_unknown(name: str, unknown: int, tokens: int) -> list[str]:
    """A warning where that is more than 10 %: the model cannot tell such texts apart."""
    if unknown <= 0.1 * tokens:
        return []
    return [
        f"{name}: {say_unknown(unknown, tokens)}, and all alike to the model: use a model whose tokenizer knows these "
        "characters, such as one with bytes as tokens"
    ]
