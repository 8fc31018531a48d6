"""Errors that users can act on."""


class UserError(Exception):
    """A mistake of the user's: the message says what is wrong, where, what was expected and what to do.

    Commands print the message alone, without a traceback, and exit with `exit_status`.
    """

    exit_status = 2


def first_line(error: BaseException) -> str:
    """What an error says, without further lines; its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
