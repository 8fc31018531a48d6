"""What `run_classify.py` is asked: where the tables are, what their columns mean, and what is to be learned of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.tabular.reading import Reading
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.documents.divide import Division
from nystromformer.tasks.documents.recipe import KINDS, Kind

BALANCED = "balanced"
_NAME = re.compile(r"[\w][\w.-]{0,79}")
_CACHE = "cache"
"""A folder that no report counts."""


@dataclass(frozen=True)
class Question:
    """Each field is as a flag says it.

    Args:
        name: of the task, below documents/.
        train, test: tables, as `open_place` takes them; test may be None.
        text, label: columns, as they were typed.
        default: where relative names are that are not in the current folder.
        reading: what the tables' files do not say.
        id, group, time: columns, or None.
        skip_empty: leave rows without text, or without a label, out.
        kind: None: as the labels tell.
        separator: between several labels of a cell.
        order: the classes from the lowest on; empty: as numbers have it.
        weights: "balanced", or of each class by its name; None: all alike.
        cut: None: as the texts' lengths tell, see `Documents.fit_length`.
    """

    name: str
    train: str
    text: str
    label: str
    test: str | None = None
    default: Path = Path()
    reading: Reading = Reading()  # noqa: RUF009  # immutable
    id: str | None = None
    group: str | None = None
    time: str | None = None
    skip_empty: bool = False
    kind: Kind | None = None
    separator: str = ","
    order: tuple[str, ...] = ()
    weights: str | Mapping[str, float] | None = None
    cut: Cut | None = None
    division: Division = field(default_factory=Division)


def kind_of(text: str | None) -> tuple[Kind | None, str, tuple[str, ...]]:
    """What --kind names: a kind, what separates several labels of a cell, and the order of ordered classes.

    Raises:
        UserError: no such kind, or another key than `several,separator=TEXT` and `ordered,order=LOW/…/HIGH` have.
    """
    if text is None:
        return None, ",", ()
    name, comma, setting = text.partition(",")
    key, _, value = setting.partition("=")
    kind = next((each for each in KINDS if each == name), None)
    if kind == "several" and key == "separator" and value:
        return kind, value, ()
    if kind == "ordered" and key == "order" and value:
        return kind, ",", tuple(" ".join(part.split()) for part in value.split("/"))
    if kind is None or comma:
        raise UserError(
            f"--kind {text}: expected one of {', '.join(KINDS)}; several,separator=TEXT; or ordered,order=LOW/…/HIGH"
        )
    return kind, ",", ()


def weights_of(text: str | None) -> str | Mapping[str, float] | None:
    """What --class_weights says: `balanced`, or `spam=3,other=1`.

    Raises:
        UserError: neither.
    """
    if text is None or text == BALANCED:
        return text
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name.strip() or not 0 < weight < math.inf or name.strip() in weights:
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
        name = re.sub(r"[^\w.-]+", "-", Path(train).stem).strip("-.")[:80] or "table"
        return "table" if name == _CACHE else name
    if not _NAME.fullmatch(given) or given == _CACHE:
        raise UserError(
            f"--task {given}: expected letters, digits, and . _ - between them, at most 80, and another name than "
            f"{_CACHE}"
        )
    return given
