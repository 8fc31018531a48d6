"""Reading a dataset folder: memory-mapped rows, its manifest and its tokenizer, checked before use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.data.index import FileOf, Index, PartedArray, open_index
from nystromformer.data.manifest import (
    MAKE_ANEW,
    MANIFEST_FILE,
    SPLITS,
    Dtype,
    Manifest,
    check_sha256,
    check_size,
    index_file,
    little_endian,
    read_manifest,
    splits_file,
    tokens_file,
)
from nystromformer.data.tokenizer import TOKENIZER_FILE, SpecialTokens
from nystromformer.errors import UserError

TOKENIZER_FOLDER = "tokenizer"


class Rows:
    """The rows of one split (R rows, N tokens), mapped into memory at first use and again in every process.

    They lie in two files, or in two for each part. A pickle holds the paths, not the content.
    """

    def __init__(self, folder: Path, split: str, manifest: Manifest) -> None:
        self._folder, self.split, self._manifest = folder, split, manifest

    def __len__(self) -> int:
        return self._manifest.split(self.split).rows

    @cached_property
    def tokens(self) -> np.ndarray | PartedArray:
        """Token ids, (R, N), read-only."""
        return self._map(tokens_file, self._manifest.tokens_dtype, (len(self), self._manifest.length))

    @cached_property
    def splits(self) -> np.ndarray | PartedArray:
        """Index in its row of the second part's first token, (R,), read-only; 0 where there is no sentence order."""
        return self._map(splits_file, self._manifest.splits_dtype, (len(self),))

    @cached_property
    def index(self) -> Index | None:
        """Of the parts; None where the rows are merged."""
        name = index_file(self.split)
        return open_index(self._folder / name) if name in self._manifest.split(self.split).files else None

    def _map(self, file_of: FileOf, stored: Dtype, shape: tuple[int, ...]) -> np.ndarray | PartedArray:
        dtype = little_endian(stored)
        if not len(self):  # nothing cannot be mapped
            return np.empty(shape, dtype)
        if self.index is not None:
            return PartedArray(self._folder, self.split, self.index, file_of, dtype, shape)
        return np.memmap(self._folder / file_of(self.split), dtype, "r", shape=shape)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("tokens", "splits", "index")}


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
    """Open a dataset folder. Sizes, indexes and the tokenizer are compared with the manifest, rows' content by
    `verify`; of rows in parts the size of each part is compared when it is first read.

    Raises:
        UserError: the folder or its manifest is missing, or a file does not match the manifest.
    """
    manifest = read_manifest(folder)
    expected = {f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}": manifest.tokenizer_sha256}
    for split in SPLITS:
        for name, stamp in manifest.split(split).files.items():
            check_size(folder / name, stamp, MANIFEST_FILE, MAKE_ANEW)
            if name == index_file(split):
                expected[name] = stamp.sha256
    for name, sha256 in expected.items():
        check_sha256(folder / name, sha256)
    return Dataset(folder, manifest, Rows(folder, "train", manifest), Rows(folder, "validation", manifest))


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
