"""What label columns hold, looked at once and said: what nobody means is refused, what is doubtful is named."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nystromformer.errors import UserError
from nystromformer.tables import Column, aligned
from nystromformer.tabular.cells import MISSING, Cell, as_number, is_missing, whole_number
from nystromformer.tasks.documents.recipe import KINDS, Answer, Kind
from nystromformer.tasks.finetuning.examples import Labels
from nystromformer.wording import MOST_LISTED, first_names, listed, number_of

MOST_CLASSES = 20
"""Different whole numbers that are taken for classes where --kind does not say what they are."""
_YES, _NO = ("1", "true", "yes"), ("0", "false", "no", "")
_NOTHING = {"na", "n.a.", "none", "null", "nan", "nil", "missing", "unknown", "undefined", "tbd", "-", "--", "---", "."}
_NOTHING |= {"unsup", "unlabeled", "unlabelled", "not available", "not labeled", "no label", *map(str.lower, MISSING)}
_QUOTED = r"""\s*(?:'[^'\\]*'|"[^"\\]*")\s*"""
_ITEM = rf"(?:{_QUOTED}|\s*-?\d+(?:\.\d+)?\s*)"
_LIST = re.compile(
    rf"\[\s*(?:{_ITEM}(?:,{_ITEM})*,?\s*)?\]|[({{]{_QUOTED}(?:,{_QUOTED})*,?\s*[)}}]|\[\s*\w[\w -]*(?:,\s*\w[\w -]*)+\]"
)
"""As Python and JSON write lists of texts or numbers, and sets and tuples of texts."""
_PARTS = re.compile(r"""'([^'\\]*)'|"([^"\\]*)"|([\w.-][\w. -]*)""")
_OTHER_LIST = re.compile(r"""(?:\w+\()?[\[({].*["':].*[\])}]\)?|\[\s*\d.*\]|\w+\(\)""", re.DOTALL)
_NUMBER = re.compile(
    r"[-+(]?\s*[$€£¥]?\s*[-+]?(?:\d{1,3}(?:[., '’\u00a0\u202f]\d{3})+|\d+)(?:[.,]\d+)?\s*[%‰$€£¥]?\s*\)?"
)
"""As people write numbers: with a decimal comma, thousands, a unit."""


def kind_of(text: str | None) -> tuple[Kind | None, str, tuple[str, ...]]:
    """What --kind names: a kind, what separates several labels of a cell, and the order of ordered classes."""
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


@dataclass
class LabelCells:
    """What stands in the label columns of a table."""

    name: str
    columns: tuple[str, ...]
    """One, or for several labels at once one for each, of 0 and 1."""
    separator: str
    """Between the labels of a cell, for several at once."""
    rows: Sequence[int]
    """Their numbers in the table, from 1."""
    cells: Sequence[Sequence[Cell]]
    """Of each row, in the columns."""
    keep_na: bool = False
    """Whether words such as NA are labels."""

    def place(self, row: int) -> str:
        return f"{self.name}, row {row:,}"

    def present(self) -> list[Cell]:
        """The labels of a column that every row has one in."""
        cells = [cell for (cell,) in self.cells]
        if missing := [each for each in zip(self.rows, cells, strict=True) if is_missing(each[1], self.keep_na)]:
            row, cell = missing[0]
            words = sorted({cell.strip() for _, cell in missing if isinstance(cell, str)} & MISSING)
            keep = f"; --keep_na takes {first_names(words)} as labels" if words else ""
            raise UserError(
                f"{self.name}: expected a label in each row of {self.columns[0]}, found none in "
                f"{len(missing):,} of {number_of(len(cells), 'row')}, the first of them row {row:,} "
                f"({cell!r:.20}): fill them in, or add --skip_empty to leave such rows out{keep}"
            )
        return cells

    def values(self) -> list[float]:
        """The numbers of a column."""
        values = []
        for row, cell in zip(self.rows, self.present(), strict=True):
            if (value := as_number(cell)) is None:
                raise UserError(f"{self.place(row)}: expected a number (--kind value), such as 3.5, found {cell!r:.40}")
            values.append(value)
        return values

    def spelt(self) -> list[str]:
        """The labels of a column as names. Where all are whole numbers, 3, 3.0 and "3.0" are one, though not "003"."""
        names = [self._spell(row, cell) for row, cell in zip(self.rows, self.present(), strict=True)]
        whole = [name for name in map(whole_number, names) if name is not None]
        return whole if len(whole) == len(names) else names

    def sets(self) -> list[list[str]]:
        """The labels that each row has, of several at once."""
        return [self._set(row, each) for row, each in zip(self.rows, self.cells, strict=True)]

    def _set(self, row: int, cells: Sequence[Cell]) -> list[str]:
        if len(self.columns) > 1:
            return [name for name, cell in zip(self.columns, cells, strict=True) if self._is_yes(row, name, cell)]
        (cell,) = cells
        if is_missing(cell, self.keep_na):
            return []
        parts = [cell]
        if isinstance(cell, list | tuple):
            parts = list(cell)
        elif isinstance(cell, str):
            parts = _items(cell) if _is_list(cell) else cell.split(self.separator)
        return list(dict.fromkeys(filter(None, (self._spell(row, part) for part in parts))))

    def _is_yes(self, row: int, column: str, cell: Cell) -> bool:
        text = "" if is_missing(cell) else self._spell(row, cell).lower()
        text = whole_number(text) or text
        if text not in _YES + _NO:
            raise UserError(f"{self.place(row)}: expected 0 or 1 in {column}, found {cell!r:.40}")
        return text in _YES

    def _spell(self, row: int, cell: Cell) -> str:
        if isinstance(cell, str):
            if _is_bracketed(cell):
                raise UserError(
                    f"{self.place(row)}: expected one label, found a list or an object written as text, "
                    f"{cell.strip()!r:.40}: several labels of a text are --kind several, as ['a', 'b'] or a;b"
                )
            return " ".join(cell.split())  # it becomes a column's name in the predictions: one line
        if isinstance(cell, bool | int):
            return str(cell).lower()
        if isinstance(cell, float) and math.isfinite(cell):
            return str(int(cell)) if cell.is_integer() and abs(cell) < 2**53 else repr(cell)
        several = " (several labels at once: --kind several)" if isinstance(cell, list) else ""
        raise UserError(f"{self.place(row)}: expected a label that is a number or text, found {cell!r:.40}{several}")


@dataclass(frozen=True)
class Look:
    """What a training table's labels were taken for."""

    answer: Answer
    lines: list[str]
    doubts: list[str]


def look_at(labels: LabelCells, wanted: Kind | None, order: Sequence[str] = ()) -> Look:
    """What the labels of a training table ask for.

    Args:
        wanted: by --kind; None: as the labels tell.
        order: the classes from the lowest on; empty: of numbers their own.
    """
    kind = wanted or _guess_kind(labels)
    column = labels.columns[0] if len(labels.columns) == 1 else "label"
    if len(labels.columns) > 1 and kind != "several":
        raise UserError(f"--kind {kind}: expected one column of labels, found {', '.join(labels.columns)}")
    if kind == "value":
        values = np.asarray(labels.values())
        if (values == values[0]).all():
            raise UserError(f"{labels.name}: expected different values to learn, found {values[0]:g} in every row")
        mean, deviation = float(values.mean()), float(values.std())
        line = f"{column}: {len(np.unique(values)):,} different values from {values.min():g} to {values.max():g}"
        return Look(Answer(kind, (), mean, deviation), [f"{line}, {mean:g} on average"], [])
    if kind == "several":
        counts = Counter(name for each in labels.sets() for name in each)
        names = labels.columns if len(labels.columns) > 1 else tuple(sorted(counts))
        if not counts or set(counts.values()) == {len(labels.cells)}:
            what = f"{first_names(list(counts))} in every row" if counts else "none in any row"
            raise UserError(f"{labels.name}: expected labels that some rows have and others do not, found {what}")
        if joined := [name for name in names if labels.separator in name]:
            raise UserError(
                f"{labels.name}: expected labels without {labels.separator!r}, which separates them in predictions, "
                f"found {joined[0]!r:.60}: name another one by --kind several,separator=…"
            )
    else:
        counts = Counter(_respell(order, labels.spelt()))
        names = _classes(labels, kind, counts, order)
    return Look(Answer(kind, names), _table(column, names, counts), _doubts(counts))


def numbers_of(answer: Answer, labels: LabelCells) -> Labels:
    """The labels of a table as numbers: (n,) int64 of classes, (n,) float32 of values, (n, C) float32 of several."""
    if answer.kind == "value":
        return np.asarray((np.asarray(labels.values()) - answer.mean) / answer.deviation, dtype=np.float32)
    several = answer.kind == "several"
    chosen = labels.sets() if several else [[name] for name in labels.spelt()]
    chosen = [_respell(answer.names, each) for each in chosen]
    index, unknown = {name: number for number, name in enumerate(answer.names)}, dict[str, list[int]]()
    for row, each in zip(labels.rows, chosen, strict=True):
        for name in each:
            if name not in index:
                unknown.setdefault(name, []).append(row)
    if unknown:
        lines = [f"{name!r:.60} in {number_of(len(at), 'row')}, first in row {at[0]:,}" for name, at in unknown.items()]
        raise UserError(
            f"{labels.name}: expected labels that the training table has ({first_names(answer.names)}), found "
            f"others:{listed(lines)}"
        )
    if not several:
        return np.asarray([index[name] for (name,) in chosen], dtype=np.int64)
    total = np.zeros((len(chosen), len(index)), dtype=np.float32)
    for number, each in enumerate(chosen):
        total[number, [index[name] for name in each]] = 1
    return total


def _classes(labels: LabelCells, kind: Kind, counts: Mapping[str, int], order: Sequence[str]) -> tuple[str, ...]:
    """The classes in the order of their numbers."""
    if len(counts) == 1:
        raise UserError(f"{labels.name}: expected two classes or more, found {next(iter(counts))!r} in every row")
    if len(counts) == len(labels.cells) > MOST_CLASSES:
        raise UserError(
            f"{labels.name}: expected classes that texts share, found another label in each of its {len(counts):,} "
            "rows. Name another column, or --kind value where these are numbers"
        )
    if order:
        if len(set(order)) < len(order):
            raise UserError(f"--kind ordered,order: expected each class once, found {', '.join(order)}")
        if unknown := sorted(counts.keys() - set(order)):
            raise UserError(
                f"--kind ordered,order: expected all classes of {labels.name}, found none of {first_names(unknown)}"
            )
        return tuple(order)
    numeric = all(as_number(name) is not None for name in counts)
    if kind == "ordered" and not numeric:
        raise UserError(
            f"--kind ordered: expected ordered,order=LOW/…/HIGH, of these classes: {first_names(list(counts))}"
        )
    return tuple(sorted(counts, key=lambda name: (as_number(name) or 0.0, name) if numeric else name))


def _guess_kind(labels: LabelCells) -> Kind:
    """The kind that the labels look like; numbers or lists that somebody wrote in another way are an error."""
    if len(labels.columns) > 1 or any(isinstance(each[0], list | tuple) for each in labels.cells):
        return "several"
    rows = [(row, cell) for row, (cell,) in zip(labels.rows, labels.cells, strict=True)]
    if any(isinstance(cell, str) and _is_bracketed(cell) for _, cell in rows):
        for row, cell in rows:
            if not is_missing(cell, labels.keep_na) and not (isinstance(cell, str) and _is_list(cell)):
                raise UserError(
                    f"{labels.place(row)}: expected a list of labels such as ['a', 'b'] as in other rows of "
                    f"{labels.columns[0]}, found {cell!r:.40}: write all alike, or a;b with --kind several,separator=;"
                )
        return "several"
    cells = labels.present()
    known = [value for cell in cells if (value := as_number(cell)) is not None]
    others = [(row, cell) for row, cell in rows if as_number(cell) is None]
    written = [(row, cell) for row, cell in others if isinstance(cell, str) and _NUMBER.fullmatch(cell.strip())]
    if written and 2 * (len(known) + len(written)) > len(cells):
        row, cell = written[0]
        raise UserError(
            f"{labels.place(row)}: expected plain numbers in {labels.columns[0]}, such as 1234.5, found {cell!r:.40} "
            f"and the like in {number_of(len(written), 'row')}: leave out thousands, decimal commas and units, "
            "or give --kind classes if they are names, several if each is several labels"
        )
    are_few = all(value.is_integer() for value in known) and len(set(known)) <= MOST_CLASSES
    if others and not are_few and 2 * len(known) > len(cells):
        row, cell = others[0]
        raise UserError(
            f"{labels.place(row)}: expected a number as in most rows of {labels.columns[0]}, found {cell!r:.40}, and "
            f"similar cells in {number_of(len(others), 'row')}. Leave them out, or give --kind classes if the numbers "
            "are names"
        )
    return "classes" if others or are_few else "value"


def _table(column: str, names: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """How many rows have each label, of many labels the most frequent ones."""
    shown = sorted(names, key=lambda name: -counts.get(name, 0))[:MOST_LISTED] if len(names) > MOST_LISTED else names
    lines = aligned(
        [Column(column, is_text=True), Column("rows")], [[name, f"{counts.get(name, 0):,}"] for name in shown]
    )
    return [*lines, f"… and {len(names) - len(shown):,} more"] if len(shown) < len(names) else lines


def _doubts(counts: Mapping[str, int]) -> list[str]:
    """Labels that may be meant otherwise, each kind of doubt in a line."""
    alike: dict[str, list[str]] = {}
    for name in counts:
        words = re.split(r"[-_\s]+", unicodedata.normalize("NFKC", name).casefold().strip("'\"`"))
        alike.setdefault(" ".join(words), []).append(name)
    are_numbers = all(as_number(name) is not None for name in counts)
    found = {
        "differ only in case, quotes or what is between words: write them alike if they are one": [
            name for names in alike.values() if len(names) > 1 for name in names
        ],
        "may say that there is no label": [
            name for name in counts if name.casefold() in _NOTHING or (name == "-1" and are_numbers and "0" in counts)
        ],
    }
    lines = []
    for what, names in found.items():
        shown = [f"{name!r:.60} ({number_of(counts[name], 'row')})" for name in names]
        lines += [f"{first_names(shown)} {what}"] if shown else []
    return lines


def _respell(names: Sequence[str], spelt: Sequence[str]) -> list[str]:
    """Labels as the names that are the same whole numbers, which another table may write otherwise (3 and 3.0)."""
    known, by_number = set(names), {whole: name for name in names if (whole := whole_number(name)) is not None}
    return [label if label in known else by_number.get(whole_number(label) or "", label) for label in spelt]


def _is_bracketed(cell: str) -> bool:
    return _OTHER_LIST.fullmatch(cell.strip()) is not None or _is_list(cell)


def _is_list(cell: str) -> bool:
    return _LIST.fullmatch(cell.strip()) is not None


def _items(cell: str) -> list[str]:
    """Of a list that is written as text."""
    return ["".join(parts) for parts in _PARTS.findall(cell.strip()[1:-1])]
