"""What no flag of any command may be, whatever it means: checked before the command gets it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

_LONGEST_SHOWN = 60
GIVEN: dict[str, tuple[str, ...]] = {}
"""The flags of this process' command, each with the words behind it as they were typed."""
ARGUMENTS: list[str] = []
"""The words before them: of a script with several commands the command's name, and the arguments."""


class CheckedCommand(TyperCommand):
    """A command whose arguments and flags are text and not empty, and whose numbers are finite. What is out of a flag's
    range is told with the range.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The words as they were typed: an empty path has become the current folder later on.
        words, left, _ = self.make_parser(ctx).parse_args(args=list(args))
        if left and not ctx.allow_extra_args:
            raise typer.BadParameter(_unexpected(args, left[0]), ctx)
        parameters = {each.name: each for each in self.get_params(ctx)}
        typed = (words.get(name) for name, each in parameters.items() if each.param_type_name == "argument")
        command = [] if ctx.parent is None else [ctx.info_name]
        ARGUMENTS[:] = [*command, *(word for one in typed for word in _each(one) if isinstance(word, str))]
        GIVEN.clear()
        GIVEN.update(_given_flags(parameters, words))
        for name, parameter in parameters.items():
            for text in _each(words.get(name)):
                _refuse(_wrong_text(text), text, ctx, parameter)
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            wrong: Any = error.param
            for text in _each(words.get(getattr(wrong, "name", ""))):
                _refuse(_range(wrong), text, ctx, wrong)
            raise
        for name, parameter in parameters.items():
            for value in _each(ctx.params.get(name)):
                is_finite = not isinstance(value, float) or math.isfinite(value)
                _refuse(None if is_finite else "a finite number", value, ctx, parameter)
        return rest


def _given_flags(parameters: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    given: dict[str, tuple[str, ...]] = {}
    for name, parameter in parameters.items():
        if name in words and parameter.param_type_name == "option":
            if parameter.is_flag:
                given[parameter.opts[0] if words[name] else parameter.secondary_opts[0]] = ()
            else:
                given[parameter.opts[0]] = tuple(map(str, _each(words[name])))
    return given


def _refuse(expected: str | None, value: object, ctx: Any, parameter: Any) -> None:
    if expected:
        raise typer.BadParameter(f"expected {expected}, found {_shown(value)}", ctx, parameter)


def _unexpected(args: Sequence[str], word: str) -> str:
    """What to say of a word that no flag and no argument takes."""
    place = args.index(word)
    flag = args[place - 1] if place and args[place - 1].startswith("--") else None
    return f"expected no further argument{f' after {flag}' if flag else ''}, found {_shown(word)}"


def _each(value: object) -> Iterator[object]:
    yield from value if isinstance(value, list | tuple) else (value,)


def _wrong_text(text: object) -> str | None:
    """What is expected in the place of a word that was typed; None where nothing is wrong with it."""
    if text == "":
        return "a value that is not empty"
    return "text in UTF-8" if isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text) else None


def _range(parameter: Any) -> str | None:
    """What a number may be; None of a flag that has no bounds."""
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    # Typer says the type by name since 0.29.
    noun = "an integer" if getattr(parameter, "bare_type", lambda: "")() == "int" else "a number"
    if least is None:
        return None if most is None else f"{noun} of at most {_number(most)}"
    return (
        f"{noun} of at least {_number(least)}" if most is None else f"{noun} from {_number(least)} to {_number(most)}"
    )


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _shown(value: object) -> str:
    text = ascii(str(value))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}… of {len(text):,} characters"
