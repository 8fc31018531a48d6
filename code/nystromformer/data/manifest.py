"""The manifest of a dataset folder: what its files are, how they were made, and how to tell that they are whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from nystromformer.data.tokenizer import SpecialTokens
from nystromformer.errors import UserError
from nystromformer.files.checked_json import read_record, write_checked
from nystromformer.files.writing import FileStamp, sha256_of

MANIFEST_FILE = "manifest.json"
MAKE_ANEW = "Copy it again if it was copied, or make the dataset again: its preprocessing command with --overwrite."
FORMAT_VERSION = 3
"""Rises when a dataset of the version before cannot be read any more."""
SPLITS = ("train", "validation")
PARTS_FOLDER = "parts"
"""Folder of the rows of each file of documents, until they are merged."""

Dtype = Literal["uint16", "int32"]


def tokens_file(split: str) -> str:
    """Name of the file of a split's rows."""
    return f"{split}.tokens.bin"


def splits_file(split: str) -> str:
    """Name of the file of a split's sentence-order split points."""
    return f"{split}.splits.bin"


def storage_dtype(values: int) -> Dtype:
    """Name of the type that stores the integers below `values`."""
    return "uint16" if values <= 1 << 16 else "int32"


def little_endian(dtype: Dtype) -> np.dtype:
    """The numpy type of stored values, whatever the machine's byte order."""
    return np.dtype(dtype).newbyteorder("<")


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Counts(_Record):
    """What text gave to a split.

    tokens: of the documents.
    sentence_order_rows: rows with a split point.
    padding: positions of all rows that hold no token.
    dropped_tokens: the last tokens of each part, which filled no row.
    """

    documents: int
    tokens: int
    rows: int
    sentence_order_rows: int
    padding: int
    dropped_tokens: int


class Corpus(_Record):
    """A corpus of the mixture, its weight, and what it gave."""

    name: str
    weight: float
    train: Counts
    validation: Counts


class SplitManifest(Counts):
    """Counts and files of one split; a dataset for validation only has an empty train split."""

    files: dict[str, FileStamp]


class Manifest(_Record):
    """What a dataset folder holds; written last, so that a folder with a manifest is complete.

    length: tokens of a row, special tokens included.
    tokens_dtype, splits_dtype: of `<split>.tokens.bin`, (rows, length), and `<split>.splits.bin`, (rows,): raw values,
        little-endian.
    parameters: of the command that made it, without paths of the machine.
    """

    format_version: int = FORMAT_VERSION
    corpora: list[Corpus]
    length: int
    vocab_size: int
    tokens_dtype: Dtype
    splits_dtype: Dtype
    special: SpecialTokens
    tokenizer_sha256: str
    train: SplitManifest
    validation: SplitManifest
    seed: int
    code_version: str
    parameters: dict[str, Any]

    def split(self, name: str) -> SplitManifest:
        """Counts and files of the split "train" or "validation"."""
        return self.train if name == "train" else self.validation

    def fill(self, split: str) -> float:
        """Share of a split's row positions that hold text rather than `<s>`, `</s>` around it and padding."""
        rows = self.split(split)
        positions = rows.rows * self.length
        return (positions - 2 * rows.rows - rows.sentence_order_rows - rows.padding) / max(positions, 1)

    def sentence_order_share(self, split: str) -> float:
        """Share of a split's rows that have a sentence-order label."""
        rows = self.split(split)
        return rows.sentence_order_rows / max(rows.rows, 1)

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that are equal for equal rows and tokenizer."""
        hashes = [stamp.sha256 for name in SPLITS for _, stamp in sorted(self.split(name).files.items())]
        identity = [self.length, self.tokens_dtype, self.splits_dtype, self.tokenizer_sha256, *hashes]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a folder's manifest, which declares the folder complete."""
    write_checked(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises:
        UserError: the folder or the manifest is missing, or the manifest is damaged or of another version.
    """
    how_to_make = (
        "Make one with data-preprocessing/preprocess_data_512.py: of the paper's corpora, or of the text that every "
        "machine has (data-preprocessing/docstrings/README.md)."
    )
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a dataset folder, found none. {how_to_make}")
    manifest = read_record(folder / MANIFEST_FILE, Manifest, MAKE_ANEW, FORMAT_VERSION)
    if manifest is None:
        raise UserError(
            f"{folder / MANIFEST_FILE}: no such file. A finished dataset has a manifest, so the folder is unfinished "
            f"or not a dataset. {how_to_make} An interrupted command continues when started again."
        )
    return manifest


def check_size(path: Path, stamp: FileStamp, record: str, advice: str) -> None:
    """Check that a file is there and of the size that a record of its folder says.

    Raises:
        UserError: it is not; ends in `advice`.
    """
    size = path.stat().st_size if path.is_file() else None
    if size != stamp.size:
        found = "no such file" if size is None else f"{size} bytes"
        raise UserError(f"{path}: {found}, expected {stamp.size} bytes as in {record}. {advice}")


def check_sha256(path: Path, expected: str) -> None:
    """Read a file of a dataset and check that it is as it was written.

    Raises:
        UserError: it is not.
    """
    found = sha256_of(path) if path.is_file() else "no such file"
    if found != expected:
        raise UserError(f"{path}: expected SHA-256 {expected}, found {found}: changed since it was made. {MAKE_ANEW}")
