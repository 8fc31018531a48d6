"""What every command shares: flags by typer, logging, and how mistakes end."""

import errno
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from nystromformer.command_line import interrupt
from nystromformer.command_line.checked_command import CheckedCommand
from nystromformer.command_line.extras import what_is_missing
from nystromformer.command_line.runtime import keep_freed_memory, set_environment
from nystromformer.command_line.torchrun import tell_launcher_of_mistake
from nystromformer.errors import UserError
from nystromformer.files.writing import DISK_FULL

set_environment()


_OF_THE_MACHINE = {
    **dict.fromkeys(DISK_FULL, "writing"),
    errno.ENOMEM: "out of memory",
    errno.EMFILE: "opening a file (`ulimit -n`)",
    errno.ENFILE: "opening a file",
    errno.EIO: "reading or writing",
    errno.ESTALE: "reading or writing",
}
"""What went wrong where an error of the system names no file."""
_LESS_MEMORY = "compute fewer rows at a time (gpu_setting.inst_per_gpu), or use fewer --workers or a smaller model"


def run(command: Callable[..., Any]) -> None:
    """Run a command. A user's mistake prints one message and exits with status 2."""
    with interrupt.ignored_afterwards():
        application(command)()


def run_one_of(*commands: Callable[..., Any]) -> None:
    """Run the command that the first argument names."""
    app = application(*commands)
    # With a callback typer wants the name even of a single command.
    app.callback()(lambda: None)
    with interrupt.ignored_afterwards():
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
            with interrupt.raised():
                return command(*args, **kwargs)
        except UserError as error:
            # Of the processes that torchrun starts on a machine, one speaks: a mistake is known to all of them.
            if os.environ.get("LOCAL_RANK", "0") == "0":
                typer.echo(f"error: {error}", err=True)
            if error.exit_status == UserError.exit_status:
                tell_launcher_of_mistake()
            raise typer.Exit(error.exit_status) from None
        except ModuleNotFoundError as error:
            if (missing := what_is_missing(error)) is None:
                raise
            typer.echo(f"error: {missing}", err=True)
            raise typer.Exit(UserError.exit_status) from None
        except OSError as error:
            # Of a file that cannot be used, the name and the reason say all; other errors are the program's own.
            place = error.filename or _OF_THE_MACHINE.get(error.errno or 0)
            if place is None:
                raise
            typer.echo(f"error: {place}: {error.strerror or error}", err=True)
            raise typer.Exit(UserError.exit_status) from None
        except (MemoryError, RuntimeError) as error:
            if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                typer.echo(f"error: {_compiler_failed(error)}", err=True)
                raise typer.Exit(UserError.exit_status) from None
            if not _memory_ran_out(error):
                raise
            text = next(iter(str(error).splitlines()), "")
            typer.echo(f"error: out of memory{f' ({text})' if text else ''}: {_LESS_MEMORY}", err=True)
            raise typer.Exit(UserError.exit_status) from None
        except KeyboardInterrupt:
            interrupt.say()
            raise typer.Exit(interrupt.STATUS) from None

    return wrapped


def _compiler_failed(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f" ({type(error).__name__}: {lines[0]:.300})" if lines else ""
    return f"model.compile: the layers could not be compiled{reason}: set model.compile to false to run without it"


def _memory_ran_out(error: BaseException) -> bool:
    """Whether Python or PyTorch, which is not imported for this, got no memory."""
    # Of oneDNN: it has no memory for the code that it makes, or for what its code works on, and says no more.
    things = ("create a primitive", "execute a primitive", "create a memory", "create a memory object")
    if isinstance(error, RuntimeError) and str(error) in {f"could not {thing}" for thing in things}:
        return True
    known = ("DefaultCPUAllocator", "CUDA out of memory", "Cannot allocate memory")
    of_torch = type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in known)
    return isinstance(error, MemoryError) or of_torch
