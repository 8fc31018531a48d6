"""The unified folder of a corpus: `00000.jsonl`, … of documents, and `corpus.json`, written last."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nystromformer.data.dataset import check_size
from nystromformer.data.preprocessing.corpus import Tally
from nystromformer.data.preprocessing.pool import Made, Work, make_parts
from nystromformer.errors import UserError
from nystromformer.files.checked_json import read_record, write_checked
from nystromformer.files.parts import PARTS, open_parts
from nystromformer.files.writing import FileStamp
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)

CORPUS_FILE = "corpus.json"
FORMAT_VERSION = 3
"""Rises when a unified folder of the version before cannot be read any more."""


class UnifiedCorpus(Tally):
    """What a unified folder holds.

    settings: how its documents were made, without paths of the machine.
    shards: its files in order.
    """

    format_version: int = FORMAT_VERSION
    name: str
    settings: dict[str, Any]
    shards: dict[str, FileStamp]


def shard_name(number: int) -> str:
    """Name of a file of documents."""
    return f"{number:05d}.jsonl"


def add_up(figures: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of parts' figures by name, and so within mappings; sorted. None is no number."""
    total: dict[str, Any] = {}
    for each in figures:
        for name, value in each.items():
            if isinstance(value, Mapping):
                total[name] = add_up([total.get(name) or {}, value])
            elif value is not None:
                total[name] = total.get(name, 0) + value
    return dict(sorted(total.items()))


def read_corpus(folder: Path) -> UnifiedCorpus:
    """Read a unified folder's `corpus.json` and check that its shards are there, of their sizes."""
    how = f"Make it with: python data-preprocessing/{folder.parent.name}/preprocess.py --out {folder}"
    corpus = read_record(folder / CORPUS_FILE, UnifiedCorpus, f"{how}, once the folder is removed", FORMAT_VERSION)
    if corpus is None:
        found = f"no {CORPUS_FILE}: it is unfinished" if folder.is_dir() else "no folder"
        raise UserError(f"{folder}: expected a corpus in the unified format, found {found}. {how}")
    for shard, stamp in corpus.shards.items():
        check_size(folder / shard, stamp, how)
    return corpus


def write_unified(
    out: Path,
    name: str,
    settings: Mapping[str, Any],
    origin: Mapping[str, Any],
    works: Mapping[str, Work[Made]],
    workers: int,
    share: slice | None = None,
) -> UnifiedCorpus | None:
    """Make a unified folder of parts that write its files, or what an interrupted run left to do; nothing where it is
    finished.

    Args:
        settings: all that decides its content, for `corpus.json`, which has no `origin`: paths of this machine.
        works: by their parts' names; their figures are those of a `Tally`.
        share: of the works, that an array job does, which leaves the rest and `corpus.json` to others.
    """
    begin = time.monotonic()
    facts = {"format_version": FORMAT_VERSION, "corpus": name, **settings, **origin}
    results = [*(out / shard_name(number) for number in range(len(works))), out / CORPUS_FILE]
    with open_parts(out / PARTS, "preprocess.py", facts, results, share is not None) as parts:
        made = make_parts(parts, works, workers, name, share)
        if share is not None:
            return None
        shards = {Path(file).name: stamp for part in made.values() for file, stamp in part.files.items()}
        figures = add_up(part.figures for part in made.values())
        corpus = UnifiedCorpus(name=name, settings=dict(settings), shards=shards, **figures)
        if not corpus.documents:
            raise UserError(
                f"{name}: no document is left: add text, or lower --min_words, and remove the folder. Dropped: "
                f"{counted(corpus.dropped)}"
            )
        if (out / CORPUS_FILE).exists() and read_corpus(out) == corpus:
            log.info("%s: already finished, nothing to do", out)
            return corpus
        write_checked(out / CORPUS_FILE, corpus.model_dump(mode="json"))
    sizes = [number_of(getattr(corpus, f"{noun}s"), noun) for noun in ("document", "sentence", "word")]
    millions, files, seconds = corpus.characters / 1e6, number_of(len(corpus.shards), "file"), time.monotonic() - begin
    log.info(f"{name}: {', '.join(sizes)}, {millions:.1f} million characters in {files}, in {seconds:.1f} seconds")
    log.info("%s: dropped %s; cut %s", name, counted(corpus.dropped), counted(corpus.cut))
    return corpus
