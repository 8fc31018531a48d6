"""Tables of the Hugging Face hub, through the datasets library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from nystromformer.data.hub import load_split
from nystromformer.errors import UserError, first_line
from nystromformer.tasks.documents.table import Row, Table

PREFIX = "hub:"
_NAME = re.compile(r"hub:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<config>[\w.-]+))?(?::(?P<split>[\w.-]+))?")


def open_hub(place: str, split: str) -> Table:
    """The table that `hub:NAME`, `hub:NAME:SPLIT` or `hub:NAME@CONFIG:SPLIT` names. Class numbers become their names.

    Args:
        split: where the place names none.

    Raises:
        UserError: it names none, or the table cannot be loaded.
    """
    match = _NAME.fullmatch(place)
    if match is None:
        raise UserError(f"{place}: expected hub:NAME, hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT")
    try:
        data = load_split(match["name"], match["config"], match["split"] or split)
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"{place}: cannot be loaded from the hub: {first_line(error)}. It needs a network, or the table in the "
            "library's cache; without these, name a file"
        ) from error
    names = {name: feature.names for name, feature in data.features.items() if hasattr(feature, "names")}

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for row in data.select_columns(list(dict.fromkeys(columns))):
            yield tuple(_named(row[column], names.get(column)) for column in columns)

    return Table(place, tuple(data.column_names), read)


def _named(cell: Any, names: Sequence[str] | None) -> Any:
    """A class' name in the place of its number; -1 stands for none."""
    if names is None or not isinstance(cell, int):
        return cell
    return names[cell] if cell >= 0 else None
