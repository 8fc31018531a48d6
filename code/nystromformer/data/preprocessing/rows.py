"""Rows of a fixed length, written to raw files; `packing` says how documents are cut into them.

Shapes: R rows, N tokens of a row, T tokens of a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np
from tokenizers import Tokenizer

from nystromformer.data.manifest import little_endian, splits_file, storage_dtype, tokens_file
from nystromformer.data.preprocessing.corpus import Document, in_batches
from nystromformer.data.preprocessing.packing import Packer
from nystromformer.data.tokenizer import SpecialTokens
from nystromformer.files.writing import FileStamp, NewFile

_BATCH_CHARACTERS = 1 << 18


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encode documents sentence by sentence, in batches that the tokenizer's threads share.

    Special tokens that a text spells out are encoded as the text that they are.

    Yields:
        token ids (T,) int32 of a document, and the indices at which its sentences begin.
    """
    tokenizer.encode_special_tokens = True
    for batch in in_batches(documents, _BATCH_CHARACTERS):
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


class RowWriter:
    """Writes `<split>.tokens.bin` and `<split>.splits.bin` as documents come; a context manager like `NewFile`."""

    def __init__(self, folder: Path, split: str, vocab_size: int, special: SpecialTokens, length: int) -> None:
        self.packer = Packer(length, special)
        self._rows = self._sentence_order_rows = 0
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
        arrays = self.packer.add(tokens_T, sentence_starts)
        for file, values, dtype in zip(self._files, arrays, self._dtypes, strict=True):
            file.write(values.astype(dtype).tobytes())
        self._rows += len(arrays[1])
        self._sentence_order_rows += int(np.count_nonzero(arrays[1]))

    @property
    def counts(self) -> dict[str, int]:
        """What was written, as `SplitManifest` has it."""
        return {
            "documents": self.packer.documents,
            "tokens": self.packer.tokens,
            "rows": self._rows,
            "sentence_order_rows": self._sentence_order_rows,
            "padding": self.packer.padding,
            "dropped_tokens": self.packer.pending,
        }

    @property
    def files(self) -> dict[str, FileStamp]:
        """The stamps of the files by name."""
        return {file.path.name: file.stamp for file in self._files}
