"""Reading a dataset folder: memory-mapped rows, its manifest and its tokenizer, checked before use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.data.manifest import (
    MAKE_ANEW,
    MANIFEST_FILE,
    SPLITS,
    Manifest,
    check_size,
    little_endian,
    read_manifest,
    splits_file,
    tokens_file,
)
from nystromformer.data.tokenizer import TOKENIZER_FILE, SpecialTokens
from nystromformer.errors import UserError
from nystromformer.files.writing import sha256_of

TOKENIZER_FOLDER = "tokenizer"


class Rows:
    """The rows of one split (R rows, N tokens), mapped into memory at first use and again in every process.

    A pickle holds the paths, not the content.
    """

    def __init__(self, folder: Path, split: str, manifest: Manifest) -> None:
        self._tokens_path = folder / tokens_file(split)
        self._splits_path = folder / splits_file(split)
        self._tokens_dtype = little_endian(manifest.tokens_dtype)
        self._splits_dtype = little_endian(manifest.splits_dtype)
        self._shape = (manifest.split(split).rows, manifest.length)

    def __len__(self) -> int:
        return self._shape[0]

    def check(
        self, numbers: np.ndarray, tokens_BN: np.ndarray, splits_B: np.ndarray, vocab_size: int, special: SpecialTokens
    ) -> None:
        """Check rows that were read: whoever trains may begin before all of them were verified.

        Args:
            numbers: of the rows, (B,).

        Raises:
            UserError: names a row with an id that no token has, or a split point that is none.
        """
        wrong = (tokens_BN < 0) | (tokens_BN >= vocab_size)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise UserError(
                f"{self._tokens_path}: row {numbers[row]}: expected ids from 0 to {vocab_size - 1}, those of the "
                f"tokenizer, found {tokens_BN[row, column]}. {MAKE_ANEW}"
            )
        ends_B = (tokens_BN != special.pad).sum(1) - 1
        labelled = np.flatnonzero(splits_B)
        splits, ends = splits_B[labelled].astype(np.int64), ends_B[labelled]
        inside = (splits >= 2) & (splits <= ends)
        before = tokens_BN[labelled, np.where(inside, splits - 1, 0)]
        good = inside & (before == special.eos) & (tokens_BN[labelled, ends] == special.eos)
        if not good.all():
            row = labelled[np.flatnonzero(~good)[0]]
            raise UserError(
                f"{self._splits_path}: row {numbers[row]}: expected its second part to begin at a token behind "
                f"</s>, or 0, found {splits_B[row]}. {MAKE_ANEW}"
            )

    @cached_property
    def tokens(self) -> np.ndarray:
        """Token ids, (R, N), read-only."""
        return self._map(self._tokens_path, self._tokens_dtype, self._shape)

    @cached_property
    def splits(self) -> np.ndarray:
        """Index in its row of the second part's first token, (R,), read-only; 0 where there is no sentence order."""
        return self._map(self._splits_path, self._splits_dtype, self._shape[:1])

    def _map(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        # nothing cannot be mapped
        return np.memmap(path, dtype, "r", shape=shape) if len(self) else np.empty(shape, dtype)

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
    """Open a dataset folder. Sizes and the tokenizer are compared with the manifest, rows' content by `Verification`.

    Raises:
        UserError: the folder or its manifest is missing, or a file does not match the manifest.
    """
    manifest = read_manifest(folder)
    for split in SPLITS:
        for name, stamp in manifest.split(split).files.items():
            check_size(folder / name, stamp, MANIFEST_FILE, MAKE_ANEW)
    tokenizer = folder / TOKENIZER_FOLDER / TOKENIZER_FILE
    sha256 = sha256_of(tokenizer) if tokenizer.is_file() else "no such file"
    if sha256 != manifest.tokenizer_sha256:
        raise UserError(
            f"{tokenizer}: another tokenizer than the rows were made with: expected SHA-256 "
            f"{manifest.tokenizer_sha256}, found {sha256}. {MAKE_ANEW}"
        )
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
            f"config.json to {dataset.vocab_size} or more, or make the dataset with --vocab_size {vocab_size}"
        )
    if problems:
        raise UserError(f"{dataset.folder}: the dataset does not fit the model: " + "; ".join(problems))
