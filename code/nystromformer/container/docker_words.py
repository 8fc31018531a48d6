"""What the launcher says to docker's commands and flags that it has not: its own words for them, in a sentence.

Those whose meaning it has (`rm`, `start`, `ps -a`, `logs -n`, `stop -t`) it simply takes; `launch.py` declares them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from nystromformer.container.scripts import SCRIPTS
from nystromformer.errors import UserError

_BY_EXPERIMENT = "a container is named after what runs in it: `launch.py pretrain FOLDER`, or validate, glue, imdb, …"
_COMMANDS = {
    "run": _BY_EXPERIMENT,
    "create": _BY_EXPERIMENT,
    "restart": "`launch.py stop NAME`, then `launch.py resume NAME`",
    "attach": "`launch.py logs -f NAME` shows what a run writes",
    "wait": "`launch.py logs -f NAME` ends when the run does, with its exit status",
    "prune": "`launch.py remove --all` removes all containers of this project that have ended",
    "container": "leave the word out: `launch.py ps`, `launch.py rm NAME`, …",
    "up": "`launch.py queue FOLDERS` starts several experiments, one after another on each GPU",
    "down": "`launch.py stop --all` ends all of this project's containers",
}
_DOCKERS_OWN = (
    *("commit", "cp", "diff", "events", "exec", "export", "history", "image"),
    *("images", "import", "info", "inspect", "load", "login", "logout", "network"),
    *("pause", "port", "pull", "push", "rename", "rmi", "save", "search"),
    *("stats", "system", "tag", "top", "unpause", "update", "version", "volume"),
)

_LEAVE_OUT = "leave it out, as the launcher returns once the run is at work, and --follow shows its log"
_START = {
    "-d": _LEAVE_OUT,
    "--detach": _LEAVE_OUT,
    "-i": _LEAVE_OUT,
    "-t": _LEAVE_OUT,
    "--interactive": _LEAVE_OUT,
    "--tty": _LEAVE_OUT,
    "--rm": "leave it out, as the next start takes the container's place, and `launch.py remove NAME` removes it",
    "-v": "here it is --mount HOST:CONTAINER, or HOST:CONTAINER:ro",
    "--volume": "here it is --mount HOST:CONTAINER, or HOST:CONTAINER:ro",
    "-e": "here it is --env NAME=VALUE",
    "--shm-size": "here it is --shm_size, such as 8g",
    "--net": "here it is --network",
    "--ipc": "leave it out, as containers share the machine's memory, or have their own with --shm_size",
    "-u": "leave it out, as containers run as whoever calls the launcher",
    "--user": "leave it out, as containers run as whoever calls the launcher",
    "--init": "leave it out, as containers have it",
    "--stop-timeout": "leave it out, as containers have 300 seconds, or what `launch.py stop --timeout` says",
}
_SIGNALS = dict.fromkeys(("-s", "--signal"), "leave it out, as `launch.py stop` sends SIGTERM, and `kill` SIGKILL")
_OPTIONS: dict[str, dict[str, str]] = {
    "logs": {
        **dict.fromkeys(("-t", "--timestamps"), "leave it out, as the lines of a log begin with the time"),
        **dict.fromkeys(("--since", "--until", "--details"), "`launch.py logs --tail N` shows the last lines"),
    },
    "stop": _SIGNALS,
    "kill": _SIGNALS,
    "remove": {
        **dict.fromkeys(("-f", "--force"), "`launch.py kill NAME` first, then `launch.py remove NAME`"),
        **dict.fromkeys(("-v", "--volumes"), "leave it out, as the containers have no volumes of their own"),
    },
    "resume": dict.fromkeys(
        ("-a", "--attach", "-i", "--interactive"), "`launch.py resume NAME`, then `launch.py logs -f NAME`"
    ),
    "build": {
        "-t": "here it is --tag NAME",
        "--build-arg": "here it is --build_arg NAME=VALUE",
        **dict.fromkeys(("--no-cache", "--pull"), "--fresh does both"),
        **dict.fromkeys(("-f", "--file"), "leave it out, as the project's Dockerfile is what is built"),
    },
    "ps": dict.fromkeys(
        (
            *("-q", "--quiet", "-f", "--filter", "--format", "-l", "--latest", "-n", "--last", "--no-trunc", "-s"),
            "--size",
        ),
        "leave it out, or ask `docker ps`: `launch.py ps` lists this project's containers",
    ),
    **dict.fromkeys((*SCRIPTS, "preprocess", "queue"), _START),
}
ALIASES = {"rm": "remove", "start": "resume", "ls": "ps"}
"""Docker's names of commands that the launcher has by another one."""


def answer(command: str, words: Sequence[str]) -> str | None:
    """What to say to a command line in docker's words; None to one that has none of them.

    Args:
        command: its first word.
        words: those that follow.
    """
    if command in _COMMANDS:
        return f"{command}: {_COMMANDS[command]}"
    if command in _DOCKERS_OWN:
        return f"{command}: that is docker's own, `docker {command}`; `launch.py ps` shows the names of containers"
    options = _OPTIONS.get(ALIASES.get(command, command), {})
    for word in words:
        if word == "--":
            break
        name = word.partition("=")[0]
        letters = [f"-{letter}" for letter in name[1:]] if re.fullmatch("-[a-zA-Z]{2,}", name) else []
        for option in (name, *letters):
            if option in options:
                return f"{command} {option}: {options[option]}"
    return None


class AnsweringDocker(TyperGroup):
    """Commands, of which docker's are answered with a sentence and the status of a mistake."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        said = answer(args[0], args[1:])
        if said is not None:
            typer.echo(f"error: {said}", err=True)
            ctx.exit(UserError.exit_status)
        return super().resolve_command(ctx, args)
