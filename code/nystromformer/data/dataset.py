"""Reading a dataset folder: memory-mapped rows, its manifest and its tokenizer, checked before use."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.data.manifest import (
    MAKE_ANEW,
    MANIFEST_FILE,
    SPLITS,
    Dtype,
    Manifest,
    check_sha256,
    check_size,
    little_endian,
    read_manifest,
    splits_file,
    tokens_file,
)
from nystromformer.data.tokenizer import TOKENIZER_FILE, SpecialTokens
from nystromformer.errors import UserError

log = logging.getLogger(__name__)

TOKENIZER_FOLDER = "tokenizer"


class Rows:
    """The rows of one split (R rows, N tokens), mapped into memory at first use and again in every process.

    A pickle holds the paths, not the content.
    """

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
        dtype = little_endian(stored)
        if not len(self):  # nothing cannot be mapped
            return np.empty(shape, dtype)
        return np.memmap(self._folder / name, dtype, "r", shape=shape)

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
    def length(self) -> int:
        """Tokens of a row."""
        return self.manifest.length

    @property
    def vocab_size(self) -> int:
        """Tokens that the tokenizer knows, special ones included."""
        return self.manifest.vocab_size

    @property
    def special(self) -> SpecialTokens:
        """Ids of the special tokens."""
        return self.manifest.special

    @property
    def tokenizer_folder(self) -> Path:
        """Folder that `AutoTokenizer.from_pretrained` and `load_tokenizer` take."""
        return self.folder / TOKENIZER_FOLDER

    @property
    def fingerprint(self) -> str:
        """Short text that is equal for equal rows and tokenizer."""
        return self.manifest.fingerprint


def open_dataset(folder: Path) -> Dataset:
    """Open a dataset folder. Sizes and the tokenizer are compared with the manifest, rows' content by `verify`.

    Raises:
        UserError: the folder or its manifest is missing, or a file does not match the manifest.
    """
    manifest = read_manifest(folder)
    for split in SPLITS:
        for name, stamp in manifest.split(split).files.items():
            check_size(folder / name, stamp, MANIFEST_FILE, MAKE_ANEW)
    check_sha256(folder / TOKENIZER_FOLDER / TOKENIZER_FILE, manifest.tokenizer_sha256)
    return Dataset(folder, manifest, Rows(folder, "train", manifest), Rows(folder, "validation", manifest))


def verify(dataset: Dataset, splits: Sequence[str] = SPLITS) -> None:
    """Compare the SHA-256 of the files of a dataset's splits with its manifest.

    Raises:
        UserError: a file is not what the manifest says.
    """
    files = [each for split in splits for each in dataset.manifest.split(split).files.items()]
    log.info("%s: verifying %s bytes", dataset.folder, f"{sum(stamp.size for _, stamp in files):,}")
    for name, stamp in files:
        check_sha256(dataset.folder / name, stamp.sha256)


def check_fits(dataset: Dataset, max_seq_len: int, vocab_size: int) -> None:
    """Check that a model can take a dataset's rows.

    Raises:
        UserError: rows are longer than `max_seq_len`, or there are more tokens than `vocab_size`.
    """
    problems = []
    if dataset.length > max_seq_len:
        problems.append(
            f"its rows have {dataset.length} tokens, the model takes {max_seq_len}: set model.max_seq_len in "
            f"config.json to {dataset.length} or more, or make the dataset with --length {max_seq_len}"
        )
    if dataset.vocab_size > vocab_size:
        problems.append(
            f"its tokenizer has {dataset.vocab_size} tokens, the model {vocab_size}: set model.vocab_size in "
            f"config.json to {dataset.vocab_size} or more, or make another dataset with --tokenizer train --vocab_size "
            f"{vocab_size}"
        )
    if problems:
        raise UserError(f"{dataset.folder}: the dataset does not fit the model: " + "; ".join(problems))
