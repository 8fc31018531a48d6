"""What a label column asks for: one of some classes, several at once, a value, or one of ordered classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT
from nystromformer.tabular.cells import as_number, whole_number
from nystromformer.tasks.documents.label_cells import LabelCells
from nystromformer.tasks.finetuning.examples import Ints, Labels
from nystromformer.wording import first_names, listed, number_of

Kind = Literal["classes", "several", "value", "ordered"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_CLASSES = 20
"""Different whole numbers that are taken for classes where --kind does not say what they are."""


@dataclass(frozen=True)
class Answer:
    """What is learned of each text, and how its label becomes a number and back."""

    __pydantic_config__ = STRICT

    kind: Kind
    names: tuple[str, ...] = ()
    """Of the classes, in the order of their numbers; none of a value."""
    mean: float = 0.0
    deviation: float = 1.0
    """Of the training rows' values: what is learned is how many deviations a value is from their mean."""

    @property
    def outputs(self) -> int:
        """Of the head."""
        return 1 if self.kind == "value" else len(self.names) - (self.kind == "ordered")


def answer_of(labels: LabelCells, wanted: Kind | None, order: Sequence[str] = ()) -> Answer:
    """What the labels of a training table ask for.

    Args:
        wanted: by --kind; None: as the labels tell.
        order: the classes from the lowest on; empty: of numbers their own.

    Raises:
        UserError: labels are missing, none of the kind, or all the same; says how many and where.
    """
    kind = wanted or _guess_kind(labels)
    if len(labels.columns) > 1 and kind != "several":
        raise UserError(f"--kind {kind}: expected one column of labels, found {', '.join(labels.columns)}")
    if kind == "several":
        return _answer_several(labels)
    if kind == "value":
        values = np.asarray(labels.values())
        if (values == values[0]).all():
            raise UserError(f"{labels.name}: expected different values to learn, found {values[0]:g} in every row")
        return Answer(kind, (), float(values.mean()), float(values.std()))
    spelt = _respell(order, labels.spelt())
    counts = Counter(spelt)
    if len(counts) == 1:
        raise UserError(f"{labels.name}: expected two classes or more, found {spelt[0]!r} in every row")
    if len(counts) == len(spelt) > MOST_CLASSES:
        raise UserError(
            f"{labels.name}: expected classes that texts share, found another label in each of its {len(spelt):,} "
            "rows. Name another column, or --kind value where these are numbers"
        )
    if order:
        if len(set(order)) < len(order):
            raise UserError(f"--kind ordered,order: expected each class once, found {', '.join(order)}")
        if unknown := sorted(counts.keys() - set(order)):
            raise UserError(
                f"--kind ordered,order: expected all classes of {labels.name}, found none of {first_names(unknown)}"
            )
        return Answer(kind, tuple(order))
    numeric = all(as_number(name) is not None for name in counts)
    if kind == "ordered" and not numeric:
        raise UserError(
            f"--kind ordered: expected ordered,order=LOW/…/HIGH, of these classes: {first_names(list(counts))}"
        )
    return Answer(kind, tuple(sorted(counts, key=lambda name: (as_number(name) or 0.0, name) if numeric else name)))


def numbers_of(answer: Answer, labels: LabelCells) -> Labels:
    """The labels of a table as numbers: (n,) int64 of classes, (n,) float32 of values, (n, C) float32 of several.

    Raises:
        UserError: a label is missing, none of the kind, or none that was learned; says which and where.
    """
    if answer.kind == "value":
        return np.asarray((np.asarray(labels.values()) - answer.mean) / answer.deviation, dtype=np.float32)
    index = {name: number for number, name in enumerate(answer.names)}
    if answer.kind == "several":
        chosen = labels.sets()
        _check_known(
            answer, labels, [(row, name) for row, each in zip(labels.rows, chosen, strict=True) for name in each]
        )
        total = np.zeros((len(chosen), len(index)), dtype=np.float32)
        for number, each in enumerate(chosen):
            total[number, [index[name] for name in each]] = 1
        return total
    spelt = _respell(answer.names, labels.spelt())
    _check_known(answer, labels, list(zip(labels.rows, spelt, strict=True)))
    return np.asarray([index[name] for name in spelt], dtype=np.int64)


def warn_of_rare_labels(
    answer: Answer, table: str, trained: Labels | None, of_table: Sequence[Labels | None]
) -> list[str]:
    """Warnings of labels that no training row has, and of those that are trained on from one row of the table alone.

    Args:
        table: what messages call the training table.
        trained: of the rows that are trained on.
        of_table: of all rows of the table; in two parts where a part of it is held out.
    """
    if answer.kind == "value":
        return []
    left, *parts = (_count_labels(answer, labels) for labels in (trained, *of_table) if labels is not None)
    counts = list(zip(answer.names, left, np.sum(parts, axis=0), strict=True))
    missing = [name for name, count, _ in counts if not count]
    single = [name for name, count, total in counts if count and total == 1]
    warnings = [f"no training row has the label {first_names(missing)}"] if missing else []
    if single:
        which = "the label" if len(single) == 1 else "each of the labels"
        why = "cannot be both trained on and validated" if len(parts) > 1 else "is too little to learn from"
        warnings.append(
            f"{table}: {which} {first_names(single)} is in only one row, which {why}; add rows, or remove or merge "
            "such labels"
        )
    return warnings


def _count_labels(answer: Answer, labels: Labels) -> Ints:
    """How many rows have each class or label, (C,). Not for values."""
    is_several = answer.kind == "several"
    counts: Ints = np.count_nonzero(labels, axis=0) if is_several else np.bincount(labels, minlength=len(answer.names))
    return counts


def _respell(names: Sequence[str], spelt: Sequence[str]) -> list[str]:
    """Labels as the names that are the same whole numbers, which another table may write otherwise: 3 and 3.0."""
    known = set(names)
    by_number = {whole: name for name in names if (whole := whole_number(name)) is not None}
    return [label if label in known else by_number.get(whole_number(label) or "", label) for label in spelt]


def _guess_kind(labels: LabelCells) -> Kind:
    """The kind that the labels look like."""
    if len(labels.columns) > 1 or any(isinstance(each[0], list | tuple) for each in labels.cells):
        return "several"
    cells = labels.present()
    values = [as_number(cell) for cell in cells]
    known = [value for value in values if value is not None]
    whole = all(value.is_integer() for value in known)
    if len(known) < len(values):
        if not whole and 2 * len(known) > len(values):
            first = values.index(None)
            row, cell = labels.rows[first], cells[first]
            raise UserError(
                f"{labels.name}, row {row:,}: expected a number as in most rows of {labels.columns[0]}, found "
                f"{cell!r:.40}, and similar cells in {number_of(len(values) - len(known), 'row')}. Leave them out, or "
                "give --kind classes if the numbers are names"
            )
        return "classes"
    return "classes" if whole and len(set(values)) <= MOST_CLASSES else "value"


def _answer_several(labels: LabelCells) -> Answer:
    chosen = labels.sets()
    counts = Counter(name for each in chosen for name in each)
    names = labels.columns if len(labels.columns) > 1 else tuple(sorted(counts))
    if not counts or set(counts.values()) == {len(chosen)}:
        what = f"{first_names(list(counts))} in every row" if counts else "none in any row"
        raise UserError(f"{labels.name}: expected labels that some rows have and others do not, found {what}")
    if joined := [name for name in names if labels.separator in name]:
        raise UserError(
            f"{labels.name}: expected labels without {labels.separator!r}, which separates them in predictions, found "
            f"{joined[0]!r:.60}: name another one by --kind several,separator=…"
        )
    return Answer("several", names)


def _check_known(answer: Answer, labels: LabelCells, rows: Sequence[tuple[int, str]]) -> None:
    known, unknown = set(answer.names), dict[str, list[int]]()
    for row, name in rows:
        if name not in known:
            unknown.setdefault(name, []).append(row)
    if unknown:
        lines = [f"{name!r:.60} in {number_of(len(at), 'row')}, first in row {at[0]:,}" for name, at in unknown.items()]
        raise UserError(
            f"{labels.name}: expected labels that the training table has ({first_names(answer.names)}), found "
            f"others:{listed(lines)}"
        )
