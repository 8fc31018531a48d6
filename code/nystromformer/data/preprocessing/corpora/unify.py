"""From a corpus as people have it to its unified folder: numbered files of documents, and `corpus.json` about them.

Each chunk of the source gives one file, made by one process, which reads the chunk as a stream. So the memory of a
process is bounded by 256 MiB whatever the size of the corpus: a line (16 MiB at the most) and a document (10^6
characters, cut beyond), or of books a group of them (2^23 characters). The first process also holds the names of the
source's files, about 200 bytes each. Of a data set, a process holds what the datasets library does, such as a row group
of a parquet file, which has no such bound.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.data.preprocessing.corpora.files import Chunk, OpenFile, divide, find_files
from nystromformer.data.preprocessing.corpora.formats import Format, Rules
from nystromformer.data.preprocessing.corpora.hub import hub_rows, open_hub
from nystromformer.data.preprocessing.corpora.text import MAX_DOCUMENT, MAX_SENTENCE, Tally
from nystromformer.data.preprocessing.corpus import Document, write_documents
from nystromformer.data.preprocessing.pool import Report
from nystromformer.data.preprocessing.stages import StageOutput, Stages, fingerprint_of
from nystromformer.data.preprocessing.unified import (
    CORPUS_FILE,
    FORMAT_VERSION,
    UnifiedCorpus,
    log_corpus,
    read_corpus,
    shard_name,
    write_corpus,
)
from nystromformer.data.preprocessing.units import ArraySlice, Unit, run_units
from nystromformer.errors import UserError
from nystromformer.wording import counted

log = logging.getLogger(__name__)

_ROWS_PER_REPORT = 1000


@dataclass(frozen=True)
class UnifySettings:
    """What decides the unified form of a corpus.

    hub: name of a data set that is read in place of files.
    """

    format: Format
    rules: Rules
    hub: str | None = None

    def __post_init__(self) -> None:
        if self.rules.undecodable not in ("refuse", "skip"):
            raise UserError(f"--undecodable: expected refuse or skip, found {self.rules.undecodable!r}")

    def described(self) -> dict[str, Any]:
        """What corpus.json says of them."""
        limits = {"max_document": MAX_DOCUMENT, "max_sentence": MAX_SENTENCE}
        return {**asdict(self.rules), "hub": self.hub, **limits}


def unify(
    source: Path,
    out: Path,
    settings: UnifySettings,
    workers: int = 1,
    overwrite: bool = False,
    array_slice: ArraySlice | None = None,
) -> UnifiedCorpus | None:
    """Make a corpus' unified folder, or what an interrupted run left to do; nothing where it is finished.

    Args:
        array_slice: do only these chunks, and leave the rest and `corpus.json` to others.

    Raises:
        UserError: the source is missing, empty or not in the corpus' format; the folder is another run's.
    """
    begin = time.monotonic()
    if not settings.hub and _reads_what_it_writes(source, out, settings.format):
        raise UserError(
            f"--out {out}: the corpus itself is there, and its files would be taken for text: choose another"
        )
    units = _hub_units(out, settings) if settings.hub else _file_units(source, out, settings)
    origin = settings.hub or str(source.resolve())
    parameters = {
        "format_version": FORMAT_VERSION,
        "corpus": settings.format.name,
        **settings.described(),
        "source": origin,
    }
    reserved = (CORPUS_FILE, *(shard_name(number) for number in range(len(units))))
    with Stages(out, parameters, CORPUS_FILE, reserved, overwrite, shared=True, correctable=True) as stages:
        stages.share()
        outputs = run_units(stages, units, workers, settings.format.name, array_slice, "words")
        if array_slice is not None:
            return None
        stages.alone()
        stale = sorted(set(stages.stamps.names()) - set(outputs))
        corpus = _corpus(settings, outputs)
        if not stale and (out / CORPUS_FILE).exists() and read_corpus(out) == corpus:
            log.info("%s: finished %s", out, "by another process" if stages.ran else "already, nothing to do")
            return corpus
        stages.unfinish()
        for name in stale:
            stages.stamps.remove(name)
        if not corpus.documents:
            raise UserError(f"{source}: no document is left of it. Dropped: {counted(corpus.dropped)}")
        write_corpus(out, corpus)
    log_corpus(corpus, time.monotonic() - begin)
    return corpus


def _file_units(source: Path, out: Path, settings: UnifySettings) -> list[Unit]:
    format = settings.format
    names = find_files(source, format.pattern, (out, source / "unified"))
    if not names:
        others = find_files(source, "*", (out, source / "unified"))
        instead = f"found others, such as {others[0]}" if others else "found none"
        raise UserError(
            f"{source}: expected {format.looks}, {instead}. Put the corpus there, or name its folder: --source"
        )
    units = []
    for number, chunk in enumerate(divide(source, names, format.cut)):
        states = [(name, *_state(source / name)) for name in chunk.files]
        fingerprint = fingerprint_of([settings.described(), states, chunk.begin, chunk.end])
        work = UnifyFiles(source, out, settings, chunk, number)
        units.append(Unit(f"{number:05d}", fingerprint, chunk.size, work))
    if not any(unit.size for unit in units):
        raise UserError(f"{source}: expected {format.looks}, found only empty files")
    return units


def _reads_what_it_writes(source: Path, out: Path, format: Format) -> bool:
    return source.resolve() == out.resolve() and fnmatch.fnmatch(shard_name(0), format.pattern)


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _hub_units(out: Path, settings: UnifySettings) -> list[Unit]:
    assert settings.hub is not None
    data_set = open_hub(settings.hub)
    parts = int(data_set.rows.num_shards)
    units = []
    for part in range(parts):
        fingerprint = fingerprint_of([settings.described(), data_set.state, part, parts])
        units.append(Unit(f"{part:05d}", fingerprint, 0, UnifyRows(out, settings, data_set.state, part, parts)))
    return units


@dataclass(frozen=True)
class UnifyFiles:
    """The work at one chunk of files."""

    source: Path
    out: Path
    settings: UnifySettings
    chunk: Chunk
    number: int

    def __call__(self, report: Report) -> StageOutput:
        format, tally = self.settings.format, Tally()
        documents = (
            document
            for name in self.chunk.files
            for document in format.read(OpenFile(self.source, name, self.chunk, report), self.settings.rules, tally)
        )
        return _write(self.out, self.number, documents, tally, report, format.few_groups)


@dataclass(frozen=True)
class UnifyRows:
    """The work at one part of a data set."""

    out: Path
    settings: UnifySettings
    state: str
    part: int
    parts: int

    def __call__(self, report: Report) -> StageOutput:
        assert self.settings.hub is not None
        format, rules, tally = self.settings.format, self.settings.rules, Tally()
        rows = _reporting(hub_rows(self.settings.hub, self.state, self.part, self.parts, rules.text_field), report)
        return _write(self.out, self.part, format.rows(rows, rules, tally), tally, report, format.few_groups)


def _reporting(rows: Iterable[tuple[str, str]], report: Report) -> Iterator[tuple[str, str]]:
    size = 0
    for number, (name, text) in enumerate(rows, start=1):
        size += len(text)
        if number % _ROWS_PER_REPORT == 0:
            report(size)
            size = 0
        yield name, text
    report(size)


def _write(
    out: Path, number: int, documents: Iterable[Document], tally: Tally, report: Report, with_groups: bool
) -> StageOutput:
    def tallied() -> Iterator[Document]:
        for document in documents:
            before = tally.words
            tally.count(document)
            report(0, tally.words - before)
            yield document

    stamp = write_documents(out / shard_name(number), tallied())
    return StageOutput({shard_name(number): stamp}, tally.as_dict(with_groups))


def _corpus(settings: UnifySettings, outputs: dict[str, StageOutput]) -> UnifiedCorpus:
    counts = {name: sum(output.result[name] for output in outputs.values()) for name in _COUNTED}
    return UnifiedCorpus(
        name=settings.format.name,
        settings=settings.described(),
        **counts,
        dropped=_sums(output.result["dropped"] for output in outputs.values()),
        cut=_sums(output.result["cut"] for output in outputs.values()),
        groups=_sums(output.result["groups"] for output in outputs.values()) if settings.format.few_groups else None,
        shards={name: stamp for output in outputs.values() for name, stamp in output.files.items()},
    )


_COUNTED = ("documents", "sentences", "words", "characters")


def _sums(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return dict(sorted(sums.items()))
