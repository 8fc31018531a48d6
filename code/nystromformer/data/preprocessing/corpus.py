"""The unified corpus format: JSON lines, one document a line, and what every corpus needs around it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from nystromformer.errors import UserError
from nystromformer.files.writing import FileStamp, NewFile

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


_DOCUMENT = TypeAdapter(Document)


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
        UserError: as `line_of`.
    """
    with NewFile(path) as file:
        for document in documents:
            file.write(line_of(document))
    return file.stamp


def line_of(document: Document) -> bytes:
    """A document's line, with its end.

    Raises:
        UserError: it holds half of a surrogate pair, which is no character.
    """
    record = {"id": document.id, "group": document.group, "sentences": document.sentences}
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        raise UserError(
            f"document {document.id!r} contains half of a surrogate pair, which is not a valid character"
        ) from None


def read_documents(path: Path, stamp: FileStamp | None = None) -> Iterator[Document]:
    """Yield the documents of a JSON lines file, one in memory at a time.

    Args:
        stamp: what the file was when it was written, compared with what was read when its end is reached.

    Raises:
        UserError: a line is not a document (names the file and the line), or the file was changed since it was
            stamped.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            digest.update(line)
            try:
                document = _DOCUMENT.validate_json(line, strict=True)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = "".join(f"{key}: " for key in first["loc"])
                raise UserError(
                    f"{path}, line {number}: {where}{first['msg']}. Expected one document per line: {_FIELDS}. "
                    "Make the file again with the corpus' preprocess.py."
                ) from error
            yield document
    if stamp is not None and digest.hexdigest() != stamp.sha256:
        raise UserError(
            f"{path}: changed since it was made: expected SHA-256 {stamp.sha256} as in corpus.json, found "
            f"{digest.hexdigest()}. Remove it and start the corpus' preprocess.py again, which writes that file again."
        )


_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
# an end mark with its closing quotes and brackets, then what may open a sentence, whose first letter is kept
_END = re.compile(r"""(?:[.!?؟।][)\]"'’”»*`]*\s+(?=["'“‘„«¿¡(\[*`:]*([^\W_]))|[。！？][」』”’]*())""")
_LAST_WORD = re.compile(r"[\w.]+(?=[.!?]\W*$)")
_ABBREVIATIONS = frozenset(
    """e.g i.e eg ie cf vs al resp approx ca Dr Mr Mrs Ms Prof St Jr Sr Inc Ltd Co Corp Fig Figs Eq Eqs Sec Ch Vol vol
    No pp p Ref Refs Sen Gen Rep Gov Col Capt Lt Mt Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec""".split()  # noqa: SIM905
)


def split_sentences(text: str) -> list[str]:
    """Split text into sentences by rule, the same way every time.

    A sentence ends at a blank line, or at an end mark before a digit or a letter that is not small, unless an (English)
    abbreviation, an initial or the number of a list item stands there. White space inside a sentence becomes single
    spaces; none is empty.
    """
    sentences = []
    for paragraph in _BLANK_LINES.split(text):
        begin = 0
        for end in _END.finditer(paragraph):
            if (end[1] or "").islower():
                continue
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
    those that would pass six fifths of it. Where every group is larger than that, the smallest one is taken. A single
    group, which nothing can be taken of, gives none.

    Args:
        sizes: amount of text of each group, in any unit.
    """
    if share == 1 or len(sizes) < 2:
        return frozenset(sizes if share == 1 else ())
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


def stable_uniform(seed: int, text: str) -> float:
    """A number in [0, 1) from `stable_hash`."""
    return int.from_bytes(stable_hash(seed, text)[:8], "big") / 2**64
