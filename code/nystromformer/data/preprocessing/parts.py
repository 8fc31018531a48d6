"""The rows of one file of a corpus, as a unit of work, and their merging into a dataset's files."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.index import index_of
from nystromformer.data.manifest import PARTS_FOLDER, SPLITS, index_file, splits_file, tokens_file
from nystromformer.data.preprocessing.corpus import Document, read_documents
from nystromformer.data.preprocessing.mixture import Choice
from nystromformer.data.preprocessing.pool import Report
from nystromformer.data.preprocessing.rows import RowWriter, encode_documents
from nystromformer.data.preprocessing.stages import StageOutput, Stamps
from nystromformer.data.tokenizer import load_tokenizer, special_tokens
from nystromformer.errors import UserError, reading
from nystromformer.files.writing import FileStamp, NewFile

_COPY_BYTES = 1 << 20


def make_part(
    report: Report,
    *,
    folder: Path,
    name: str,
    documents: Path,
    stamp: FileStamp,
    tokenizer_sha256: str,
    length: int,
    choice: Choice,
) -> StageOutput:
    """Tokenise and pack one file of documents into `parts/<name>.<split>.{tokens,splits}.bin`.

    The text is read once for each time that a document may come, so that repeats are apart.
    """
    tokenizer = _load_once(folder / TOKENIZER_FOLDER, tokenizer_sha256)
    special, vocab_size = special_tokens(tokenizer), tokenizer.get_vocab_size()
    splits: deque[str] = deque()

    def chosen() -> Iterator[Document]:
        for turn in range(choice.corpus.passes):
            for document in read_documents(documents, lambda size: report(size, 0), stamp):
                split, times = choice(document)
                if turn < times:
                    splits.append(split)
                    yield document

    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(RowWriter(folder / PARTS_FOLDER, f"{name}.{split}", vocab_size, special, length))
            for split in SPLITS
        }
        for tokens_T, starts in encode_documents(chosen(), tokenizer):
            writers[splits.popleft()].add(tokens_T, starts)
            report(0, len(tokens_T))
    files = {f"{PARTS_FOLDER}/{file}": stamp for each in writers.values() for file, stamp in each.files.items()}
    return StageOutput(files, {split: writer.counts for split, writer in writers.items()})


@lru_cache(maxsize=1)
def _load_once(folder: Path, sha256: str) -> Tokenizer:
    """A tokenizer, loaded once in a process; the hash tells one from another in the same place."""
    return load_tokenizer(folder, sha256)


def write_index(stamps: Stamps, split: str, outputs: Mapping[str, StageOutput]) -> dict[str, FileStamp]:
    """Write the index of a split whose rows stay in their parts; returns its stamp by its name."""

    def parts() -> Iterator[tuple[str, int, FileStamp, FileStamp]]:
        for name, output in outputs.items():
            files = [f"{PARTS_FOLDER}/{file_of(f'{name}.{split}')}" for file_of in (tokens_file, splits_file)]
            yield name, output.result[split]["rows"], output.files[files[0]], output.files[files[1]]

    name = index_file(split)
    with NewFile(stamps.folder / name) as file:
        file.write(index_of(parts()))
    return {name: file.stamp}


def merge_parts(stamps: Stamps, split: str, outputs: Mapping[str, StageOutput]) -> dict[str, FileStamp]:
    """Put the rows of parts one after the other into a split's files; returns their stamps by name.

    Raises:
        UserError: a part is not as it was written; it is removed.
    """
    folder, merged_stamps = stamps.folder, {}
    for file_of in (tokens_file, splits_file):
        with NewFile(folder / file_of(split)) as merged:
            for name, output in outputs.items():
                file = f"{PARTS_FOLDER}/{file_of(f'{name}.{split}')}"
                digest = hashlib.sha256()
                with reading(folder / file), (folder / file).open("rb") as part:
                    while block := part.read(_COPY_BYTES):
                        digest.update(block)
                        merged.write(block)
                if digest.hexdigest() != output.files[file].sha256:
                    stamps.remove(name)
                    raise UserError(
                        f"{folder / file}: changed since it was written (the SHA-256 does not match). It was removed: "
                        "start the same command again, which writes it again."
                    )
        merged_stamps[file_of(split)] = merged.stamp
    return merged_stamps
