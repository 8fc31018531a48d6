"""Errors that users can act on."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake of the user's: the message says what is wrong, where, what was expected and what to do.

    Commands print the message alone, without a traceback, and exit with `exit_status`.
    """

    exit_status = 2


def first_line(error: BaseException) -> str:
    """What an error says, without further lines; its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def reading(place: object) -> Iterator[None]:
    """Within the block, an OSError names this file where it names none, as when an open file cannot be read."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(place)
        raise
