"""Text as the rows that a model is converted on.

Shapes: B rows, N tokens.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.data.dataset import Dataset, open_dataset
from nystromformer.data.manifest import MANIFEST_FILE
from nystromformer.data.tokenizer import TOKENIZER_FILE, SpecialTokens, special_tokens
from nystromformer.errors import UserError
from nystromformer.files.writing import sha256_of
from nystromformer.tasks.documents.table import ENDINGS, open_table

Row = NDArray[np.int32]
_MOST_ROWS = 200_000
"""What lies beyond is not read."""
_AT_ONCE = 1000
"""Documents that are tokenized together."""


@dataclass(frozen=True)
class TextRows:
    """Rows of token ids, each in the tokenizer's form `<s> A </s>`, without padding."""

    train: Sequence[Row]
    held_out: Sequence[Row]
    special: SpecialTokens
    vocab_size: int
    """Of the tokenizer; a model's may be larger."""
    fingerprint: str
    """Equal for equal rows."""


def read_text(
    path: Path,
    column: str,
    tokenizer: Tokenizer,
    tokenizer_sha256: str,
    length: int,
    least: int,
    held_out: int,
    seed: int,
) -> TextRows:
    """Rows of a table, a text file, a folder of text files, or a dataset of this project.

    A document is a row of the table, a paragraph of the text file, or a file of the folder. It is cut into rows of
    `length` tokens. The rows that are held out are of documents that no other row is of.

    Args:
        column: of the table, with the text.
        least: tokens of the shortest row that is used.
        held_out: how many rows to keep for measuring.
        seed: of which documents are held out.

    Raises:
        UserError: the text cannot be read, or has too few rows.
    """
    special = special_tokens(tokenizer)
    if path.is_dir() and (path / MANIFEST_FILE).is_file():
        return _read_dataset(open_dataset(path), path, tokenizer_sha256, length, least, held_out, seed)
    documents: list[list[Row]] = []
    count = 0
    for ids in _tokenize(_read_documents(path, column), tokenizer):
        rows = [row for row in _cut_into_rows(ids, length, special) if len(row) >= least]
        if rows:
            documents.append(rows)
            count += len(rows)
        if count >= _MOST_ROWS:
            break
    order = np.random.default_rng(seed).permutation(len(documents))
    kept: list[Row] = []
    train: list[Row] = []
    for number in order:
        (kept if len(kept) < held_out else train).extend(documents[number])
    return _check(path, train, kept[:held_out], special, tokenizer.get_vocab_size(), least, held_out)


def _read_dataset(
    dataset: Dataset, path: Path, tokenizer_sha256: str, length: int, least: int, held_out: int, seed: int
) -> TextRows:
    if (found := sha256_of(dataset.tokenizer_folder / TOKENIZER_FILE)) != tokenizer_sha256:
        raise UserError(
            f"{path}: its rows were made with another tokenizer (sha256 {found[:12]}…) than the model's "
            f"({tokenizer_sha256[:12] or 'none'}…): give text instead, which is tokenized here"
        )
    if dataset.length > length:
        raise UserError(
            f"{path}: expected rows of at most {length} tokens (the model's limit, or --length), found {dataset.length}"
        )
    parts = []
    for rows, most in ((dataset.train, _MOST_ROWS), (dataset.validation, held_out)):
        chosen = np.random.default_rng(seed).permutation(len(rows))[:most]
        valid = (np.asarray(rows.tokens[number]) for number in chosen)
        cut = (row[row != dataset.special.pad].astype(np.int32) for row in valid)
        parts.append([row for row in cut if len(row) >= least])
    return _check(path, parts[0], parts[1], dataset.special, dataset.manifest.vocab_size, least, held_out)


def _check(
    path: Path,
    train: Sequence[Row],
    kept: Sequence[Row],
    special: SpecialTokens,
    vocab_size: int,
    least: int,
    held_out: int,
) -> TextRows:
    if not train or len(kept) < held_out:
        raise UserError(
            f"{path}: expected at least {held_out} rows of at least {least} tokens to hold out, and others to train "
            f"on, found {len(kept)} and {len(train)}: give more text, or lower --least_tokens or --held_out"
        )
    digest = hashlib.sha256()
    for row in (*train, *kept):
        digest.update(row.tobytes() + b"|")
    return TextRows(train, kept, special, vocab_size, digest.hexdigest()[:16])


def _read_documents(path: Path, column: str) -> Iterator[str]:
    if path.is_dir():
        files = sorted(path.glob("*.txt"))
        if not files:
            raise UserError(f"{path}: expected text files (*.txt), or a dataset with {MANIFEST_FILE}, found neither")
        yield from map(_read_file, files)
    elif path.suffix.lower() == ".txt":
        yield from (part for part in _read_file(path).split("\n\n") if part.strip())
    elif path.suffix.lower() in ENDINGS or path.exists():
        table = open_table(path)
        for number, (cell,) in enumerate(table.rows((column,)), start=1):
            if not isinstance(cell, str):
                raise UserError(f"{table.place(number)}: {column}: expected text, found {type(cell).__name__}")
            if cell.strip():
                yield cell
    else:
        raise UserError(f"--text {path}: no such file or folder")


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"--text {path}: no such file or folder") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8: {error.reason} at byte {error.start}") from None


def _tokenize(documents: Iterator[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.encode_special_tokens = True  # those that a text spells are letters, as in preprocessing
    batch: list[str] = []
    for document in documents:
        batch.append(document)
        if len(batch) == _AT_ONCE:
            yield from (each.ids for each in tokenizer.encode_batch(batch, add_special_tokens=False))
            batch = []
    yield from (each.ids for each in tokenizer.encode_batch(batch, add_special_tokens=False))


def _cut_into_rows(ids: Sequence[int], length: int, special: SpecialTokens) -> Iterator[Row]:
    for start in range(0, len(ids), length - 2):
        yield np.array([special.bos, *ids[start : start + length - 2], special.eos], dtype=np.int32)


def pad_rows(rows: Sequence[Row], pad: int) -> dict[str, Tensor]:
    """`tokens_BN`, int64, and `mask_BN`, bool, which is left out where all rows are of one length."""
    longest = max(map(len, rows))
    tokens = np.full((len(rows), longest), pad, dtype=np.int64)
    keep = np.zeros((len(rows), longest), dtype=bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        keep[number, : len(row)] = True
    batch = {"tokens_BN": torch.from_numpy(tokens)}
    return batch if keep.all() else batch | {"mask_BN": torch.from_numpy(keep)}
