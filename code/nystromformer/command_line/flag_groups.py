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
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

R = TypeVar("R")


class Without:
    """Fields of a group that are no flags of this command: they keep their defaults."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields


def with_flag_groups(command: Callable[..., R]) -> Callable[..., R]:
    """The command with one keyword parameter for each field of each parameter that is a dataclass, in its place.

    Raises:
        ValueError: two parameters have one name.
    """
    groups: dict[str, _Group] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = _group_of(parameter)
        if group is not None:
            groups[parameter.name] = group
            parameters += group.flags
        else:
            # Flags take no place among the arguments, and neither can what comes after them.
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) if groups else parameter)
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def with_flags(*args: Any, **kwargs: Any) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for name, group in groups.items():
            values[name] = group.make(**{flag.name: values.pop(flag.name) for flag in group.flags})
        return command(**values)

    with_flags.__signature__ = signature  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_flags


@dataclasses.dataclass(frozen=True)
class _Group:
    """What a parameter stands for: its flags, and what makes its value from theirs."""

    flags: list[inspect.Parameter]
    make: Callable[..., Any]


def _group_of(parameter: inspect.Parameter) -> _Group | None:
    """The flags of a parameter whose type is a dataclass; None of any other."""
    kind, notes = parameter.annotation, []
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return None
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    left_out = {field for note in notes if isinstance(note, Without) for field in note.fields}
    hints = get_type_hints(kind, include_extras=True)
    has_own_default = parameter.default is not parameter.empty
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(parameter.default, name) if has_own_default else _default(field),
            annotation=_with_option(hints[name], field),
        )
        for name, field in fields.items()
        if name not in left_out
    ]
    return _Group(flags, functools.partial(dataclasses.replace, parameter.default) if has_own_default else kind)


def _with_option(kind: Any, field: dataclasses.Field[Any]) -> Any:
    """A field's type with what makes a flag of it: its annotation's, or what `option` of its metadata gives for its
    name.
    """
    return Annotated[kind, field.metadata["option"](field.name)] if "option" in field.metadata else kind


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
