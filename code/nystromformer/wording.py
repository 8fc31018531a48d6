"""Counts in words, for logs and messages."""

from collections.abc import Mapping


def number_of(count: int, noun: str) -> str:
    """Such as `1 row` and `2,000 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counted(counts: Mapping[str, int]) -> str:
    """Such as `3 x empty document`; what was never counted is left out."""
    return ", ".join(f"{count} x {reason}" for reason, count in counts.items() if count) or "nothing"
