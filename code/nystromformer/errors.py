"""Errors that users can act on."""


class UserError(Exception):
    """A mistake of the user's: the message says what is wrong, where, what was expected and what to do.

    Commands print the message alone, without a traceback, and exit with `exit_status`.
    """

    exit_status = 2
