"""The types of what the attentions may be told, written out: a type checker runs no code, and sees a misspelt one."""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from .attention import ATTENTIONS

PARAMETERS_FILE = Path(__file__).with_name("attention_parameters.py")
TAKEN = ("heads",)
"""Parameters of attentions that have the name of a layer's own."""


def parameters_module() -> str:
    """The text of attention_parameters.py: the parameters of all attentions, each with its type."""
    types: dict[str, list[str]] = {}
    for config in ATTENTIONS.values():
        for name, field in config.model_fields.items():
            if name != "name":
                found = types.setdefault(name, [])
                found += [part for part in _parts(field.annotation) if part not in found]
    lines = {name: f"    {name}: {' | '.join(sorted(parts, key='None'.__eq__))}" for name, parts in types.items()}
    return _TEXT.format(
        layers="\n".join(line for name, line in sorted(lines.items()) if name not in TAKEN),
        others="\n".join(line for name, line in sorted(lines.items()) if name in TAKEN),
    )


def _parts(annotation: Any) -> list[str]:
    """A type as it is written, a part for each type that it may be."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _parts(arguments[0])
    if origin in (Union, UnionType):
        return [part for argument in arguments for part in _parts(argument)]
    if origin is Literal:
        return [f"Literal[{', '.join(chr(34) + value + chr(34) for value in arguments)}]"]
    if origin is tuple:
        return [f"tuple[{', '.join('...' if each is ... else ' | '.join(_parts(each)) for each in arguments)}]"]
    return ["None" if annotation is NoneType else annotation.__name__]


_TEXT = '''"""The parameters of all attentions with their types, written by `python -m nystromformer.config`.

The configs in nystromformer/config/attention/ say what each does and which attention has it.
"""

from typing import Literal, TypedDict


class LayerParameters(TypedDict, total=False):
    """Those that a layer takes beside its own."""

{layers}


class AttentionParameters(LayerParameters, total=False):
    """All of them."""

{others}
'''
