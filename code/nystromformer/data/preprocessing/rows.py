"""Rows of a fixed length, written to raw files; `packing` says how documents are cut into them.

Each file of documents gives a part, whose rows are merged into a dataset's files.

Shapes: R rows, N tokens of a row, T tokens of a document.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from nystromformer.data.dataset import (
    SPLITS,
    TOKENIZER_FOLDER,
    splits_file,
    storage_dtype,
    tokens_file,
)
from nystromformer.data.preprocessing.corpus import Document, in_batches, read_documents
from nystromformer.data.preprocessing.packing import Packer
from nystromformer.data.preprocessing.pool import Made
from nystromformer.data.preprocessing.settings import Choice
from nystromformer.data.tokenizer import load_tokenizer, special_tokens
from nystromformer.files.parts import PARTS
from nystromformer.files.writing import FileStamp, NewFile

_FILES = (tokens_file, splits_file)
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
    begin = characters = 0
    for end, sentence in enumerate(sentences, start=1):
        characters += len(sentence)
        # of a token the tokenizer's result takes some hundred bytes: a long document is encoded bit by bit
        if characters >= _BATCH_CHARACTERS or end == len(sentences):
            encodings = tokenizer.encode_batch_fast(sentences[begin:end], add_special_tokens=False)
            sizes = list(map(len, encodings))
            tokens.append(np.fromiter(chain.from_iterable(one.ids for one in encodings), np.int32, sum(sizes)))
            lengths += sizes
            begin, characters = end, 0
    return np.concatenate(tokens), np.array(lengths, np.int64)


def make_part(
    *, folder: Path, name: str, documents: Path, stamp: FileStamp, tokenizer_sha256: str, length: int, choice: Choice
) -> Made:
    """Tokenise and pack one file of documents into `parts/<name>.<split>.{tokens,splits}.bin`.

    The text is read once for each time that a document may come, so that repeats are apart.
    """
    tokenizer = _load_once(folder / TOKENIZER_FOLDER, tokenizer_sha256)
    dtypes = [np.dtype(storage_dtype(values)) for values in (tokenizer.get_vocab_size(), length)]
    packers = {split: Packer(length, special_tokens(tokenizer)) for split in SPLITS}
    splits: deque[str] = deque()

    def chosen() -> Iterator[Document]:
        for turn in range(choice.passes):
            for document in read_documents(documents, stamp):
                split, times = choice(document)
                if turn < times:
                    splits.append(split)
                    yield document

    with ExitStack() as stack:
        files = {
            split: [stack.enter_context(NewFile(folder / PARTS / file_of(f"{name}.{split}"))) for file_of in _FILES]
            for split in SPLITS
        }
        for tokens_T, starts in encode_documents(chosen(), tokenizer):
            split = splits.popleft()
            arrays = packers[split].add(tokens_T, starts)
            for file, values, dtype in zip(files[split], arrays, dtypes, strict=True):
                file.write(values.astype(dtype).tobytes())
    stamps = {file.path: file.stamp for each in files.values() for file in each}
    return stamps, {split: packer.counts for split, packer in packers.items()}


@lru_cache(maxsize=1)
def _load_once(folder: Path, sha256: str) -> Tokenizer:
    """A tokenizer, loaded once in a process; the hash tells one from another in the same place."""
    return load_tokenizer(folder)


def merge_parts(folder: Path, split: str, names: Iterable[str]) -> dict[str, FileStamp]:
    """Put the rows of parts one after the other into a split's files; returns their stamps by name."""
    stamps = {}
    for file_of in _FILES:
        with NewFile(folder / file_of(split)) as merged:
            for name in names:
                with (folder / PARTS / file_of(f"{name}.{split}")).open("rb") as file:
                    shutil.copyfileobj(file, merged)
        stamps[merged.path.name] = merged.stamp
    return stamps
