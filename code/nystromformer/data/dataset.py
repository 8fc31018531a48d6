"""A dataset folder: memory-mapped rows, a tokenizer, and a manifest: what the files are, and how they were made."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from nystromformer.data.tokenizer import TOKENIZER_FILE, SpecialTokens
from nystromformer.errors import UserError
from nystromformer.files.checked_json import read_record, write_checked
from nystromformer.files.writing import FileStamp, sha256_of

log = logging.getLogger(__name__)

TOKENIZER_FOLDER, MANIFEST_FILE = "tokenizer", "manifest.json"
_MAKE_ANEW = "Copy it again if it was copied, or remove the folder and repeat its preprocessing command."
FORMAT_VERSION = 3
"""Rises when a dataset of the version before cannot be read any more."""
SPLITS = ("train", "validation")

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
    """Counts and files of one split; a dataset for validation alone has an empty train split."""

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
    """Read a folder's manifest."""
    manifest = read_record(folder / MANIFEST_FILE, Manifest, _MAKE_ANEW, FORMAT_VERSION)
    if manifest is None:
        found = f"one without {MANIFEST_FILE}: it is unfinished, or no dataset" if folder.is_dir() else "none"
        raise UserError(
            f"{folder}: expected a dataset folder, found {found}. Make one with "
            "data-preprocessing/preprocess_data_512.py: of the paper's corpora, or of the text that every machine has "
            "(data-preprocessing/docstrings/README.md). An interrupted command continues when started again."
        )
    return manifest


class Rows:
    """The rows of one split (R rows, N tokens), mapped into memory at first use and again in every process."""

    def __init__(self, folder: Path, split: str, manifest: Manifest) -> None:
        self._folder, self.split, self._manifest = folder, split, manifest

    def __len__(self) -> int:
        return self._manifest.split(self.split).rows

    @cached_property
    def tokens(self) -> np.ndarray:
        """Token ids, (R, N), read-only."""
        return self._map(tokens_file(self.split), self._manifest.tokens_dtype, (len(self), self._manifest.length))

    @cached_property
    def splits(self) -> np.ndarray:
        """Index in its row of the second part's first token, (R,), read-only; 0 where there is no sentence order."""
        return self._map(splits_file(self.split), self._manifest.splits_dtype, (len(self),))

    def _map(self, name: str, stored: Dtype, shape: tuple[int, ...]) -> np.ndarray:
        if not len(self):  # nothing cannot be mapped
            return np.empty(shape, stored)
        return np.memmap(self._folder / name, stored, "r", shape=shape)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("tokens", "splits")}


@dataclass(frozen=True)
class Dataset:
    """An opened dataset folder."""

    folder: Path
    manifest: Manifest
    train: Rows
    validation: Rows

    @property
    def tokenizer_folder(self) -> Path:
        """Folder that `AutoTokenizer.from_pretrained` and `load_tokenizer` take."""
        return self.folder / TOKENIZER_FOLDER


def open_dataset(folder: Path) -> Dataset:
    """Open a dataset folder. Sizes and the tokenizer are compared with the manifest, rows' content by `verify`."""
    manifest = read_manifest(folder)
    for split in SPLITS:
        for name, stamp in manifest.split(split).files.items():
            check_size(folder / name, stamp, _MAKE_ANEW)
    _check_sha256(folder / TOKENIZER_FOLDER / TOKENIZER_FILE, manifest.tokenizer_sha256)
    return Dataset(folder, manifest, Rows(folder, "train", manifest), Rows(folder, "validation", manifest))


def verify(dataset: Dataset, splits: Sequence[str] = SPLITS) -> None:
    """Compare the SHA-256 of the files of a dataset's splits with its manifest."""
    files = [each for split in splits for each in dataset.manifest.split(split).files.items()]
    log.info("%s: verifying %s bytes", dataset.folder, f"{sum(stamp.size for _, stamp in files):,}")
    for name, stamp in files:
        _check_sha256(dataset.folder / name, stamp.sha256)


def check_size(path: Path, stamp: FileStamp, advice: str) -> None:
    """Check that a file is there and of its size; else a UserError that ends in `advice`."""
    size = path.stat().st_size if path.is_file() else None
    if size != stamp.size:
        found = "no such file" if size is None else f"{size} bytes"
        raise UserError(f"{path}: {found}, expected {stamp.size} bytes. {advice}")


def _check_sha256(path: Path, expected: str) -> None:
    found = sha256_of(path) if path.is_file() else "no such file"
    if found != expected:
        raise UserError(f"{path}: expected SHA-256 {expected}, found {found}: changed since it was made. {_MAKE_ANEW}")


def check_fits(dataset: Dataset, max_seq_len: int, vocab_size: int) -> None:
    """Check that a model can take a dataset's rows."""
    problems, made = [], dataset.manifest
    if made.length > max_seq_len:
        problems.append(
            f"its rows have {made.length} tokens, the model takes {max_seq_len}: set model.max_seq_len in "
            f"config.json to {made.length} or more, or make the dataset with --length {max_seq_len}"
        )
    if made.vocab_size > vocab_size:
        problems.append(
            f"its tokenizer has {made.vocab_size} tokens, the model {vocab_size}: set model.vocab_size in "
            f"config.json to {made.vocab_size} or more, or make another dataset with --tokenizer train --vocab_size "
            f"{vocab_size}"
        )
    if problems:
        raise UserError(f"{dataset.folder}: the dataset does not fit the model: " + "; ".join(problems))
