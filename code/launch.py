"""Run experiments in containers: one for each folder with a config.json."""

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from nystromformer.command_line import cli
from nystromformer.command_line.checked_command import CheckedCommand
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.container import commands
from nystromformer.container.command_line import PassingAll, ScriptFlags, passing_flags_to
from nystromformer.container.options import LaunchOptions
from nystromformer.container.scripts import SCRIPTS, function_of
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.recipe import check_name
from nystromformer.tasks.finetuning.settings import FinetuningFlags
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.lra.recipe import TASKS, TRACKS

FUNCTIONS: dict[str, Callable[..., Any]] = {name: function_of(script) for name, script in SCRIPTS.items()}

_SWEEP_FLAGS = ("batch_size", "lr", "seed", "predict")
_WITHOUT_SCRIPT = [getattr(commands, name) for name in ("ps", "logs", "stop", "kill", "resume", "remove", "build")]
_ALIASES = {"rm": commands.remove, "start": commands.resume, "ls": commands.ps}
"""Docker's names of commands that the launcher has by another one."""
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def check_values(command: str, flags: ScriptFlags) -> None:
    """Check what the parser of a command's script takes for any text.

    Raises:
        UserError: a value that the script would refuse once it runs.
    """
    given = {name: values[-1] for name in _SWEEP_FLAGS if (values := flags.values(f"--{name}"))}
    if given:
        FinetuningFlags(**given).sweep()
    if command == "glue":
        find_tasks(",".join(flags.values("--task")))
    if command == "lra":
        for flag, names in (("--task", TASKS), ("--track", TRACKS)):
            for name in flags.values(flag):
                check_name(flag, name, names)
    for device in flags.values("--device"):
        if not _DEVICE.fullmatch(device):
            raise UserError(f"--device {device}: expected auto, cpu, cuda or cuda:N; --gpus says where to compute")


def start_command(command: str) -> Callable[..., None]:
    """The command that starts the container of one script."""

    @with_flag_groups
    def start(
        context: typer.Context,
        experiment: Annotated[str, typer.Argument(help="Folder with a config.json, or its name in this project.")],
        options: LaunchOptions,
        follow: commands.Follow = False,
        dry_run: commands.DryRun = False,
    ) -> None:
        check_values(command, context.obj)
        commands.start_experiment(SCRIPTS[command], experiment, context.obj, options, follow, dry_run)

    start.__doc__ = f"{SCRIPTS[command].does}, in a container. It runs {SCRIPTS[command].file}."
    return start


@with_flag_groups
def preprocess(
    context: typer.Context,
    script: Annotated[
        str,
        typer.Argument(
            help="A corpus (wiki, bookcorpus, …), rows of a length (512, 4096), or a script of data-preprocessing."
        ),
    ],
    options: Annotated[LaunchOptions, Without("gpus")],
    follow: commands.Follow = False,
    dry_run: commands.DryRun = False,
) -> None:
    """Make a corpus, or a dataset of rows, in a container. Options after the script's name that are not listed here go
    to the script: `python data-preprocessing/SCRIPT --help` lists those."""
    commands.start_preprocessing(script, context.obj, options, follow, dry_run)


@with_flag_groups
def queue(
    context: typer.Context,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders with a config.json, or their names in this project. Without any, the queue continues."
        ),
    ] = None,
    command: Annotated[
        str, typer.Option("--command", help=f"Command to run on each: {', '.join(SCRIPTS)}.")
    ] = "pretrain",
    gpus_each: Annotated[int, typer.Option("--gpus_each", min=1, help="Number of GPUs for each experiment.")] = 1,
    *,
    options: Annotated[LaunchOptions, Without("name", "restart")],
    dry_run: commands.DryRun = False,
) -> None:
    """Run experiments on several GPUs, one after another on each. Started again, it resumes with the waiting ones."""
    if experiments:
        check_values(command, context.obj)
    commands.run_queue(command, experiments or [], context.obj, options, gpus_each, dry_run)


def launcher() -> typer.Typer:
    """All commands."""
    app = cli.application()
    app.info.help = __doc__
    for name, function in FUNCTIONS.items():
        kind = passing_flags_to({name: function}, name)
        app.command(name, cls=kind)(cli.with_clear_errors(start_command(name)))
    app.command(cls=PassingAll)(cli.with_clear_errors(preprocess))
    kind = passing_flags_to(FUNCTIONS, "pretrain")
    app.command(cls=kind)(cli.with_clear_errors(queue))
    for function in _WITHOUT_SCRIPT:
        app.command(cls=CheckedCommand)(cli.with_clear_errors(function))
    for name, function in _ALIASES.items():
        app.command(name, hidden=True, cls=CheckedCommand)(cli.with_clear_errors(function))
    return app


if __name__ == "__main__":
    launcher()()
