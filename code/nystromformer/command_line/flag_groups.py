"""Flags that several commands have in common, declared once: as the fields of a frozen dataclass.

    @dataclass(frozen=True)
    class Pace:
        steps: Annotated[int, typer.Option("--steps", help="Steps to take.")] = 10
        uphill: Annotated[bool, typer.Option("--uphill", help="Refuse to go down.")] = False

    @with_flag_groups
    def walk(place: str, pace: Pace) -> None: ...

Typer, and whoever else reads the signature of `walk`, sees `place`, `steps` and `uphill`; `walk` itself is called with
the `Pace` that they make. Two things may differ from one command to the next: the defaults, which are those of the
parameter's own default (`pace: Pace = QUICK`), and which flags there are (`pace: Annotated[Pace, Without("uphill")]`).
A field may also name its flag in its metadata: `field(default=10, metadata={"option": make})`, where `make("steps")` is
the `typer.Option` of a field that is called steps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

R = TypeVar("R")


class Without:
    """Fields of a group that are no flags of this command: they keep their defaults."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields


def with_flag_groups(command: Callable[..., R]) -> Callable[..., R]:
    """The command with one keyword parameter for each field of each parameter that is a dataclass, in its place."""
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    """By parameter: what makes its value from those of its flags, and their names."""
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        kind, notes = parameter.annotation, []
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            flags = _flags_of(kind, parameter.default, {name for note in notes for name in getattr(note, "fields", ())})
            has_own = parameter.default is not Parameter.empty
            make = functools.partial(dataclasses.replace, parameter.default) if has_own else kind
            groups[parameter.name] = make, [flag.name for flag in flags]
            parameters += flags
        else:
            # Flags take no place among the arguments, and neither can what comes after them.
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY) if groups else parameter)
    seen = Signature(parameters)

    @functools.wraps(command)
    def with_flags(*args: Any, **kwargs: Any) -> R:
        bound = seen.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for name, (make, fields) in groups.items():
            values[name] = make(**{each: values.pop(each) for each in fields})
        return command(**values)

    with_flags.__signature__ = seen  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_flags


def _flags_of(kind: Any, own: Any, left_out: set[str]) -> list[Parameter]:
    """The fields of a dataclass as keyword parameters, whose defaults are those of `own` where there is one."""
    hints, flags = get_type_hints(kind, include_extras=True), []
    for field in dataclasses.fields(kind):
        if not field.init or field.name in left_out:
            continue
        default = field.default
        if own is not Parameter.empty:
            default = getattr(own, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        elif default is dataclasses.MISSING:
            default = Parameter.empty
        hint = hints[field.name]
        if "option" in field.metadata:
            hint = Annotated[hint, field.metadata["option"](field.name)]
        flags.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    return flags
