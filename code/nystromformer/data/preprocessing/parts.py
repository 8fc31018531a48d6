"""The rows of one file of a corpus, as a unit of work, and their merging into a dataset's files."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nystromformer.data.manifest import SPLITS
from nystromformer.data.preprocessing.corpus import Document, read_documents
from nystromformer.data.preprocessing.mixture import Choice
from nystromformer.data.preprocessing.pool import Report
from nystromformer.data.preprocessing.rows import RowWriter, encode_documents
from nystromformer.data.preprocessing.stages import StageOutput
from nystromformer.data.row_files import splits_file, tokens_file
from nystromformer.data.tokenizer import load_tokenizer, special_tokens
from nystromformer.errors import UserError
from nystromformer.files import FileStamp, NewFile

PARTS_FOLDER = "parts"


class DamagedPart(UserError):
    """A part was changed since it was written.

    name: of the part.
    """

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(
            f"{path}: changed since it was written (its SHA-256 is another). It was removed: start the same command "
            "again, which makes it anew."
        )
        self.name = name


_REPORT_BYTES = 1 << 18
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class MakePart:
    """Tokenises and packs one file of documents into `parts/<name>.<split>.{tokens,splits}.bin`.

    The text is read once for each time that a document may come, so that repeats are apart.
    """

    folder: Path
    name: str
    documents: Path
    stamp: FileStamp
    tokenizer_folder: Path
    tokenizer_sha256: str
    length: int
    choice: Choice

    def __call__(self, report: Report) -> StageOutput:
        tokenizer = _tokenizer(self.tokenizer_folder, self.tokenizer_sha256)
        splits: deque[str] = deque()
        meter = _Meter(report)
        with ExitStack() as stack:
            writers = {split: stack.enter_context(self._writer(split, tokenizer)) for split in SPLITS}
            for tokens_T, starts in encode_documents(self._chosen(splits, meter.read), tokenizer):
                writers[splits.popleft()].add(tokens_T, starts)
                meter.encoded(len(tokens_T))
        meter.flush()
        results = {split: writer.result() for split, writer in writers.items()}
        files: dict[str, FileStamp] = {}
        counts: dict[str, Any] = {}
        for split, result in results.items():
            files |= {f"{PARTS_FOLDER}/{name}": stamp for name, stamp in result.files.items()}
            counts[split] = asdict(result)
            del counts[split]["files"]
        return StageOutput(files, counts)

    def _writer(self, split: str, tokenizer: Tokenizer) -> RowWriter:
        special = special_tokens(tokenizer)
        return RowWriter(
            self.folder / PARTS_FOLDER, f"{self.name}.{split}", tokenizer.get_vocab_size(), special, self.length
        )

    def _chosen(self, splits: deque[str], progress: Callable[[int], object]) -> Iterator[Document]:
        for turn in range(self.choice.corpus.passes):
            for document in read_documents(self.documents, progress, self.stamp):
                split, times = self.choice(document)
                if turn < times:
                    splits.append(split)
                    yield document


class _Meter:
    """Reports what was read and encoded, every so often."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._size = self._tokens = 0

    def read(self, size: int) -> None:
        self._size += size

    def encoded(self, tokens: int) -> None:
        self._tokens += tokens
        if self._size >= _REPORT_BYTES:
            self.flush()

    def flush(self) -> None:
        self._report(self._size, self._tokens)
        self._size = self._tokens = 0


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, sha256: str) -> Tokenizer:
    """A tokenizer, loaded once in a process; the hash tells one from another in the same place."""
    return load_tokenizer(folder, sha256)


def merge_parts(folder: Path, split: str, outputs: Mapping[str, StageOutput]) -> dict[str, FileStamp]:
    """Put the rows of parts one after the other into a split's files; returns their stamps by name.

    Raises:
        DamagedPart: a part is not as it was written.
    """
    stamps = {}
    for file_of in (tokens_file, splits_file):
        with NewFile(folder / file_of(split)) as merged:
            for name, output in outputs.items():
                file = f"{PARTS_FOLDER}/{file_of(f'{name}.{split}')}"
                if _copy(folder / file, merged) != output.files[file].sha256:
                    raise DamagedPart(name, folder / file)
        stamps[file_of(split)] = merged.stamp
    return stamps


def _copy(path: Path, target: NewFile) -> str:
    """Append a file; returns its SHA-256."""
    digest = hashlib.sha256()
    with path.open("rb") as part:
        while block := part.read(_COPY_BYTES):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()
