"""What every command shares: flags by typer, logging, and how mistakes end."""

import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import typer

from nystromformer.command_line.checked_command import CheckedCommand
from nystromformer.command_line.extras import what_is_missing
from nystromformer.command_line.runtime import keep_freed_memory, set_environment
from nystromformer.errors import UserError
from nystromformer.files.writing import DISK_FULL

INTERRUPTED = 130
"""The exit status after Ctrl-C, as of shells."""


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C while a script imports its modules, where no command can catch it, is one word, too."""
    if isinstance(error, KeyboardInterrupt):
        os.write(2, b"interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)


set_environment()
sys.excepthook = _show


def run(command: Callable[..., Any]) -> None:
    """Run a command. A user's mistake prints one message and exits with status 2."""
    application(command)()


def run_one_of(*commands: Callable[..., Any]) -> None:
    """Run the command that the first argument names."""
    app = application(*commands)
    # With a callback typer wants the name even of a single command.
    app.callback(no_args_is_help=True)(lambda: None)
    app()


def application(*commands: Callable[..., Any]) -> typer.Typer:
    """The typer application of these commands, with logging to stderr."""
    keep_freed_memory()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    for command in commands:
        name = command.__name__.rstrip("_")  # as it is spelt elsewhere, such as in the values of flags
        app.command(name, cls=CheckedCommand)(with_clear_errors(command))
    return app


def with_clear_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, for which a user's mistake is one message and an exit status."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            _end(f"error: {error}", error.exit_status)
        except ModuleNotFoundError as error:
            if (missing := what_is_missing(error)) is None:
                raise
            _end(f"error: {missing}")
        except OSError as error:
            # Of a file that cannot be used, the name and the reason say all; other errors are the program's own.
            place = error.filename or ("writing" if error.errno in DISK_FULL else None)
            if place is None:
                raise
            _end(f"error: {place}: {error.strerror or error}")
        except KeyboardInterrupt:
            _end("interrupted", INTERRUPTED)

    return wrapped


def _end(message: str, status: int = UserError.exit_status) -> NoReturn:
    """End with a message; of the processes that torchrun starts on a machine, the first one speaks."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        typer.echo(message, err=True)
    else:
        # torchrun ends all processes as soon as one has ended: that shall be the one that has spoken.
        time.sleep(5)
    raise typer.Exit(status) from None
