"""Rows of a fixed length, packed across documents and written to raw files.

The content of a split is a stream of tokens: its documents, with one `</s>` between neighbours. Every row is full:

    <s> A </s> B </s>   A and B are of one document, B begins a sentence; `split` is the index of B's first token
    <s> content </s>    any other row; `split` is 0: it has no sentence-order label

A separator that would open a row is dropped, since a row's ends separate documents already. All else of the stream is
in the rows, in order, but for the last tokens, which fill no row.

Shapes: R rows, N tokens of a row, T tokens of a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np
from tokenizers import Tokenizer

from nystromformer.data.corpus import Document
from nystromformer.data.manifest import Dtype
from nystromformer.data.tokenizer import SpecialTokens
from nystromformer.errors import UserError
from nystromformer.files import FileStamp, NewFile

MIN_LENGTH = 8
_BATCH_CHARACTERS = 1 << 18
_INNER, _SENTENCE, _SEPARATOR = 0, 1, 2


@dataclass(frozen=True)
class RowsResult:
    """Counts of a written split, as the manifest has them, and its files by name."""

    documents: int
    tokens: int
    rows: int
    sentence_order_rows: int
    dropped_tokens: int
    files: dict[str, FileStamp]


class Packer:
    """Cuts a stream of documents into rows, one document at a time; holds less than a row between documents.

    How a row is cut depends on the stream alone, not on the documents' arrival.
    """

    def __init__(self, length: int, bos: int, separator: int) -> None:
        if length < MIN_LENGTH:
            raise UserError(f"--length: expected at least {MIN_LENGTH}, found {length}")
        self.length = length
        self.documents = 0
        self.tokens = 0
        self._bos = bos
        self._separator = separator
        self._pending_T = np.empty(0, np.int32)
        self._marks_T = np.empty(0, np.uint8)

    @property
    def pending(self) -> int:
        """Tokens that fill no row yet."""
        return len(self._pending_T)

    def add(self, tokens_T: np.ndarray, sentence_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append a document and cut what rows it completes.

        Args:
            tokens_T: token ids of the document; an empty one is ignored.
            sentence_starts: indices into `tokens_T` at which a sentence begins.

        Returns:
            rows (R, N) int32 and splits (R,) int32.
        """
        if len(tokens_T):
            marks_T = np.full(len(tokens_T), _INNER, np.uint8)
            marks_T[sentence_starts] = _SENTENCE
            gap = int(self.documents > 0)
            separators = np.full(gap, self._separator, np.int32)
            self._pending_T = np.concatenate([self._pending_T, separators, tokens_T.astype(np.int32, copy=False)])
            self._marks_T = np.concatenate([self._marks_T, np.full(gap, _SEPARATOR, np.uint8), marks_T])
            self.documents += 1
            self.tokens += gap + len(tokens_T)
        return self._cut()

    def _cut(self) -> tuple[np.ndarray, np.ndarray]:
        tokens_T, marks_T = self._pending_T, self._marks_T
        at = 0
        rows, splits = [], []
        # a row with a split point holds one content token less than one without
        least = self.length - 3
        while True:
            if at < len(marks_T) and marks_T[at] == _SEPARATOR:
                at += 1
            window = marks_T[at : at + least]
            if len(window) < least:
                break
            head = head_length(window)
            taken = least if head else least + 1
            if len(marks_T) - at < taken:
                break
            rows.append(self._row(tokens_T[at : at + taken], head))
            splits.append(head + 2 if head else 0)
            at += taken
        self._pending_T, self._marks_T = tokens_T[at:].copy(), marks_T[at:].copy()
        return np.array(rows, np.int32).reshape(-1, self.length), np.array(splits, np.int32)

    def _row(self, content: np.ndarray, head: int) -> np.ndarray:
        row_N = np.full(self.length, self._separator, np.int32)
        row_N[0] = self._bos
        row_N[1 : head + 1] = content[:head]
        tail = head + 2 if head else 1
        row_N[tail:-1] = content[head:]
        return row_N


def head_length(marks: np.ndarray) -> int:
    """Tokens before the sentence boundary nearest the middle, with 25 to 75 % of the content before it; 0 for none.

    Content of more than one document has none. Of two boundaries equally near, the first one is taken.
    """
    size = len(marks)
    if (marks == _SEPARATOR).any():
        return 0
    first = -(-size // 4)
    heads = np.flatnonzero(marks[first : 3 * size // 4 + 1] == _SENTENCE) + first
    return int(heads[np.abs(2 * heads - size).argmin()]) if len(heads) else 0


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encode documents sentence by sentence, in batches that the tokenizer's threads share.

    Special tokens that a text spells out are encoded as the text that they are.

    Yields:
        token ids (T,) int32 of a document, and the indices at which its sentences begin.
    """
    tokenizer.encode_special_tokens = True
    for batch in _batches(documents):
        tokens_T, lengths = _encode([sentence for document in batch for sentence in document.sentences], tokenizer)
        ends = np.cumsum(lengths)
        first = 0
        for document in batch:
            mine = slice(first, first + len(document.sentences))
            first = mine.stop
            starts = (ends[mine] - lengths[mine])[lengths[mine] > 0]
            begin = starts[0] if len(starts) else 0
            yield tokens_T[begin : begin + lengths[mine].sum()], starts - begin


def _encode(sentences: list[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of all sentences, (T,) int32, and the number of each sentence's, (S,)."""
    tokens, lengths = [np.empty(0, np.int32)], []
    for group in _groups(sentences):
        encodings = tokenizer.encode_batch_fast(group, add_special_tokens=False)
        sizes = list(map(len, encodings))
        tokens.append(np.fromiter(chain.from_iterable(one.ids for one in encodings), np.int32, sum(sizes)))
        lengths += sizes
    return np.concatenate(tokens), np.array(lengths, np.int64)


def _groups(sentences: list[str]) -> Iterator[list[str]]:
    """What the tokenizer gets at once: for a token, its result takes some hundred bytes."""
    begin = characters = 0
    for end, sentence in enumerate(sentences, start=1):
        characters += len(sentence)
        if characters >= _BATCH_CHARACTERS or end == len(sentences):
            yield sentences[begin:end]
            begin, characters = end, 0


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += sum(map(len, document.sentences))
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class RowWriter:
    """Writes `<split>.tokens.bin` and `<split>.splits.bin` as documents come; a context manager like `NewFile`."""

    def __init__(self, folder: Path, split: str, vocab_size: int, special: SpecialTokens, length: int) -> None:
        self.packer = Packer(length, special.bos, special.eos)
        self.rows = 0
        self._split = split
        self._sentence_order_rows = 0
        self._dtypes = little_endian(storage_dtype(vocab_size)), little_endian(storage_dtype(length))
        self._files = NewFile(folder / tokens_file(split)), NewFile(folder / splits_file(split))
        self._stack = ExitStack()

    def __enter__(self) -> RowWriter:
        for file in self._files:
            self._stack.enter_context(file)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, tb)

    def add(self, tokens_T: np.ndarray, sentence_starts: np.ndarray) -> None:
        """Write what rows a document completes."""
        rows_RN, splits_R = self.packer.add(tokens_T, sentence_starts)
        if not len(splits_R):
            return
        for file, values, dtype in zip(self._files, (rows_RN, splits_R), self._dtypes, strict=True):
            file.write(values.astype(dtype).tobytes())
        self.rows += len(splits_R)
        self._sentence_order_rows += int(np.count_nonzero(splits_R))

    def result(self) -> RowsResult:
        """Counts and stamps of what was written."""
        names = tokens_file(self._split), splits_file(self._split)
        files = {name: file.stamp for name, file in zip(names, self._files, strict=True)}
        packer = self.packer
        return RowsResult(packer.documents, packer.tokens, self.rows, self._sentence_order_rows, packer.pending, files)


def write_rows(
    folder: Path, split: str, documents: Iterable[Document], tokenizer: Tokenizer, special: SpecialTokens, length: int
) -> RowsResult:
    """Write a split's rows, holding one batch of documents in memory at a time.

    Raises:
        UserError: the text fills no row, or the disk is full.
    """
    with RowWriter(folder, split, tokenizer.get_vocab_size(), special, length) as writer:
        for tokens_T, sentence_starts in encode_documents(documents, tokenizer):
            writer.add(tokens_T, sentence_starts)
        if not writer.rows:
            raise UserError(
                f"{folder}: the {split} split has {writer.packer.tokens} tokens, which fill no row of {length}: "
                "use more text or a smaller --length"
            )
    return writer.result()


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
