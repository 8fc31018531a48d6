"""Which rows of a table are held out to choose by: a share, the latest, or whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.tabular.cells import Cell, as_number
from nystromformer.tasks.finetuning.examples import Texts, select, share_of, split_validation
from nystromformer.wording import number_of

_SHARE_STREAM, _GROUP_STREAM = 32, 34


@dataclass(frozen=True)
class Division:
    """How the rows to choose by are found.

    Args:
        file: a table of their own; None: they are a part of the training table.
        share: of the training table.
        seed: which rows those are.
    """

    file: str | None = None
    share: float = 0.1
    seed: int = 0


def division_of(validation: str | None, group: str | None, time: str | None) -> Division:
    """What the flags ask for; None: they were not given. --validation is a table, a share, or `SHARE,seed=N`.

    Raises:
        UserError: they exclude each other, or the share is none.
    """
    text = f"{Division.share}" if validation is None else validation
    if as_number(text.partition(",")[0]) is None:
        for flag, value in {"--group": group, "--time": time}.items():
            if value is not None:
                raise UserError(f"--validation {text}: expected no {flag} together with a validation table")
        return Division(text)
    if time is not None and (group is not None or "," in text):
        raise UserError(f"--time {time}: expected no {'--group' if group else 'seed of --validation'} with it")
    return Division(None, *share_of(text))


def divide(
    texts: Texts, division: Division, is_class: bool, group: Sequence[Cell] = (), time: Sequence[Cell] = ()
) -> tuple[Texts, Texts]:
    """The rows to train on and those to choose by, both in the table's order: a function of the table and the flags.

    Args:
        is_class: whether labels are classes, of each of which the same share is held out.
        group: of each row; a group is never divided.
        time: of each row; the latest are held out, and rows of one time stay together.

    Raises:
        UserError: that leaves no rows on one side, or a time is none.
    """
    if time:
        held_out = _latest(texts, time, division.share)
    elif group:
        held_out = _of_groups(texts, group, division)
    elif is_class:
        return split_validation(texts, division.share, division.seed)
    else:
        held_out = np.zeros(len(texts), dtype=bool)
        count = round(division.share * len(texts))
        held_out[permute(np.arange(count), len(texts), division.seed, _SHARE_STREAM)] = True
    if not held_out.any() or held_out.all():
        side = "choose by" if not held_out.any() else "train on"
        rows = number_of(len(texts), "row")
        raise UserError(f"{texts.name}: --validation {division.share:g} of {rows} leaves none to {side}")
    name = f"{texts.name.removesuffix('train')}validation"
    return select(texts, np.flatnonzero(~held_out)), select(texts, np.flatnonzero(held_out), name)


def _of_groups(texts: Texts, group: Sequence[Cell], division: Division) -> np.typing.NDArray[np.bool_]:
    """Whole groups, drawn until they have the share of the rows; at least one is left to train on."""
    names, of_rows = np.unique(np.asarray([str(cell).strip() for cell in group]), return_inverse=True)
    if len(names) < 2:
        raise UserError(f"--group: expected two groups or more, found {names[0]} in every row of {texts.name}")
    sizes = np.bincount(of_rows)
    held: list[int] = []
    for number in permute(np.arange(len(names) - 1), len(names), division.seed, _GROUP_STREAM).tolist():
        if held and sizes[held].sum() >= division.share * len(texts):
            break
        held.append(number)
    return np.isin(of_rows, held)


def _latest(texts: Texts, time: Sequence[Cell], share: float) -> np.typing.NDArray[np.bool_]:
    moments = [_moment(texts, number, cell) for number, cell in enumerate(time)]
    if len({type(moment) for moment in moments}) > 1:
        raise UserError(f"--time: expected numbers or dates in {texts.name}, found both")
    ordered: list[Any] = sorted(moments)  # of one type, as was checked
    last = ordered[max(len(ordered) - 1 - max(round(share * len(ordered)), 1), 0)]
    held_out = np.asarray([moment > last for moment in moments])
    if not held_out.any():
        raise UserError(f"--time: {texts.name}: too many rows have the latest time, so that none can be held out")
    return held_out


def _moment(texts: Texts, number: int, cell: Cell) -> float | datetime:
    value = as_number(cell)
    if value is not None:
        return value
    try:
        moment = datetime.fromisoformat(cell.isoformat() if isinstance(cell, date) else str(cell).strip())
    except ValueError:
        row = number + 1 if texts.ids is None else texts.ids[number]
        raise UserError(
            f"--time: {texts.name}, row {row}: expected a number or a date such as 2026-01-31, found {cell!r:.40}"
        ) from None
    # Dates with and without a zone cannot be compared: without one it is that of Greenwich.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
