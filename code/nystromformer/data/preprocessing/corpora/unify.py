"""From a corpus as people have it to its unified folder: numbered files of documents, and `corpus.json` about them.

Each chunk of the source gives one file, made by one process, which reads the chunk as a stream: it holds a line and a
document, or of books a group of them. data-preprocessing/README.md tells how much memory that takes.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nystromformer.data.preprocessing.corpora.files import Chunk, OpenFile, divide, find_files
from nystromformer.data.preprocessing.corpora.formats import Format, Rules
from nystromformer.data.preprocessing.corpora.hub import hub_rows, open_hub
from nystromformer.data.preprocessing.corpora.text import Tally
from nystromformer.data.preprocessing.corpus import Document, digest_of, write_documents
from nystromformer.data.preprocessing.pool import Made, Work, make_parts
from nystromformer.data.preprocessing.unified import (
    CORPUS_FILE,
    FORMAT_VERSION,
    UnifiedCorpus,
    read_corpus,
    shard_name,
    sum_counts,
    write_corpus,
)
from nystromformer.errors import UserError
from nystromformer.files.parts import PARTS, InUse, Part, open_parts
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)


def unify(
    source: Path,
    out: Path,
    format: Format,
    rules: Rules,
    workers: int = 1,
    overwrite: bool = False,
    share: slice | None = None,
) -> UnifiedCorpus | None:
    """Make a corpus' unified folder, or what an interrupted run left to do; nothing where it is finished.

    Args:
        share: of the chunks, that an array job does, which leaves the rest and `corpus.json` to others.

    Raises:
        UserError: the source is missing, empty or not in the corpus' format; the folder is another run's.
    """
    if rules.hub:
        rows, state = open_hub(rules.hub)
        works: list[Work[Made]] = [
            partial(_unify_rows, out=out, format=format, rules=rules, state=state, part=part, parts=rows.num_shards)
            for part in range(rows.num_shards)
        ]
        origin = {"source": rules.hub, "state of the source": state}
    elif source.resolve() == out.resolve() and fnmatch.fnmatch(shard_name(0), format.pattern):
        raise UserError(
            f"--out {out}: this folder holds the corpus itself, and the output would be read as text: choose another "
            "folder"
        )
    else:
        chunks = divide(source, _find_files(source, out, format), format.cut)
        if not any(chunk.size for chunk in chunks):
            raise UserError(f"{source}: expected {format.looks}, found only empty files")
        works = [
            partial(_unify_files, source=source, out=out, format=format, rules=rules, chunk=chunk, number=number)
            for number, chunk in enumerate(chunks)
        ]
        files = [(name, (source / name).stat()) for chunk in chunks for name in chunk.files]
        states = [(name, status.st_size, status.st_mtime_ns) for name, status in files]
        origin = {"source": str(source.resolve()), "state of the source": digest_of([states, len(chunks)])}
    named = {shard_name(number).removesuffix(".jsonl"): work for number, work in enumerate(works)}
    return write_unified(out, format.name, rules.described(), origin, named, workers, overwrite, share)


def write_unified(
    out: Path,
    name: str,
    settings: Mapping[str, Any],
    origin: Mapping[str, Any],
    works: Mapping[str, Work[Made]],
    workers: int,
    overwrite: bool,
    share: slice | None = None,
) -> UnifiedCorpus | None:
    """Make a unified folder of parts that write its files.

    Args:
        settings: all that decides its content, for `corpus.json`, which has no `origin`: paths of this machine.
        works: by their parts' names; their figures are those of `Tally.as_dict`.

    Raises:
        UserError: nothing is left, a part failed, or the folder is another run's.
    """
    begin = time.monotonic()
    facts = {"format_version": FORMAT_VERSION, "corpus": name, **settings, **origin}
    results = [*(out / shard_name(number) for number in range(len(works))), out / CORPUS_FILE]
    in_use: InUse = "refuse" if share is None else "share"
    with open_parts(out / PARTS, "preprocess.py", facts, results, in_use, overwrite) as parts:
        made = make_parts(parts, works, workers, name, share)
        if share is not None:
            return None
        corpus = corpus_of(name, settings, made.values())
        if (out / CORPUS_FILE).exists() and read_corpus(out) == corpus:
            log.info("%s: already finished, nothing to do", out)
            return corpus
        if not corpus.documents:
            raise UserError(
                f"{name}: no document is left: add text, or lower --min_words, and add --overwrite. "
                f"Dropped: {counted(corpus.dropped)}"
            )
        write_corpus(out, corpus)
    sizes = [number_of(getattr(corpus, f"{noun}s"), noun) for noun in ("document", "sentence", "word")]
    millions, files, seconds = corpus.characters / 1e6, number_of(len(corpus.shards), "file"), time.monotonic() - begin
    log.info(f"{name}: {', '.join(sizes)}, {millions:.1f} million characters in {files}, in {seconds:.1f} seconds")
    log.info("%s: dropped %s; cut %s", name, counted(corpus.dropped), counted(corpus.cut))
    return corpus


def _find_files(source: Path, out: Path, format: Format) -> list[str]:
    names, others = find_files(source, format.pattern, (out, source / "unified"))
    if names and others:
        log.info("%s: %s not read, such as %s", source, number_of(len(others), "other file"), others[0])
    if not names:
        instead = f"found others, such as {others[0]}" if others else "found none"
        raise UserError(
            f"{source}: expected {format.looks}, {instead}. Put the corpus there, or name its folder: --source"
        )
    return names


def _unify_files(*, source: Path, out: Path, format: Format, rules: Rules, chunk: Chunk, number: int) -> Made:
    """Write the documents of one chunk of files."""
    tally = Tally()
    files = (OpenFile(source, name, chunk) for name in chunk.files)
    documents = (document for file in files for document in format.read(file, rules, tally))
    return _write(out / shard_name(number), documents, tally, format.few_groups)


def _unify_rows(*, out: Path, format: Format, rules: Rules, state: str, part: int, parts: int) -> Made:
    """Write the documents of one part of a data set."""
    assert rules.hub is not None
    tally = Tally()
    rows = hub_rows(rules.hub, state, part, parts, rules.text_field)
    return _write(out / shard_name(part), format.rows(rows, rules, tally), tally, format.few_groups)


def _write(shard: Path, documents: Iterable[Document], tally: Tally, with_groups: bool) -> Made:
    return {shard: write_documents(shard, map(tally.count, documents))}, tally.as_dict(with_groups)


def corpus_of(name: str, settings: Mapping[str, Any], parts: Iterable[Part]) -> UnifiedCorpus:
    """A corpus of its parts, in their order; their figures are those of `Tally.as_dict`."""
    figures, shards = [], {}
    for part in parts:
        figures.append(part.figures)
        shards.update({Path(file).name: stamp for file, stamp in part.files.items()})
    counts = {key: sum(each[key] for each in figures) for key in ("documents", "sentences", "words", "characters")}
    groups = [each["groups"] for each in figures if "groups" in each]
    return UnifiedCorpus(
        name=name,
        settings=dict(settings),
        **counts,
        dropped=sum_counts(each["dropped"] for each in figures),
        cut=sum_counts(each["cut"] for each in figures),
        groups=sum_counts(groups) if groups else None,
        shards=shards,
    )
