"""From paragraphs to documents of sentences, with a bound on both and a count of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from nystromformer.data.preprocessing.corpora.files import OpenFile
from nystromformer.data.preprocessing.corpus import Document, split_sentences

MAX_DOCUMENT = 1_000_000
"""Characters after which a document is cut, between two sentences."""
MAX_SENTENCE = 20_000
"""Characters after which a sentence is cut, between two words."""

Policy = Literal["refuse", "skip"]


@dataclass
class Tally:
    """What a part of a corpus gave.

    dropped: how many things were left out, by reason; cut: how many were divided, by kind; groups: characters of each.
    """

    documents: int = 0
    sentences: int = 0
    words: int = 0
    characters: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)

    def as_dict(self, with_groups: bool = False) -> dict[str, Any]:
        """As JSON has it.

        Args:
            with_groups: tell the size of each group, of a corpus that has few of them.
        """
        plain = {**vars(self), "dropped": dict(self.dropped), "cut": dict(self.cut), "groups": dict(self.groups)}
        if not with_groups:
            del plain["groups"]
        return plain

    def count(self, document: Document) -> Document:
        """Count a document that is kept; gives it back."""
        self.documents += 1
        self.sentences += len(document.sentences)
        self.words += document.words
        characters = sum(map(len, document.sentences))
        self.characters += characters
        self.groups[document.group] += characters
        return document


def decode(file: OpenFile, offset: int, line: bytes, policy: Policy, tally: Tally) -> str | None:
    """A line's text; None where it is not UTF-8 and such lines are skipped.

    Raises:
        UserError: it is not UTF-8, and such lines are refused.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        if policy == "refuse":
            raise file.error(
                offset,
                f"not UTF-8 at byte {error.start + 1} of the line. Convert the file, or start again with "
                "--undecodable skip --overwrite to leave such lines out and count them",
            ) from None
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
    group = name if group is None else group
    pieces = 0
    kept: list[str] = []
    characters = 0
    for sentence in sentences:
        for part in _cut_sentence(sentence, tally):
            if characters + len(part) > MAX_DOCUMENT:
                pieces += 1
                yield Document(_piece(name, pieces), group, tuple(kept))
                kept, characters = [], 0
            kept.append(part)
            characters += len(part)
    document = Document(_piece(name, pieces + 1), group, tuple(kept))
    if pieces:
        tally.cut["document over 10^6 characters"] += 1
        yield document
    elif not kept:
        tally.dropped["empty document"] += 1
    elif document.words < min_words:
        tally.dropped[f"document under {min_words} words"] += 1
    else:
        yield document


def _piece(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def _cut_sentence(sentence: str, tally: Tally) -> Iterator[str]:
    if len(sentence) > MAX_SENTENCE:
        tally.cut[f"sentence over {MAX_SENTENCE} characters"] += 1
    while len(sentence) > MAX_SENTENCE:
        at = sentence.rfind(" ", 1, MAX_SENTENCE)
        yield sentence[: at if at > 0 else MAX_SENTENCE]
        sentence = sentence[at + 1 if at > 0 else MAX_SENTENCE :]
    yield sentence
