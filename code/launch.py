"""Run experiments in containers: one for each folder with a config.json."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.checked_command import CheckedCommand
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.container import commands
from nystromformer.container.engine import with_engine_errors
from nystromformer.container.options import LaunchOptions
from nystromformer.container.recipes import spec_of
from nystromformer.container.scripts import SCRIPTS, flags_behind

_OF_RUNS = {
    "serve": "Serve a finished run: a local page and a JSON API",
    "predict": "Predict new rows with a finished run",
}
_WITHOUT_SCRIPT = [getattr(commands, name) for name in ("ps", "logs", "stop", "kill", "resume", "build")]
_REST = {"ignore_unknown_options": True, "allow_extra_args": True}
"""What typer leaves to the scripts."""


def start_command(command: str, file: str, does: str, what: str) -> Callable[..., None]:
    """The command that starts the container of one script.

    Args:
        file: the script, for who wants its flags.
        what: the first argument.
    """

    @with_flag_groups
    def start(
        context: typer.Context,
        place: Annotated[str, typer.Argument(metavar=what.upper(), help=f"The {what}; the script's flags follow it.")],
        options: LaunchOptions,
        follow: commands.Follow = False,
        dry_run: commands.DryRun = False,
    ) -> None:
        commands.start(spec_of(command, place, flags_behind(context, place), options), follow, dry_run)

    start.__doc__ = f"{does}, in a container. Further flags are the script's: `python {file} --help` lists them."
    return start


def launcher() -> typer.Typer:
    """All commands."""
    app = cli.application()
    app.info.help = __doc__
    starts = [(each.command, f"code/{each.file}", each.does, "experiment") for each in SCRIPTS.values()]
    starts += [(name, f"code/run_{name}.py", does, "run") for name, does in _OF_RUNS.items()]
    for start in starts:
        app.command(start[0], cls=CheckedCommand, context_settings=_REST)(_wrapped(start_command(*start)))
    for function in _WITHOUT_SCRIPT:
        app.command(cls=CheckedCommand)(_wrapped(function))
    return app


def _wrapped(command: Callable[..., Any]) -> Callable[..., Any]:
    return cli.with_clear_errors(with_engine_errors(command))


if __name__ == "__main__":
    launcher()()
