"""The flags of `run_classify.py` as what they ask for; imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.tasks.documents.answer import KINDS, Kind
from nystromformer.tasks.documents.hub import PREFIX

BALANCED = "balanced"
_NAME = re.compile(r"[\w][\w.-]{0,79}")
_TRIALS = "cache"
"""The folder of a task's trials, which no report counts."""


def check_kind(text: str | None) -> Kind | None:
    """What --kind names; None where it is left out.

    Raises:
        UserError: no such kind.
    """
    for kind in KINDS:
        if text == kind:
            return kind
    if text is None:
        return None
    raise UserError(f"--kind {text}: expected one of {', '.join(KINDS)}")


def check_separator(text: str | None, kind: Kind | None) -> str:
    """What --separator says, or a comma.

    Raises:
        UserError: it stands beside another kind than several labels, or cannot stand between them in a file.
    """
    if text is None:
        return ","
    if kind != "several":
        raise UserError(f"--separator {text!r}: expected --kind several with it")
    if not text.isprintable() or not text:
        raise UserError(f"--separator {text!r}: expected characters that can be shown, such as ;")
    return text


def check_weights(text: str | None) -> str | Mapping[str, float] | None:
    """What --class_weights says: `balanced`, or `spam=3,other=1`.

    Raises:
        UserError: neither.
    """
    if text is None or text == BALANCED:
        return text
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not equals or not 0 < weight < math.inf or name.strip() in weights:
            raise UserError(
                f"--class_weights {text}: expected balanced, or a weight above 0 of each class, such as spam=3,other=1"
            )
        weights[name.strip()] = weight
    return weights


def name_of(given: str | None, train: str) -> str:
    """What the task is called: --task, or what the training table is called.

    Raises:
        UserError: no folder can have the name.
    """
    if given is None:
        stem = train.removeprefix(PREFIX) if train.startswith(PREFIX) else Path(train).stem
        name = re.sub(r"[^\w.-]+", "-", stem).strip("-.")[:80] or "table"
        return "table" if name == _TRIALS else name
    if not _NAME.fullmatch(given) or given == _TRIALS:
        text = f"expected letters, digits, and . _ - between them, at most 80, and another name than {_TRIALS}"
        raise UserError(f"--task {given}: {text}")
    return given


def classes_named(text: str | None) -> tuple[str, ...]:
    """What --order lists."""
    return () if text is None else tuple(" ".join(part.split()) for part in text.split(","))
