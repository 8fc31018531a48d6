"""The unified corpus format: JSON lines, one document a line, and what every corpus needs around it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.bounded import json_problem, read_lines
from nystromformer.errors import UserError
from nystromformer.files import FileStamp, NewFile

MAX_LINE = 1 << 24
"""Bytes of a line of text, which is held in memory."""
_FIELDS = '{"id": text, "group": text, "sentences": [text, ...]}'


@dataclass(frozen=True)
class Document:
    """One document: its sentences in order, and the group that a train/validation split keeps together."""

    id: str
    group: str
    sentences: tuple[str, ...]

    @property
    def words(self) -> int:
        """Number of words, as separated by white space."""
        return sum(len(sentence.split()) for sentence in self.sentences)


def in_batches(documents: Iterable[Document], characters: int) -> Iterator[list[Document]]:
    """The same documents in lists of at least so many characters; only the last list may have fewer."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.sentences))
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_documents(path: Path, documents: Iterable[Document]) -> FileStamp:
    """Write documents as JSON lines, whole or not at all.

    Raises:
        UserError: a document holds half of a surrogate pair, which is no character.
    """
    with NewFile(path) as file:
        for document in documents:
            record = {"id": document.id, "group": document.group, "sentences": document.sentences}
            try:
                line = json.dumps(record, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise UserError(
                    f"document {document.id!r} holds half of a surrogate pair, which is no character"
                ) from None
            file.write(line + b"\n")
    return file.stamp


def read_documents(
    path: Path, progress: Callable[[int], object] = lambda size: None, stamp: FileStamp | None = None
) -> Iterator[Document]:
    """Yield the documents of a JSON lines file, one in memory at a time.

    Args:
        progress: called with the bytes of each line, before its document is yielded.
        stamp: what the file was when it was written, compared with what was read when its end is reached.

    Raises:
        UserError: the file is missing, a line is too long or not a document (names the file and the line), or the file
            was changed since it was stamped.
    """
    digest = hashlib.sha256()
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: the corpus cannot be read: {error.strerror or error}") from error
    with file:
        for number, line in enumerate(read_lines(file, path, MAX_LINE), start=1):
            digest.update(line)
            try:
                document = _parse(line)
            except ValueError as error:
                raise UserError(
                    f"{path}, line {number}: {error}. Expected one document a line: {_FIELDS}. "
                    "Make the file again with the corpus' preprocess.py."
                ) from error
            progress(len(line))
            yield document
    if stamp is not None and digest.hexdigest() != stamp.sha256:
        raise UserError(
            f"{path}: changed since it was made: expected SHA-256 {stamp.sha256} as in corpus.json, found "
            f"{digest.hexdigest()}. Remove it and start the corpus' preprocess.py again, which makes that file anew."
        )


def _parse(line: bytes) -> Document:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start} of the line") from error
    except json.JSONDecodeError as error:
        cut = "" if line.endswith(b"\n") else "; the line has no end, the file may be cut off"
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}){cut}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found {json_problem(error)}") from error
    if not isinstance(record, dict):
        raise ValueError(f"found a JSON {type(record).__name__}, not an object")
    document = Document(_text(record, "id"), _text(record, "group"), _sentences(record))
    # a surrogate can enter only by an escape, and no tokenizer takes one
    if b"\\ud" in line.lower():
        _refuse_surrogates(document)
    return document


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(f'"{key}" is missing' if key not in record else f'"{key}" is {value!r:.60}, not a text')
    return value


def _sentences(record: Mapping[str, Any]) -> tuple[str, ...]:
    value = record.get("sentences")
    if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
        raise ValueError('"sentences" is missing or not a list of texts')
    return tuple(value)


def _refuse_surrogates(document: Document) -> None:
    try:
        "".join((document.id, document.group, *document.sentences)).encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds half of a surrogate pair, which is no character") from error


_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
# an end mark with its closing quotes and brackets, then what may open a sentence
_END = re.compile(r"""[.!?][)\]"'’”*`]*\s+(?=["'“‘(\[*`:]*[A-Z0-9])""")
_LAST_WORD = re.compile(r"[\w.]+(?=[.!?]\W*$)")
_ABBREVIATIONS = frozenset(
    """e.g i.e eg ie cf vs al resp approx ca Dr Mr Mrs Ms Prof St Jr Sr Inc Ltd Co Corp Fig Figs Eq Eqs Sec Ch Vol vol
    No pp p Ref Refs Sen Gen Rep Gov Col Capt Lt Mt Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec""".split()  # noqa: SIM905
)


def split_sentences(text: str) -> list[str]:
    """Split English text into sentences by rule, the same way every time.

    A sentence ends at a blank line, or at an end mark before a capital or digit unless an abbreviation, an initial or
    the number of a list item stands there. White space inside a sentence becomes single spaces; none is empty.
    """
    sentences = []
    for paragraph in _BLANK_LINES.split(text):
        begin = 0
        for end in _END.finditer(paragraph):
            if not _is_abbreviation(paragraph[begin : end.end()].rstrip()):
                sentences.append(" ".join(paragraph[begin : end.end()].split()))
                begin = end.end()
        sentences.append(" ".join(paragraph[begin:].split()))
    return [sentence for sentence in sentences if sentence]


def _is_abbreviation(head: str) -> bool:
    """Whether `head`, which ends in an end mark, ends in an abbreviation rather than in a sentence's last word."""
    last = _LAST_WORD.search(head[-40:])
    if last is None or not head.endswith("."):
        return False
    word = last.group()
    is_item_number = word.isdigit() and head.strip() == f"{word}."
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    return word in _ABBREVIATIONS or is_initial or is_item_number


def choose_validation_groups(sizes: Mapping[str, int], seed: int, share: float) -> frozenset[str]:
    """Choose whole groups for validation: about a share of the text, always one, and never all unless the share is 1.

    Groups come in the order of a hash of (seed, name) and are taken until four fifths of the share are reached, but for
    those that would pass six fifths of it. Where every group is larger than that, the smallest one is taken.

    Args:
        sizes: amount of text of each group, in any unit.

    Raises:
        ValueError: fewer than two groups, so that one side would be empty.
    """
    if share == 1:
        return frozenset(sizes)
    if len(sizes) < 2:
        raise ValueError(f"expected at least two groups, found {sorted(sizes)}")
    total = sum(sizes.values())
    chosen: set[str] = set()
    taken = 0
    for group in sorted(sizes, key=lambda name: stable_hash(seed, name)):
        if 5 * taken >= 4 * share * total:
            break
        if 5 * (taken + sizes[group]) <= 6 * share * total and len(chosen) + 1 < len(sizes):
            chosen.add(group)
            taken += sizes[group]
    return frozenset(chosen or {min(sizes, key=lambda name: (sizes[name], stable_hash(seed, name)))})


def stable_hash(seed: int, text: str) -> bytes:
    """SHA-256 of a seed and a text: the same in every process, unlike `hash`."""
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()
