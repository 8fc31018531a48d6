"""From paragraphs to documents of sentences, with a bound on both and a count of what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nystromformer.data.preprocessing.corpus import Document, split_sentences
from nystromformer.data.preprocessing.unified import Tally

MAX_DOCUMENT = 1_000_000
"""Characters after which a document is cut, between two sentences."""
MAX_SENTENCE = 20_000
"""Characters after which a sentence is cut, between two words."""


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
    group = name if group is None else group
    pieces = 1
    kept: list[str] = []
    characters = 0
    for sentence in sentences:
        for part in _cut_sentence(sentence, tally):
            if characters + len(part) > MAX_DOCUMENT:
                yield Document(name if pieces == 1 else f"{name}#{pieces}", group, tuple(kept))
                pieces += 1
                kept, characters = [], 0
            kept.append(part)
            characters += len(part)
    document = Document(name if pieces == 1 else f"{name}#{pieces}", group, tuple(kept))
    if pieces > 1:
        tally.cut["document over 10^6 characters"] += 1
        yield document
    elif not kept:
        tally.dropped["empty document"] += 1
    elif document.words < min_words:
        tally.dropped[f"document under {min_words} words"] += 1
    else:
        yield document


def _cut_sentence(sentence: str, tally: Tally) -> Iterator[str]:
    if len(sentence) > MAX_SENTENCE:
        tally.cut[f"sentence over {MAX_SENTENCE} characters"] += 1
    while len(sentence) > MAX_SENTENCE:
        at = sentence.rfind(" ", 1, MAX_SENTENCE)
        yield sentence[: at if at > 0 else MAX_SENTENCE]
        sentence = sentence[at + 1 if at > 0 else MAX_SENTENCE :]
    yield sentence
