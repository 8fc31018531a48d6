"""Counts in words, for logs and messages."""


def number_of(count: int, noun: str) -> str:
    """Such as `1 row` and `2,000 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
