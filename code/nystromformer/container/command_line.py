"""Commands that take a script's flags beside their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand

from nystromformer import cli
from nystromformer.checked_command import CheckedCommand
from nystromformer.container.flags import ScriptFlags, split_flags

_NOT_PASSED_ON = ("--model", "--help")


def passing_flags_to(scripts: Mapping[str, Callable[..., Any]], default: str) -> type[TyperCommand]:
    """The class of a command that gives a script's flags as `context.obj`, checked by the script's own parser.

    Args:
        scripts: the function that each script runs, by the launcher's name of it.
        default: the script, if the command has no option `command` that names another one.
    """

    @cache
    def parser_of(name: str) -> Any:
        """Made when it is needed: most commands need none or one of them."""
        return typer.main.get_command(cli.application(scripts[name if name in scripts else default]))

    class Command(CheckedCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            own_parser = self.make_parser(ctx)
            own_parser.ignore_unknown_options = True
            parser = parser_of(own_parser.parse_args(args=list(args))[0].get("command") or default)
            own, flags = split_flags(args, self.get_params(ctx), parser.params)
            rest = super().parse_args(ctx, own)
            # What the script's parser would refuse is refused now, and not in a container.
            parser.make_context(ctx.command_path, list(flags.words))
            ctx.obj = flags
            return rest

        def format_options(self, ctx: Any, formatter: Any) -> None:
            super().format_options(ctx, formatter)
            parser = parser_of(default)
            passed = [each for each in parser.params if not set(each.opts) & set(_NOT_PASSED_ON)]
            records = [record for record in (each.get_help_record(ctx) for each in passed) if record is not None]
            with formatter.section(f"Options passed on to {default}"):
                formatter.write_dl(records)

    return Command


class PassingAll(CheckedCommand):
    """A command that passes on, as `context.obj`, every flag that it does not know, with the words that follow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = ctx.allow_extra_args = True
        super().parse_args(ctx, args)
        script = ctx.params["script"]
        if script.startswith("-"):
            # Whether the next word is its value or the script, nobody can tell.
            ctx.fail(f"{script}: expected the script's name before the script's flags")
        ctx.obj, ctx.args = ScriptFlags(tuple(ctx.args)), []
        return []
