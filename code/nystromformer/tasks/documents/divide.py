"""Which rows of a table are held out to choose by: a share, the latest, or whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime

import numpy as np

from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.tabular.cells import Cell, as_number
from nystromformer.tasks.finetuning.examples import Texts, select, share_of, split_validation
from nystromformer.wording import number_of

_SHARE_STREAM, _GROUP_STREAM = 32, 34


def divide(
    texts: Texts, validation: str, is_class: bool, group: Sequence[Cell] = (), time: Sequence[Cell] = ()
) -> tuple[Texts, Texts]:
    """The rows to train on and those to choose by, both in the table's order: a function of the table and the flags.

    Of classes the same share of each is held out; of rows with a group whole groups; of rows with a time the latest,
    and rows of one time stay together.
    """
    share, seed = share_of(validation)
    if is_class and not time and not group:
        return split_validation(texts, share, seed)
    if time:
        held_out = _latest(texts, time, share)
    elif group:
        held_out = _of_groups(texts, group, share, seed)
    else:
        held_out = np.zeros(len(texts), dtype=bool)
        held_out[permute(np.arange(round(share * len(texts))), len(texts), seed, _SHARE_STREAM)] = True
    if not held_out.any() or held_out.all():
        side = "choose by" if not held_out.any() else "train on"
        raise UserError(
            f"{texts.name}: --validation {validation} of {number_of(len(texts), 'row')} leaves none to {side}"
        )
    name = f"{texts.name.removesuffix('train')}validation"
    return select(texts, np.flatnonzero(~held_out)), select(texts, np.flatnonzero(held_out), name)


def _of_groups(texts: Texts, group: Sequence[Cell], share: float, seed: int) -> np.typing.NDArray[np.bool_]:
    """Whole groups, drawn until they have the share of the rows; at least one is left to train on."""
    names, of_rows = np.unique(np.asarray([str(cell).strip() for cell in group]), return_inverse=True)
    if len(names) < 2:
        raise UserError(f"--group: expected two groups or more, found {names[0]} in every row of {texts.name}")
    sizes = np.bincount(of_rows)
    held: list[int] = []
    for number in permute(np.arange(len(names) - 1), len(names), seed, _GROUP_STREAM).tolist():
        if held and sizes[held].sum() >= share * len(texts):
            break
        held.append(number)
    return np.isin(of_rows, held)


def _latest(texts: Texts, time: Sequence[Cell], share: float) -> np.typing.NDArray[np.bool_]:
    moments = [_moment(texts, number, cell) for number, cell in enumerate(time)]
    try:
        ordered = sorted(moments)
    except TypeError:
        raise UserError(f"--time: expected numbers or dates in {texts.name}, found both") from None
    last = ordered[max(len(ordered) - 1 - max(round(share * len(ordered)), 1), 0)]
    held_out = np.asarray([moment > last for moment in moments])  # type: ignore[operator]
    if not held_out.any():
        raise UserError(f"--time: {texts.name}: too many rows have the latest time, so that none can be held out")
    return held_out


def _moment(texts: Texts, number: int, cell: Cell) -> float | datetime:
    if (value := as_number(cell)) is not None:
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
