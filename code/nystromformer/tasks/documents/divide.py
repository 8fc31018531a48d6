"""Which rows of a table are held out to choose by: a share, the latest, whole groups, or one of some folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from statistics import NormalDist
from typing import Any

import numpy as np

from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.runs.figures import ERROR_RATE, standard_error
from nystromformer.tasks.documents.label_cells import as_number
from nystromformer.tasks.documents.table import Cell
from nystromformer.tasks.finetuning.divide import split_validation
from nystromformer.tasks.finetuning.examples import Ints, Labels, Texts, select
from nystromformer.wording import number_of

_SHARE_STREAM, _FOLD_STREAM, _GROUP_STREAM = 32, 33, 34
_WIDEST_VALIDATION, _WIDEST_TEST = 0.12, 0.05
"""A split is small where an accuracy of 50 %, the least certain one, is uncertain by more than this: below 67 and 385
rows. Validation may be less certain: epochs and settings are compared on the same rows, so that part of the error is
common to all. A tenth of 1,000 rows, which rounding in each of many classes makes as few as 71, is enough.
"""
_EXAMPLE = 0.8
"""The figure whose uncertainty is shown."""
_FIGURES = {
    "accuracy": "an accuracy",
    "micro_f1": "a micro F1",
    "pearson": "a Pearson correlation",
    "kappa": "a quadratic kappa",
}


@dataclass(frozen=True)
class Division:
    """How the rows to choose by are found.

    Args:
        file: a table of their own; None: they are a part of the training table.
        share: of the training table.
        seed: which rows those are.
        folds: hold out each of so many parts, one run after the other; None: one part.
        fold: the one to hold out, from 1.
    """

    file: str | None = None
    share: float = 0.1
    seed: int = 0
    folds: int | None = None
    fold: int = 1

    @property
    def ending(self) -> str:
        """Of the task's name."""
        return f"-fold-{self.fold}-of-{self.folds}" if self.folds else ""


def check_division(
    validation: str | None, seed: int | None, folds: int | None, group: str | None, time: str | None
) -> Division:
    """What the flags ask for; None: they were not given.

    Raises:
        UserError: they exclude each other, or the share is none.
    """
    share = Division.share if validation is None else as_number(validation)
    if share is None:
        assert validation is not None
        given = {"--folds": folds, "--group": group, "--time": time, "--split_seed": seed}
        if found := [flag for flag, value in given.items() if value is not None]:
            raise UserError(f"--validation {validation}: expected no {found[0]} together with a validation table")
        return Division(validation)
    if not 0 < share < 1:
        raise UserError(
            f"--validation {validation}: expected a table, or a share between 0 and 1, such as 0.1; "
            f"{validation} is neither"
        )
    beside = {"--folds": folds, "--group": group, "--split_seed": seed}
    if time is not None and (found := [flag for flag, value in beside.items() if value is not None]):
        raise UserError(f"--time {time}: expected no {found[0]} with it")
    if folds is not None and validation is not None:
        raise UserError(f"--folds {folds}: expected no --validation with it, found {validation}")
    return Division(None, share, seed or 0, folds)


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
    if not (group or time or division.folds) and is_class:
        return split_validation(texts, division.share, division.seed)
    if time:
        held_out = _latest(texts, time, division.share)
    elif division.folds:
        held_out = _folds(texts, division, is_class, group) == division.fold - 1
    elif group:
        held_out = _of_groups(texts, group, division)
    else:
        held_out = np.zeros(len(texts), dtype=bool)
        count = round(division.share * len(texts))
        held_out[permute(np.arange(count), len(texts), division.seed, _SHARE_STREAM)] = True
    if not held_out.any() or held_out.all():
        side = "choose by" if not held_out.any() else "train on"
        where = f"fold {division.fold} of {division.folds}" if division.folds else f"--validation {division.share:g}"
        raise UserError(f"{texts.name}: {where} of {number_of(len(texts), 'row')} leaves none to {side}")
    name = f"{texts.name.removesuffix('train')}validation"
    return select(texts, np.flatnonzero(~held_out)), select(texts, np.flatnonzero(held_out), name)


def _folds(texts: Texts, division: Division, is_class: bool, group: Sequence[Cell]) -> Ints:
    """The fold of each row, from 0."""
    folds = division.folds
    assert folds is not None
    if group:
        return _folds_of_groups(group, folds, division.seed)
    if folds > len(texts):
        raise UserError(f"--folds {folds}: {texts.name} has {number_of(len(texts), 'row')}: a fold would have none")
    of_rows = np.zeros(len(texts), dtype=np.int64)
    labels: Labels = texts.labels if is_class and texts.labels is not None else of_rows.copy()
    begun = 0
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = permute(np.arange(len(members)), len(members), division.seed, _FOLD_STREAM, int(label))
        # Each class goes on with the fold after the one before it: rare ones do not all come to the first.
        of_rows[members] = (begun + order) % folds
        begun += len(members)
    return of_rows


def _folds_of_groups(group: Sequence[Cell], folds: int, seed: int) -> Ints:
    names, of_rows = _groups(group)
    if folds > len(names):
        raise UserError(
            f"--folds {folds}: --group has {number_of(len(names), 'group')}, so that a fold would have no rows"
        )
    sizes = np.bincount(of_rows)
    order = permute(np.arange(len(names)), len(names), seed, _GROUP_STREAM)
    filled, fold_of = np.zeros(folds, dtype=np.int64), np.zeros(len(names), dtype=np.int64)
    # Large ones first, each to the fold that has the fewest rows; of equals, chance decides.
    for number in sorted(range(len(names)), key=lambda each: (-sizes[each], order[each])):
        fold_of[number] = int(np.argmin(filled))
        filled[fold_of[number]] += sizes[number]
    return fold_of[of_rows]


def _of_groups(texts: Texts, group: Sequence[Cell], division: Division) -> np.typing.NDArray[np.bool_]:
    """Whole groups, drawn until they have the share of the rows; at least one is left to train on."""
    names, of_rows = _groups(group)
    if len(names) < 2:
        raise UserError(f"--group: expected two groups or more, found {names[0]} in every row of {texts.name}")
    sizes = np.bincount(of_rows)
    held: list[int] = []
    for number in permute(np.arange(len(names) - 1), len(names), division.seed, _GROUP_STREAM).tolist():
        if held and sizes[held].sum() >= division.share * len(texts):
            break
        held.append(number)
    return np.isin(of_rows, held)


def _groups(group: Sequence[Cell]) -> tuple[list[str], Ints]:
    """Their names, and the number of each row's."""
    names, of_rows = np.unique(np.asarray([str(cell).strip() for cell in group]), return_inverse=True)
    return names.tolist(), of_rows


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


def warn_of_few_rows(train: Texts, held_out: Texts, division: Division, metric: str, is_by_time: bool) -> list[str]:
    """A warning of a small validation split; of folds, a small table.

    Args:
        metric: the main one.
        is_by_time: whether the latest rows are held out, which folds cannot be.
    """
    if division.folds:
        uncertain = _uncertainty(len(train) + len(held_out), metric, _WIDEST_VALIDATION)
        count = number_of(len(train) + len(held_out), "row")
        said = f"{train.name} has {count} in its {division.folds} folds: {uncertain}; add labelled rows"
    else:
        uncertain = _uncertainty(len(held_out), metric, _WIDEST_VALIDATION)
        more = "use a larger table" if division.file else "hold out more rows (--validation)"
        advice = more if is_by_time else f"{more}, or use --folds"
        count = number_of(len(held_out), "row")
        said = f"{held_out.name} has {count}: {uncertain}, and the choice of the epoch is partly chance; {advice}"
    return [said] if uncertain else []


def warn_of_few_test_rows(tested: Texts, metric: str) -> list[str]:
    """A warning of a small test table that has labels."""
    uncertain = _uncertainty(len(tested), metric, _WIDEST_TEST)
    if not uncertain or tested.labels is None:
        return []
    count = number_of(len(tested), "row")
    return [f"{tested.name} has {count}: {uncertain}; test on more rows to show smaller differences"]


def _uncertainty(rows: int, metric: str, widest: float) -> str:
    """How uncertain a figure on so many rows is, in words; empty where an accuracy of 50 % is by at most `widest`."""
    deviations = NormalDist().inv_cdf(1 - ERROR_RATE / 2)
    if deviations * standard_error("accuracy", 0.5, rows) <= widest:
        return ""
    points = 100 * deviations * standard_error(metric, _EXAMPLE, rows)
    figure = f"{_FIGURES[metric]} of {100 * _EXAMPLE:.0f} %"
    return f"{figure} on it is uncertain by ±{points:.0f} points ({100 * (1 - ERROR_RATE):.0f} % confidence)"
