"""Clients' events on disk: memory-mapped arrays and a manifest.

Every client's events stand together, the oldest first. Files: `categories.bin`, int32 (events, C), the number of each
value in the manifest's list, -1 where it is missing; `numbers.bin`, float32 (events, F), NaN where one is missing;
`ends.bin`, int64, where each client's events end; `labels.bin`, a byte each client, 255 of clients to predict;
`splits.bin`, its split's number; `clients.txt`, their names, a line each.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, read_record
from nystromformer.files.writing import FileStamp, check_stamps

MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "validation", "test")
NO_LABEL = 255
MISSING, UNKNOWN, FIRST = 0, 1, 2
"""Ids of a category: of a missing value, of those that are not among the training clients' most frequent ones, and the
first of these."""
DTYPES = {"categories": "<i4", "numbers": "<f4", "ends": "<i8", "labels": "u1", "splits": "u1", "clients": ""}
Form = Literal["scale", "log"]
DAY = 86_400
GAP, HOUR, WEEKDAY = MADE = ("time.gap", "time.hour", "time.weekday")
"""Columns that are made of times: seconds since the client's event before, and of dates hour and day of the week."""


@dataclass(frozen=True)
class Category:
    """A categorical column, as the training clients have it."""

    name: str
    values: list[str]
    """All of them, in the order of their numbers on disk."""
    ids: list[int]
    """Of each value, for the model."""
    __pydantic_config__ = STRICT

    @property
    def size(self) -> int:
        """How many ids there are."""
        return max(self.ids, default=UNKNOWN) + 1

    @property
    def vocabulary(self) -> dict[str, int]:
        """The ids of the values that the training clients have."""
        return {value: number for value, number in zip(self.values, self.ids, strict=True) if number != UNKNOWN}

    def ids_of(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """For the model, of numbers on disk."""
        return self._table[numbers + 1]

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        return np.array([MISSING, *self.ids], dtype=np.int64)


@dataclass(frozen=True)
class Number:
    """A numerical column, as the training clients have it.

    form: scale: (x − mean) / deviation; log: the same of sign(x) log(1 + |x|).
    """

    name: str
    form: Form
    mean: float = 0.0
    deviation: float = 1.0
    __pydantic_config__ = STRICT

    def scaled(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """For the model."""
        return ((shaped(values, self.form) - self.mean) / self.deviation).astype(np.float32)


def shaped(values: NDArray[Any], form: Form) -> NDArray[np.float64]:
    """Values before they are scaled."""
    wide = values.astype(np.float64)
    return np.copysign(np.log1p(np.abs(wide)), wide) if form == "log" else wide


@dataclass(frozen=True)
class Manifest:
    """What a folder holds; written last, so that a folder with a manifest is complete."""

    source: str
    """Where the events come from, in words."""
    settings: dict[str, Any]
    """All that decides what they are."""
    categories: list[Category]
    numbers: list[Number]
    files: dict[str, FileStamp]
    notes: list[str] = field(default_factory=list)
    """What was understood and left out."""
    __pydantic_config__ = STRICT

    @property
    def features(self) -> str:
        """Equal where the model sees events alike: columns, vocabularies and scales."""
        known = [(each.name, sorted(each.vocabulary.items())) for each in self.categories]
        facts = [known, [asdict(each) for each in self.numbers]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def file_of(folder: Path, kind: str) -> Path:
    """One of the files, by its key in DTYPES."""
    return folder / (f"{kind}.bin" if DTYPES[kind] else f"{kind}.txt")


@dataclass(frozen=True)
class Stored:
    """A prepared folder; its arrays are mapped into memory at first use."""

    folder: Path
    manifest: Manifest

    @cached_property
    def categories(self) -> NDArray[np.int32]:
        """(events, C)."""
        return self._map("categories").reshape(-1, len(self.manifest.categories))

    @cached_property
    def numbers(self) -> NDArray[np.float32]:
        """(events, F)."""
        return self._map("numbers").reshape(-1, len(self.manifest.numbers))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Of each client."""
        return np.asarray(self._map("ends"))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Events of each client."""
        return np.diff(self.ends, prepend=0)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Of each client; NO_LABEL of those to predict."""
        return self._map("labels").astype(np.int64)

    def names(self) -> list[str]:
        """Of the clients."""
        return file_of(self.folder, "clients").read_bytes().decode().split("\n")[:-1]

    def clients_of(self, split: str) -> NDArray[np.int64]:
        """Numbers of a split's clients, ascending."""
        return np.flatnonzero(self._map("splits") == SPLITS.index(split))

    def _map(self, kind: str) -> NDArray[Any]:
        if not self.manifest.files[kind].size:  # which cannot be mapped
            return np.zeros(0, dtype=DTYPES[kind])
        return np.memmap(file_of(self.folder, kind), dtype=DTYPES[kind], mode="r")


def open_stored(folder: Path) -> Stored:
    """A folder that was prepared; all its files are read once and compared with their checksums."""
    manifest = read_record(folder / MANIFEST_FILE, Manifest, "Prepare the clients again.")
    if manifest is None:
        raise UserError(f"{folder}: no prepared clients: run `python experiments/transactions/prepare.py` first")
    check_stamps({file_of(folder, kind): stamp for kind, stamp in manifest.files.items()})
    return Stored(folder, manifest)
