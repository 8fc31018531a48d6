"""The unified folder of a corpus: `00000.jsonl`, … of documents, and `corpus.json`, written last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from nystromformer.data.manifest import check_size
from nystromformer.errors import UserError
from nystromformer.files.checked_json import read_record, write_checked
from nystromformer.files.writing import FileStamp

CORPUS_FILE = "corpus.json"
FORMAT_VERSION = 3
"""Rises when a unified folder of the version before cannot be read any more."""


class UnifiedCorpus(BaseModel):
    """What a unified folder holds.

    settings: how its documents were made, without paths of the machine.
    dropped: how many things were left out, by reason; cut: how many long ones were divided, by kind.
    groups: characters of each group of a corpus that has few large ones; None for others.
    shards: its files in order.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format_version: int = FORMAT_VERSION
    name: str
    settings: dict[str, Any]
    documents: int
    sentences: int
    words: int
    characters: int
    dropped: dict[str, int]
    cut: dict[str, int]
    groups: dict[str, int] | None = None
    shards: dict[str, FileStamp]

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(stamp.size for stamp in self.shards.values())


def write_corpus(folder: Path, corpus: UnifiedCorpus) -> None:
    """Write `corpus.json`, which declares a folder complete."""
    write_checked(folder / CORPUS_FILE, corpus.model_dump(mode="json"))


SHIPPED = ("wiki", "bookcorpus", "stories", "realnews", "docstrings")
"""Corpora with a folder in data-preprocessing/, and with a script there."""


def read_corpus(folder: Path) -> UnifiedCorpus:
    """Read a unified folder's `corpus.json` and check that its shards are there.

    Raises:
        UserError: the folder is missing, unfinished or of another version, or a shard has another size.
    """
    name = folder.parent.name
    how, again = (
        "Run the command or the pipeline that writes it until it is finished",
        "Make it again in an empty folder",
    )
    if name in SHIPPED:
        how = f"Make it with: python data-preprocessing/{name}/preprocess.py --out {folder}"
        again = f"{how} --overwrite"
    corpus = read_record(folder / CORPUS_FILE, UnifiedCorpus, again, FORMAT_VERSION)
    if corpus is None:
        found = f"no {CORPUS_FILE}: it is unfinished" if folder.is_dir() else "no folder"
        raise UserError(f"{folder}: expected a corpus in the unified format, found {found}. {how}")
    for name, stamp in corpus.shards.items():
        check_size(folder / name, stamp, CORPUS_FILE, how)
    return corpus


def shard_name(number: int) -> str:
    """Name of a file of documents."""
    return f"{number:05d}.jsonl"


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums by name, sorted by name."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
