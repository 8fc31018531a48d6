"""Documents of sentences: from paragraphs to documents, with bounds and counts; JSON lines; validation groups."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nystromformer.errors import UserError
from nystromformer.files.writing import FileStamp, NewFile

MAX_DOCUMENT = 1_000_000
"""Characters after which a document is cut, between two sentences."""
MAX_SENTENCE = 20_000
"""Characters after which a sentence is cut, between two words."""


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

    @property
    def characters(self) -> int:
        """Of all sentences."""
        return sum(map(len, self.sentences))


class Tally(BaseModel):
    """What a corpus gave, or a part of it.

    dropped: how many things were left out, by reason; cut: how many long ones were divided, by kind.
    groups: characters of each group, of a corpus that has few large ones; None for others.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    documents: int = 0
    sentences: int = 0
    words: int = 0
    characters: int = 0
    dropped: dict[str, int] = Field(default_factory=Counter)
    cut: dict[str, int] = Field(default_factory=Counter)
    groups: dict[str, int] | None = None

    def count(self, document: Document) -> Document:
        """Count a document that is kept; gives it back."""
        self.documents += 1
        self.sentences += len(document.sentences)
        self.words += document.words
        self.characters += document.characters
        if self.groups is not None:
            self.groups[document.group] = self.groups.get(document.group, 0) + document.characters
        return document


_DOCUMENT = TypeAdapter(Document)


def in_batches(documents: Iterable[Document], characters: int) -> Iterator[list[Document]]:
    """The same documents in lists of at least so many characters; only the last list may have fewer."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.characters
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_documents(path: Path, documents: Iterable[Document]) -> FileStamp:
    """Write documents as JSON lines, whole or not at all."""
    with NewFile(path) as file:
        for document in documents:
            file.write(json.dumps(vars(document), ensure_ascii=False).encode() + b"\n")
    return file.stamp


def read_documents(path: Path, stamp: FileStamp | None = None) -> Iterator[Document]:
    """Yield the documents of a JSON lines file, one in memory at a time.

    Args:
        stamp: what the file was when it was written, compared with what was read when its end is reached.
    """
    advice = "Remove it and start the corpus' preprocess.py again, which writes that file again."
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
                    f"{path}, line {number}: expected a document: {where}{first['msg']}. {advice}"
                ) from None
            yield document
    if stamp is not None and digest.hexdigest() != stamp.sha256:
        raise UserError(
            f"{path}: changed since it was made: expected SHA-256 {stamp.sha256} as in corpus.json, found "
            f"{digest.hexdigest()}. {advice}"
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
            if not (end[1] or "").islower() and not _is_abbreviation(paragraph[begin : end.end()].rstrip()):
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


def decode(line: bytes, tally: Tally) -> str | None:
    """A line's text; None where it is not UTF-8, which is counted."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        tally.dropped["undecodable line"] += 1
        return None


def documents_of(
    name: str, paragraphs: Iterable[str], min_words: int, tally: Tally, group: str | None = None
) -> Iterator[Document]:
    """Make a document of paragraphs, or several of a long one; none of one that is empty or too short.

    Sentences never span paragraphs. Pieces of a long document have ids of their own and share its group.

    Args:
        group: of the document; None for one of its own.
    """
    sentences = (sentence for paragraph in paragraphs for sentence in split_sentences(paragraph))
    return cut_document(name, sentences, min_words, tally, group)


def cut_document(
    name: str, sentences: Iterable[str], min_words: int, tally: Tally, group: str | None = None
) -> Iterator[Document]:
    """`documents_of` for text that is divided into sentences already."""
    pieces, kept, characters = 1, list[str](), 0

    def piece() -> Document:
        return Document(name if pieces == 1 else f"{name}#{pieces}", name if group is None else group, tuple(kept))

    for sentence in sentences:
        for part in _cut_sentence(sentence, tally):
            if characters + len(part) > MAX_DOCUMENT:
                yield piece()
                pieces, kept, characters = pieces + 1, [], 0
            kept.append(part)
            characters += len(part)
    if pieces > 1:
        tally.cut["document over 10^6 characters"] += 1
    elif not kept:
        tally.dropped["empty document"] += 1
        return
    elif piece().words < min_words:
        tally.dropped[f"document under {min_words} words"] += 1
        return
    yield piece()


def _cut_sentence(sentence: str, tally: Tally) -> Iterator[str]:
    if len(sentence) > MAX_SENTENCE:
        tally.cut[f"sentence over {MAX_SENTENCE} characters"] += 1
    while len(sentence) > MAX_SENTENCE:
        at = sentence.rfind(" ", 1, MAX_SENTENCE)
        yield sentence[: at if at > 0 else MAX_SENTENCE]
        sentence = sentence[at + 1 if at > 0 else MAX_SENTENCE :]
    yield sentence


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
