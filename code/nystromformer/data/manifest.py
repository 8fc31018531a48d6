"""The manifest of a dataset folder: what its files are, how they were made, and how to tell that they are whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nystromformer.bounded import read_json
from nystromformer.data.sealed import SEAL, unsealed, write_sealed
from nystromformer.data.tokenizer import SpecialTokens
from nystromformer.errors import UserError
from nystromformer.files import FileStamp

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 2
"""1: rows of pretraining were cut at any token; 2: those with a sentence order hold whole sentences."""
SPLITS = ("train", "validation")

Dtype = Literal["uint16", "int32"]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_MOST_SHOWN = 20
_LONGEST_SHOWN = 200


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Counts(_Record):
    """What a corpus gave to a split."""

    documents: Count
    tokens: Count
    rows: Count


class Corpus(_Record):
    """A corpus of the mixture, its weight, and what it gave."""

    name: str
    weight: float = Field(gt=0, allow_inf_nan=False)
    train: Counts
    validation: Counts


class SplitManifest(_Record):
    """Counts and files of one split; a dataset for validation only has an empty train split.

    tokens: tokens of the documents.
    sentence_order_rows: rows with a split point.
    padding: positions of all rows that hold no token.
    dropped_tokens: the last tokens, which filled no row.
    """

    documents: Count
    tokens: Count
    rows: Count
    sentence_order_rows: Count
    padding: Count
    dropped_tokens: Count
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
    length: int = Field(ge=1, lt=1 << 31)
    vocab_size: int = Field(ge=1, lt=1 << 31)
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
        return {"train": self.train, "validation": self.validation}[name]

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
    write_sealed(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))


def read_manifest(folder: Path, check: Callable[[Manifest], object] = lambda manifest: None) -> Manifest:
    """Read a folder's manifest.

    Args:
        check: compares it with the folder's files, by a UserError that says more than that a value was changed.

    Raises:
        UserError: the folder or the manifest is missing, the manifest is not one that this version reads, or its
            values do not belong together.
    """
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a dataset folder, found none. {_HOW_TO_MAKE}")
    if not path.is_file():
        raise UserError(
            f"{path}: no such file. A finished dataset has a manifest, so the folder is unfinished or no dataset. "
            f"{_HOW_TO_MAKE} An interrupted command continues when started again."
        )
    record = read_json(path, _HOW_TO_REPLACE)
    _check_format(path, record)
    try:
        manifest = Manifest.model_validate_json(json.dumps({key: record[key] for key in record if key != SEAL}))
    except ValidationError as error:
        shown = error.errors()[:_MOST_SHOWN]
        problems = [f"  {'.'.join(map(str, item['loc']))[:_LONGEST_SHOWN]}: {item['msg']}" for item in shown]
        if error.error_count() > len(shown):
            problems.append(f"  and {error.error_count() - len(shown):,} more")
        raise UserError("\n".join([f"{path}: not a dataset's manifest:", *problems, _HOW_TO_REPLACE])) from error
    check(manifest)
    for problem in _contradictions(manifest):
        raise UserError(f"{path}: {problem}. {_HOW_TO_REPLACE}")
    unsealed(path, record, _HOW_TO_REPLACE)
    return manifest


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """What a manifest says of its rows that cannot be."""
    for name in SPLITS:
        split = manifest.split(name)
        positions = split.rows * (manifest.length - 2)
        if split.sentence_order_rows > split.rows:
            yield f"{name}: expected at most {split.rows} rows with a sentence order, found {split.sentence_order_rows}"
        if split.padding > positions:
            yield f"{name}: expected at most {positions} positions of padding, found {split.padding}"
        for key in Counts.model_fields:
            parts = sum(getattr(getattr(corpus, name), key) for corpus in manifest.corpora)
            if parts != getattr(split, key):
                yield f"{name}.{key}: expected {parts}, the sum over the corpora, found {getattr(split, key)}"
    for key in ("length", "seed"):
        value = manifest.parameters.get(key, getattr(manifest, key))
        if value != getattr(manifest, key):
            yield f"{key}: expected {value!r:.60}, as in parameters, found {getattr(manifest, key)}"


def _check_format(path: Path, record: Any) -> None:
    version = record.get("format_version") if isinstance(record, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise UserError(f"{path}: expected a dataset's manifest with a format_version, found none. {_HOW_TO_REPLACE}")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path}: expected format_version {FORMAT_VERSION}, found {version}, of another version of nystromformer. "
            f"{_HOW_TO_REPLACE}"
        )


_HOW_TO_MAKE = (
    "Make one with data-preprocessing/preprocess_data_512.py: of the paper's corpora, or of the text that every "
    "machine has (data-preprocessing/docstrings/README.md)."
)
_HOW_TO_REPLACE = "Make the dataset again: its preprocessing command with --overwrite."
