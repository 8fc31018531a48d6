"""What `run_classify.py` is asked: where the tables are, what their columns mean, and what is to be learned of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nystromformer.tasks.documents.answer import Kind
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.documents.divide import Division
from nystromformer.tasks.documents.reading import Reading


@dataclass(frozen=True)
class Question:
    """Each field is as a flag says it.

    Args:
        name: of the task, below documents/.
        train, test: tables, as `open_place` takes them; test may be None.
        text, label: columns, as they were typed.
        folder, default: where relative names are, as of `open_place`.
        reading: what the tables' files do not say.
        separator: between several labels of a cell.
        id, group, time: columns, or None.
        skip_empty, skip_unlabelled: leave rows without text, or without a label, out.
        kind: None: as the labels tell.
        order: the classes from the lowest on; empty: as numbers have it.
        weights: "balanced", or of each class by its name; None: all alike.
        cut: None: as the texts' lengths tell, see `Documents.fit_length`.
    """

    name: str
    train: str
    text: str
    label: str
    test: str | None = None
    folder: Path | None = None
    default: Path = Path()
    reading: Reading = Reading()  # noqa: RUF009  # immutable
    separator: str = ","
    id: str | None = None
    group: str | None = None
    time: str | None = None
    skip_empty: bool = False
    skip_unlabelled: bool = False
    kind: Kind | None = None
    order: tuple[str, ...] = ()
    weights: str | Mapping[str, float] | None = None
    cut: Cut | None = None
    division: Division = field(default_factory=Division)
