"""From a corpus as people have it to its unified folder: numbered files of documents, and `corpus.json` about them.

Each chunk of the source gives one file, made by one process, which reads the chunk as a stream: it holds a line and a
document, or of books a group of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nystromformer.data.hub import corpus_rows, open_corpus
from nystromformer.data.preprocessing.corpora.files import Chunk, OpenFile, divide, find_files
from nystromformer.data.preprocessing.corpora.formats import Format, Rules
from nystromformer.data.preprocessing.corpus import Document, write_documents
from nystromformer.data.preprocessing.pool import Made, Work
from nystromformer.data.preprocessing.unified import Tally, UnifiedCorpus, shard_name, write_unified
from nystromformer.errors import UserError
from nystromformer.wording import number_of

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
    """Make a corpus' unified folder; further arguments are those of `write_unified`.

    Raises:
        UserError: the source is missing, empty or not in the corpus' format; the folder is another run's.
    """
    works: list[Work[Made]]
    if rules.hub:
        rows, state = open_corpus(rules.hub)
        parts = rows.num_shards
        works = [partial(_unify_rows, out / shard_name(part), format, rules, part, parts) for part in range(parts)]
        origin = {"source": rules.hub, "state of the source": state}
    else:
        if source.resolve() == out.resolve():
            raise UserError(f"--out {out}: this folder holds the corpus itself: choose another folder")
        chunks = divide(source, _find_files(source, format), format.cut)
        if not any(chunk.size for chunk in chunks):
            raise UserError(f"{source}: expected {format.looks}, found only empty files")
        works = [
            partial(_unify_files, out / shard_name(number), format, rules, source, chunk)
            for number, chunk in enumerate(chunks)
        ]
        files = [(name, (source / name).stat()) for chunk in chunks for name in chunk.files]
        states = [(name, status.st_size, status.st_mtime_ns) for name, status in files]
        state = hashlib.sha256(repr([states, len(chunks)]).encode()).hexdigest()
        origin = {"source": str(source.resolve()), "state of the source": state}
    named = {Path(shard_name(number)).stem: work for number, work in enumerate(works)}
    return write_unified(out, format.name, asdict(rules), origin, named, workers, overwrite, share)


def _find_files(source: Path, format: Format) -> list[str]:
    names, others = find_files(source, format.pattern)
    if names and others:
        log.info("%s: %s not read, such as %s", source, number_of(len(others), "other file"), others[0])
    if not names:
        instead = f"found others, such as {others[0]}" if others else "found none"
        raise UserError(
            f"{source}: expected {format.looks}, {instead}. Put the corpus there, or name its folder: --source"
        )
    return names


def _unify_files(shard: Path, format: Format, rules: Rules, source: Path, chunk: Chunk) -> Made:
    """Write the documents of one chunk of files."""
    tally = format.tally()
    files = (OpenFile(source, name, chunk) for name in chunk.files)
    return _write(shard, (document for file in files for document in format.read(file, rules, tally)), tally)


def _unify_rows(shard: Path, format: Format, rules: Rules, part: int, parts: int) -> Made:
    """Write the documents of one part of a data set."""
    tally = format.tally()
    rows = corpus_rows(str(rules.hub), part, parts, rules.text_field)
    return _write(shard, format.rows(rows, rules, tally), tally)


def _write(shard: Path, documents: Iterable[Document], tally: Tally) -> Made:
    return {shard: write_documents(shard, map(tally.count, documents))}, tally.model_dump()
