"""The corpora's own formats: what their files are called, how documents are read from them, and a corpus' way to its
unified folder.

Each chunk of files gives one file of documents, made by one process, which reads the chunk as a stream: it holds a line
and a document, or of books a group of them.
"""

from __future__ import annotations

import hashlib
import html
import importlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from nystromformer.data.preprocessing.corpus import Document, Tally, cut_document, decode, documents_of, write_documents
from nystromformer.data.preprocessing.files import OpenFile, divide, find_files
from nystromformer.data.preprocessing.pool import Made, Work
from nystromformer.data.preprocessing.unified import UnifiedCorpus, shard_name, write_unified
from nystromformer.errors import UserError, first_line
from nystromformer.files.reading import half_character


@dataclass(frozen=True)
class Rules:
    """How documents are made of a corpus; its fields are flags (`with_flag_groups`).

    lines_per_document: None for a corpus that marks its documents.
    """

    min_words: Annotated[int, typer.Option("--min_words", min=0, help="Drop documents with fewer words.")] = 0
    lines_per_document: Annotated[
        int | None,
        typer.Option(
            "--lines_per_document",
            min=1,
            help="Lines of a document, in a corpus that does not mark where documents end.",
        ),
    ] = None
    text_field: Annotated[
        str, typer.Option("--text_field", help="Key or column that holds the text, in JSON lines and with --hub.")
    ] = "text"
    hub: Annotated[
        str | None, typer.Option(help="Read a dataset of the Hugging Face hub instead of files: NAME or NAME:CONFIG.")
    ] = None


def text_rows(rows: Iterable[tuple[str, str]], rules: Rules, tally: Tally) -> Iterator[Document]:
    """Documents of a data set whose rows are documents."""
    for name, text in rows:
        yield from documents_of(name, text.split("\n"), rules.min_words, tally)


@dataclass(frozen=True)
class Format:
    """A corpus' format. It is pickled, so its functions are a module's, or those of a script that is run.

    name: of the corpus. pattern: of its files' names, which may end in .gz or .bz2 besides.
    looks: what the files are, for messages.
    read: yields the documents of a file, or of the part of it that an `OpenFile` is.
    rows: yields those of a data set's rows (`--hub`), given as (name, text) pairs.
    cut: whether documents can be read from the middle of a file, so that processes share a large one.
    few_groups: whether its groups are few and large, so that corpus.json tells the size of each.
    """

    name: str
    pattern: str
    looks: str
    read: Callable[[OpenFile, Rules, Tally], Iterator[Document]]
    rows: Callable[[Iterable[tuple[str, str]], Rules, Tally], Iterator[Document]] = text_rows
    cut: bool = False
    few_groups: bool = False


_DOC = re.compile(rb'<doc id="(?P<id>[^"]*)"(?:[^>]*? title="(?P<title>.*?)")?[^"]*>$')


def read_wiki(file: OpenFile, rules: Rules, tally: Tally) -> Iterator[Document]:
    """Articles as WikiExtractor writes them, a paragraph a line; their titles are left out, entities are resolved."""
    lines = file.lines(past_end=True)
    resuming = file.begin > 0
    for offset, line in lines:
        if resuming and not line.startswith(b"<doc "):
            continue  # the rest of an article of the range before
        resuming = False
        if not line.strip():
            continue
        if file.end is not None and offset >= file.end:
            return
        opening = _DOC.match(line)
        if opening is None:
            raise file.error(offset, f"expected WikiExtractor's <doc id=… url=… title=…>, found {_quote(line)}")
        body = _wiki_body(file, offset, lines, tally)
        first = next(body, "")
        title = html.unescape((opening["title"] or b"").decode(errors="replace"))
        paragraphs = body if first.strip() == title.strip() else chain([first], body)
        # every line of the article is read, also of one that is dropped
        yield from documents_of(opening["id"].decode(errors="replace"), paragraphs, rules.min_words, tally)


def _wiki_body(file: OpenFile, begin: int, lines: Iterator[tuple[int, bytes]], tally: Tally) -> Iterator[str]:
    for offset, line in lines:
        if line.rstrip() == b"</doc>":
            return
        if line.startswith(b"<doc id="):
            raise file.error(offset, "a <doc …> before the </doc> of the one above it")
        text = decode(line, tally)
        if text is not None:
            yield html.unescape(text) if "&" in text else text
    raise file.error(begin, "this <doc …> has no </doc>: the file is cut off")


DOCUMENTS_PER_GROUP = 50
"""Of a corpus without marks of documents: as many runs of lines, at the least, are on one side of the split."""
_CHARACTERS_PER_GROUP = 1 << 23
"""As many are enough too, because a group is held in memory until it is known to be large enough."""


def read_bookcorpus(file: OpenFile, rules: Rules, tally: Tally) -> Iterator[Document]:
    """Books without marks between them, a sentence a line: documents are runs of lines, anew in every chunk.

    A book goes on from one document to the next, so groups are long runs of documents, with one left out between two.
    """
    lines = _plain_lines(file, tally)
    named = ((f"{file.name}@{offset}", line) for offset, line in lines)
    return _group_documents(_documents_of_lines(named, rules, tally), tally, follows=file.begin > 0)


def _group_documents(documents: Iterator[Document], tally: Tally, follows: bool) -> Iterator[Document]:
    """The same documents in groups that are named after their first one, less those between two groups.

    What is too little for a group at the end belongs to the last one.

    Args:
        follows: whether the text before them is in a group already.
    """
    group, between = "", int(follows)
    while True:
        gap = list(islice(documents, between))
        members: list[Document] = []
        characters = 0
        for document in documents:
            members.append(document)
            characters += sum(map(len, document.sentences))
            if len(members) == DOCUMENTS_PER_GROUP or characters >= _CHARACTERS_PER_GROUP:
                break
        else:
            if group:
                yield from (replace(document, group=group) for document in (*gap, *members))
                return
        if gap:
            tally.dropped["document between two groups"] += len(gap)
        if not members:
            return
        group, between = members[0].id, 1
        yield from (replace(document, group=group) for document in members)


def _documents_of_lines(lines: Iterable[tuple[str, str]], rules: Rules, tally: Tally) -> Iterator[Document]:
    sentences = ((name, " ".join(line.split())) for name, line in lines)
    full = ((name, sentence) for name, sentence in sentences if sentence)
    while first := next(full, None):
        rest = (sentence for _, sentence in islice(full, (rules.lines_per_document or 1) - 1))
        yield from cut_document(first[0], chain([first[1]], rest), rules.min_words, tally)


def bookcorpus_rows(rows: Iterable[tuple[str, str]], rules: Rules, tally: Tally) -> Iterator[Document]:
    """Documents of a data set whose rows are sentences; what is before them is another part's."""
    return _group_documents(_documents_of_lines(rows, rules, tally), tally, follows=True)


_LONGEST_WRAPPED = 120
_SHORT_LINE = 0.6
_LINES_LOOKED_AT = 1000
_PARAGRAPH_LIMIT = 1 << 16


def read_stories(file: OpenFile, rules: Rules, tally: Tally) -> Iterator[Document]:
    """A story: the whole file is one document."""
    lines = (text for _, text in _plain_lines(file, tally))
    yield from documents_of(file.name, _paragraphs(lines), rules.min_words, tally)


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Paragraphs of a text with a paragraph a line, or of one whose lines are wrapped at a width below 120 characters.

    A wrapped paragraph ends at a blank line and after a line much shorter than the width.
    """
    head = list(islice(lines, _LINES_LOOKED_AT))
    width = max((len(line.rstrip()) for line in head), default=0)
    if width > _LONGEST_WRAPPED:
        yield from chain(head, lines)
        return
    parts: list[str] = []
    characters = 0
    for line in chain(head, lines):
        parts.append(line)
        characters += len(line)
        if len(line.rstrip()) < _SHORT_LINE * width or characters > _PARAGRAPH_LIMIT:
            yield " ".join(parts)
            parts, characters = [], 0
    yield " ".join(parts)


def _plain_lines(file: OpenFile, tally: Tally) -> Iterator[tuple[int, str]]:
    for offset, line in file.lines():
        if b"\0" in line:
            tally.dropped["line with a NUL byte"] += 1
        elif (text := decode(line, tally)) is not None:
            yield offset, text


def read_realnews(file: OpenFile, rules: Rules, tally: Tally) -> Iterator[Document]:
    """News articles, a JSON object a line, of which the text is read."""
    for offset, line in file.lines():
        text = decode(line, tally)
        if text is None or not text.strip():
            continue
        try:
            article = json.loads(text)[rules.text_field]
            if not isinstance(article, str):
                raise TypeError(f"{article!r:.40} is no text")
        except (ValueError, TypeError, KeyError) as error:
            wanted = f'a JSON object with a text in "{rules.text_field}"'
            raise file.error(offset, f"expected {wanted}, found {_quote(line)} ({error!r:.80})") from None
        if half_character(article) is not None:
            tally.dropped["undecodable line"] += 1
            continue
        yield from documents_of(f"{file.name}@{offset}", article.split("\n"), rules.min_words, tally)


def _quote(line: bytes) -> str:
    return repr(line[:60].decode(errors="replace"))


FORMATS = {
    format.name: format
    for format in (
        Format("wiki", "wiki_*", "files wiki_00, wiki_01, … of WikiExtractor", read_wiki, cut=True),
        Format(
            "bookcorpus",
            "*.txt",
            "files *.txt with one sentence a line",
            read_bookcorpus,
            bookcorpus_rows,
            cut=True,
            few_groups=True,
        ),
        Format("stories", "*", "text files, one a document", read_stories),
        Format("realnews", "*.jsonl", "files *.jsonl with one article a line", read_realnews, cut=True),
    )
}
"""Those of the paper's corpora; another corpus' script brings its own."""


@contextmanager
def _loading(name: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"--hub {name}: cannot be loaded: {first_line(error)}. Expected NAME or NAME:CONFIG on the Hugging Face "
            "hub, which needs a network, or a folder with parquet or JSON lines files. Started again, the same command "
            "continues with the remaining parts"
        ) from error


def _open_hub(name: str) -> tuple[Any, str]:
    """The train split of NAME or NAME:CONFIG, an iterable of rows that is not held in memory; and a hash of its files'
    state: the hub's revision or the times of their change.
    """
    path, _, config = name.partition(":")
    with _loading(name):
        library = importlib.import_module("datasets")  # takes seconds, and most people have files
        for noisy in ("httpx", "huggingface_hub"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        builder = library.load_dataset_builder(path, config or None)
        files = builder.config.data_files or {}
        origins = [[str(split), list(map(str, each)), each.origin_metadata] for split, each in files.items()]
        return builder.as_streaming_dataset(split="train"), hashlib.sha256(repr(origins).encode()).hexdigest()


def _hub_rows(name: str, part: int, parts: int, text_field: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the rows of one of a data set's parts."""
    with _loading(name):
        for number, row in enumerate(_open_hub(name)[0].shard(parts, part)):
            text, identity = row.get(text_field), row.get("id")
            if not isinstance(text, str):
                raise UserError(
                    f"--hub {name}: row {number} of part {part}: expected a text in {text_field!r}, found {text!r:.60};"
                    f" the columns are {', '.join(row)}: name the text column with --text_field"
                )
            yield f"{part}.{number}" if identity is None else str(identity), text


Part = list[OpenFile] | tuple[int, int]
"""Of a corpus: some files, or a part of a data set by its number and how many there are."""


def unify(
    source: Path,
    out: Path,
    format: Format,
    rules: Rules,
    workers: int = 1,
    share: slice | None = None,
) -> UnifiedCorpus | None:
    """Make a corpus' unified folder; further arguments are those of `write_unified`."""
    parts: list[Part]
    if rules.hub:
        rows, state = _open_hub(rules.hub)
        place, parts = rules.hub, [(part, rows.num_shards) for part in range(rows.num_shards)]
    else:
        if source.resolve() == out.resolve():
            raise UserError(f"--out {out}: this folder holds the corpus itself: choose another folder")
        names = find_files(source, format.pattern, format.looks)
        facts = [(name, (status := (source / name).stat()).st_size, status.st_mtime_ns) for name in names]
        if not any(size for _, size, _ in facts):
            raise UserError(f"{source}: expected {format.looks}, found only empty files")
        parts = [*divide(source, names, format.cut)]
        place, state = str(source.resolve()), hashlib.sha256(repr(facts).encode()).hexdigest()
    works: dict[str, Work[Made]] = {
        (shard := out / shard_name(number)).stem: partial(_make_shard, shard, format, rules, part)
        for number, part in enumerate(parts)
    }
    origin = {"source": place, "state of the source": state}
    return write_unified(out, format.name, asdict(rules), origin, works, workers, share)


def _make_shard(shard: Path, format: Format, rules: Rules, part: Part) -> Made:
    tally = Tally(groups={} if format.few_groups else None)
    if isinstance(part, tuple):
        documents = format.rows(_hub_rows(str(rules.hub), *part, rules.text_field), rules, tally)
    else:
        documents = chain.from_iterable(format.read(file, rules, tally) for file in part)
    return {shard: write_documents(shard, map(tally.count, documents))}, tally.model_dump()
