"""From a corpus as people have it to its unified folder: numbered files of documents, and `corpus.json` about them.

Each chunk of the source gives one file, made by one process, which reads the chunk as a stream: it holds a line and a
document, or of books a group of them. data-preprocessing/README.md tells how much memory that takes.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nystromformer.data.preprocessing.corpora.files import Chunk, OpenFile, divide, find_files
from nystromformer.data.preprocessing.corpora.formats import Format, Rules
from nystromformer.data.preprocessing.corpora.hub import hub_rows, open_hub
from nystromformer.data.preprocessing.corpora.text import Tally
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
    sum_counts,
    write_corpus,
)
from nystromformer.data.preprocessing.units import Unit, run_units
from nystromformer.errors import UserError
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)


def unify(
    source: Path,
    out: Path,
    format: Format,
    rules: Rules,
    workers: int = 1,
    overwrite: bool = False,
    part: slice | None = None,
) -> UnifiedCorpus | None:
    """Make a corpus' unified folder, or what an interrupted run left to do; nothing where it is finished.

    Args:
        part: of the list of chunks, that an array job does, which leaves the rest and `corpus.json` to others.

    Raises:
        UserError: the source is missing, empty or not in the corpus' format; the folder is another run's.
    """
    if rules.hub:
        units = _hub_units(rules.hub, out, format, rules)
    elif source.resolve() == out.resolve() and fnmatch.fnmatch(shard_name(0), format.pattern):
        raise UserError(
            f"--out {out}: this folder holds the corpus itself, and the output would be read as text: choose another "
            "folder"
        )
    else:
        units = _file_units(source, out, format, rules)
    origin = rules.hub or str(source.resolve())
    return write_unified(out, format.name, rules.described(), origin, units, workers, overwrite, part)


def write_unified(
    out: Path,
    name: str,
    settings: Mapping[str, Any],
    origin: str | Sequence[str],
    units: Sequence[Unit],
    workers: int,
    overwrite: bool,
    part: slice | None = None,
) -> UnifiedCorpus | None:
    """Make a unified folder of units that write its files.

    Args:
        settings: all that decides its content, for `corpus.json`, which has no `origin`: paths of this machine.
        units: their results are those of `Tally.as_dict`.

    Raises:
        UserError: nothing is left, a unit failed, or the folder is another run's.
    """
    begin = time.monotonic()
    parameters = {"format_version": FORMAT_VERSION, "corpus": name, **settings, "source": origin}
    reserved = (CORPUS_FILE, *(shard_name(number) for number in range(len(units))))
    with Stages(out, parameters, CORPUS_FILE, reserved, overwrite) as stages:
        outputs = run_units(stages, units, workers, name, part, "words")
        if part is not None:
            return None
        stages.exclude_others()
        stale = sorted(set(stages.stamps.names()) - set(outputs))
        corpus = corpus_of(name, settings, outputs.values())
        if not stale and (out / CORPUS_FILE).exists() and read_corpus(out) == corpus:
            log.info("%s: already finished, nothing to do", out)
            return corpus
        stages.unfinish()
        for unit in stale:
            stages.stamps.remove(unit)
        if not corpus.documents:
            raise UserError(
                f"{name}: no document is left: add text, or lower --min_words. Dropped: {counted(corpus.dropped)}"
            )
        write_corpus(out, corpus)
    log_corpus(corpus, time.monotonic() - begin)
    return corpus


def _file_units(source: Path, out: Path, format: Format, rules: Rules) -> list[Unit]:
    names, others = find_files(source, format.pattern, (out, source / "unified"))
    if names and others:
        log.info("%s: %s not read, such as %s", source, number_of(len(others), "other file"), others[0])
    if not names:
        instead = f"found others, such as {others[0]}" if others else "found none"
        raise UserError(
            f"{source}: expected {format.looks}, {instead}. Put the corpus there, or name its folder: --source"
        )
    units = []
    for number, chunk in enumerate(divide(source, names, format.cut)):
        states = [(name, (source / name).stat().st_size, (source / name).stat().st_mtime_ns) for name in chunk.files]
        fingerprint = fingerprint_of([rules.described(), states, chunk.begin, chunk.end])
        work = partial(
            _unify_files, source=source, out=out, format=format, rules=rules, chunk=chunk, shard=shard_name(number)
        )
        units.append(Unit(f"{number:05d}", fingerprint, chunk.size, work))
    if not any(unit.size for unit in units):
        raise UserError(f"{source}: expected {format.looks}, found only empty files")
    return units


def _hub_units(hub: str, out: Path, format: Format, rules: Rules) -> list[Unit]:
    rows, state = open_hub(hub)
    units = []
    for part in range(rows.num_shards):
        fingerprint = fingerprint_of([rules.described(), state, part, rows.num_shards])
        work = partial(_unify_rows, out=out, format=format, rules=rules, state=state, part=part, parts=rows.num_shards)
        units.append(Unit(f"{part:05d}", fingerprint, 0, work))
    return units


def _unify_files(
    report: Report, *, source: Path, out: Path, format: Format, rules: Rules, chunk: Chunk, shard: str
) -> StageOutput:
    """Write the documents of one chunk of files."""
    tally = Tally()
    files = (OpenFile(source, name, chunk, report) for name in chunk.files)
    documents = (document for file in files for document in format.read(file, rules, tally))
    return _write(out, shard, documents, tally, report, format.few_groups)


def _unify_rows(
    report: Report, *, out: Path, format: Format, rules: Rules, state: str, part: int, parts: int
) -> StageOutput:
    """Write the documents of one part of a data set."""
    assert rules.hub is not None
    tally = Tally()
    rows = _report_rows(hub_rows(rules.hub, state, part, parts, rules.text_field), report)
    return _write(out, shard_name(part), format.rows(rows, rules, tally), tally, report, format.few_groups)


def _report_rows(rows: Iterable[tuple[str, str]], report: Report) -> Iterator[tuple[str, str]]:
    for name, text in rows:
        report(len(text), 0)
        yield name, text


def _write(
    out: Path, shard: str, documents: Iterable[Document], tally: Tally, report: Report, with_groups: bool
) -> StageOutput:
    def tallied() -> Iterator[Document]:
        for document in documents:
            before = tally.words
            tally.count(document)
            report(0, tally.words - before)
            yield document

    stamp = write_documents(out / shard, tallied())
    return StageOutput({shard: stamp}, tally.as_dict(with_groups))


def corpus_of(name: str, settings: Mapping[str, Any], outputs: Iterable[StageOutput]) -> UnifiedCorpus:
    """A corpus of what its units wrote, in their order; their results are those of `Tally.as_dict`."""
    results, shards = [], {}
    for output in outputs:
        results.append(output.result)
        shards.update(output.files)
    counts = {key: sum(result[key] for result in results) for key in ("documents", "sentences", "words", "characters")}
    groups = [result["groups"] for result in results if "groups" in result]
    return UnifiedCorpus(
        name=name,
        settings=dict(settings),
        **counts,
        dropped=sum_counts(result["dropped"] for result in results),
        cut=sum_counts(result["cut"] for result in results),
        groups=sum_counts(groups) if groups else None,
        shards=shards,
    )
