"""Which paths files can have."""

_LONGEST_PATH = 4095
_LONGEST_NAME = 255
"""Bytes that Linux takes at most: of a whole path, and of each of its parts."""
_MOST_PARTS = 256
"""Folders in each other; Python makes them by a call within a call."""


def wrong_path(text: str) -> str | None:
    """What is expected instead of a path that no file can have, or that no record could name; None where one can."""
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
    if len(parts) > _MOST_PARTS:
        return f"a path of at most {_MOST_PARTS} parts"
    return None
