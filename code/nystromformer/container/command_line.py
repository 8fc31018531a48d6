"""Commands that take a script's flags beside their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand

from nystromformer import cli
from nystromformer.checked_command import CheckedCommand
from nystromformer.container.flags import ScriptFlags, split_flags

_NOT_PASSED_ON = ("--model", "--help")


def passing_flags_to(
    scripts: Mapping[str, Callable[..., Any]], default: str, option: str | None = None
) -> type[TyperCommand]:
    """The class of a command that gives a script's flags as `context.obj`, checked by the script's own parser.

    Args:
        scripts: the function that each script runs, by the launcher's name of it.
        default: the script, if no option says otherwise.
        option: of the command, that names a script.
    """

    @cache
    def parser_of(name: str) -> Any:
        """Made when it is needed: most commands need none or one of them."""
        return typer.main.get_command(cli.application(scripts[name if name in scripts else default]))

    class Command(CheckedCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            parser = parser_of(_value(args, option) or default)
            own, flags = split_flags(args, self.get_params(ctx), parser.params)
            rest = super().parse_args(ctx, own)
            # What the script's parser would refuse is refused now, and not in a container.
            parser.make_context(ctx.command_path, list(flags.argv))
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


def _value(args: Sequence[str], option: str | None) -> str | None:
    """What the command line gives an option, at the last of its places as for the parser; or None."""
    last = None
    for index, word in enumerate(args):
        name, equals, value = word.partition("=")
        if option is not None and name == option:
            last = value if equals else (args[index + 1] if index + 1 < len(args) else None)
    return last


class PassingAll(CheckedCommand):
    """A command that passes on, as `context.obj`, every flag that it does not know, with the words that follow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = self.get_params(ctx)
        names = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
        mine: list[str] = []
        words: list[str] = []
        has_name = False
        rest = list(args)
        while rest:
            word = rest.pop(0)
            name, equals, _ = word.partition("=")
            if name in names:
                mine.append(word)
                if not getattr(names[name], "is_flag", False) and not equals and rest:
                    mine.append(rest.pop(0))
            elif not has_name and not word.startswith("-"):
                has_name = True
                mine.append(word)
            elif not has_name:
                # Whether the next word is its value or the script, nobody can tell.
                ctx.fail(f"{word}: expected the script's name before the script's flags")
            else:
                words.append(word)
        ctx.obj = ScriptFlags(words=tuple(words))
        return super().parse_args(ctx, mine)
