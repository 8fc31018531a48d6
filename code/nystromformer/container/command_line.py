"""Commands that take a script's flags beside their own: checked here, before there is a container, and passed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand

from nystromformer.command_line import cli
from nystromformer.command_line.checked_command import CheckedCommand

_NOT_PASSED_ON = ("--model", "--help")
_SCRIPT = f"{__name__}.script"
"""Of a parser's context: which script's flags it takes."""


@dataclass(frozen=True)
class ScriptFlags:
    """A script's arguments as words, in the order given."""

    words: tuple[str, ...] = ()

    def values(self, name: str) -> list[str]:
        """All values of a flag."""
        return [value for _, _, value in self._places(name)]

    def last(self, name: str) -> str | None:
        """The value of a flag that counts; None without the flag."""
        return next(iter(self.values(name)[-1:]), None)

    def without(self, name: str) -> ScriptFlags:
        words = list(self.words)
        for begin, end, _ in reversed(list(self._places(name))):
            del words[begin:end]
        return ScriptFlags(tuple(words))

    def with_value(self, name: str, value: str) -> ScriptFlags:
        """The same with one value of a flag in place of all that it has, if any."""
        return ScriptFlags((*self.without(name).words, name, value))

    def _places(self, name: str) -> Iterator[tuple[int, int, str]]:
        """Where the words of a flag begin and end, and its value."""
        for index, word in enumerate(self.words):
            if word.startswith(f"{name}="):
                yield index, index + 1, word.removeprefix(f"{name}=")
            elif word == name and index + 1 < len(self.words):
                yield index, index + 2, self.words[index + 1]


def passing_flags_to(scripts: Mapping[str, Callable[..., Any]], default: str) -> type[TyperCommand]:
    """The class of a command that has a script's flags, too, and gives those that are set as `context.obj`. A flag of
    both is the command's own.

    Args:
        scripts: the function that each script runs, by the launcher's name of it.
        default: the script, if the command has no option `command` that names another one.
    """

    @cache
    def flags_of(name: str) -> list[Any]:
        """Made when they are needed: most commands need none or those of one script."""
        parser = typer.main.get_command(cli.application(scripts[name if name in scripts else default]))
        return [each for each in parser.params if not set(each.opts) & set(_NOT_PASSED_ON)]

    class Command(CheckedCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            own = super().get_params(ctx)
            return [*own, *self._passed_on(own, ctx.meta.get(_SCRIPT, default))]

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            own_parser = self.make_parser(ctx)
            own_parser.ignore_unknown_options = True
            ctx.meta[_SCRIPT] = own_parser.parse_args(args=list(args))[0].get("command") or default
            typed = self.make_parser(ctx).parse_args(args=list(args))[0]
            rest = super().parse_args(ctx, args)
            words: list[str] = []
            for flag in self._passed_on(super().get_params(ctx), ctx.meta[_SCRIPT]):
                del ctx.params[flag.name]
                value = typed.get(flag.name)
                if isinstance(value, bool):
                    words.append((flag.opts if value else flag.secondary_opts)[0])
                elif value is not None:
                    words += [word for each in (value if flag.multiple else [value]) for word in (flag.opts[0], each)]
            ctx.obj = ScriptFlags(tuple(words))
            return rest

        def format_options(self, ctx: Any, formatter: Any) -> None:
            passed = self._passed_on(super().get_params(ctx), default)
            ctx.meta[_SCRIPT] = None
            super().format_options(ctx, formatter)
            with formatter.section(f"Options passed on to {default}"):
                formatter.write_dl([record for each in passed if (record := each.get_help_record(ctx)) is not None])

        def _passed_on(self, own: Sequence[Any], script: str | None) -> list[Any]:
            """The flags of a script, if any, that are none of the command's own."""
            names = {name for each in own for name in (*each.opts, *each.secondary_opts)}
            return [flag for flag in (flags_of(script) if script else ()) if names.isdisjoint(flag.opts)]

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
