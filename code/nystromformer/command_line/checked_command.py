"""What no flag of any command may be, whatever it means: checked before the command gets it."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand


class CheckedCommand(TyperCommand):
    """A command whose words are not empty, whose numbers are finite, and whose flags of one value are given once. Help
    has a heading for each `rich_help_panel`, without loading rich.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if (record := parameter.get_help_record(ctx)) is not None:
                name, text = record
                # Typer's names of types, and limits against slips by orders of magnitude, would only be read over.
                name = re.sub(r"<(?:list\[)?(\w+)\]?(?: range)?>", lambda found: f"<{found[1].lower()}>", name)
                text = re.sub(r"(\d+)<=x<=\d{9,}", r"x>=\1", text)
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append((name, text))
        for heading in sorted(panels, key=lambda heading: heading not in ("Arguments", "Options")):
            with formatter.section(heading):
                formatter.write_dl(panels[heading])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.ignore_unknown_options:  # of launch.py, which passes words on
            args = with_own_attentions_registered(
                args, any("--attention" in each.opts for each in self.get_params(ctx))
            )
        # The words as they were typed: an empty path has become the current folder later on.
        words, _, order = self.make_parser(ctx).parse_args(args=list(args))
        parameters: list[Any] = [*self.get_params(ctx)]
        for each in parameters:
            if "" in _each(words.get(each.name)):
                raise typer.BadParameter("expected a value that is not empty, found ''", ctx, each)
            if _takes_one_value(each) and order.count(each) > 1:
                raise typer.BadParameter(f"expected one value, found {order.count(each)}", ctx, each)
        rest = super().parse_args(ctx, args)
        for each in parameters:
            for value in _each(ctx.params.get(each.name)):
                if isinstance(value, float) and not math.isfinite(value):
                    raise typer.BadParameter(f"expected a finite number, found {value}", ctx, each)
        return rest


def with_own_attentions_registered(args: Sequence[str], is_flag: bool) -> list[str]:
    """The words with `--attention FILE.py:CLASS,…` by the name that the attention has once it is registered. All
    commands take it: those that choose no attention then know what a config.json or a record means by this name.
    """
    words: list[str] = []
    for word in (part for each in args for part in re.split("(?<=^--attention)=", each, maxsplit=1)):
        own = re.fullmatch(r"([^,{]+\.py):(\w+)((?:,.*)?)", word, re.DOTALL)
        if own is None or words[-1:] != ["--attention"]:
            words.append(word)
            continue
        if own[3] and not is_flag:
            known = f"config.json or the run says which attention it is: expected {own[1]}:{own[2]} alone"
            raise typer.BadParameter(f"--attention {word}: {known}, by which its name becomes known")
        from nystromformer.attention.registry import register_from_file

        try:
            name = register_from_file(Path(own[1]), own[2])
        except ValueError as error:
            raise typer.BadParameter(f"--attention {word}: {error}") from None
        if is_flag:
            words.append(name + own[3])
        else:
            del words[-1]
    return words


def _takes_one_value(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not (parameter.is_flag or parameter.multiple)


def _each(value: object) -> Iterator[object]:
    yield from value if isinstance(value, list | tuple) else (value,)
