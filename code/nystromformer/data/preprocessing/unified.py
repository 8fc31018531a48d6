"""The unified folder of a corpus: `00000.jsonl`, … of documents, and `corpus.json`, written last."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nystromformer.bounded import read_json
from nystromformer.data.sealed import unsealed, write_sealed
from nystromformer.errors import UserError
from nystromformer.files import FileStamp
from nystromformer.wording import counted, number_of

log = logging.getLogger(__name__)

CORPUS_FILE = "corpus.json"
FORMAT_VERSION = 2
"""1: groups of books were single documents, next to those of the other split."""


_CORPUS_BYTES = 1 << 28
"""There is a line for each of its files, and for each group of a corpus that has few."""


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
    documents: int = Field(ge=0)
    sentences: int = Field(ge=0)
    words: int = Field(ge=0)
    characters: int = Field(ge=0)
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
    write_sealed(folder / CORPUS_FILE, corpus.model_dump(mode="json"))


def read_corpus(folder: Path) -> UnifiedCorpus:
    """Read a unified folder's `corpus.json` and check that its shards are there.

    Raises:
        UserError: the folder is missing, unfinished or of another version, or a shard has another size.
    """
    path = folder / CORPUS_FILE
    how = f"Make it with: python data-preprocessing/{folder.parent.name}/preprocess.py --out {folder}"
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a corpus in the unified format, found no folder. {how}")
    if not path.is_file():
        raise UserError(f"{path}: no such file: the corpus is unfinished. {how}, which continues where it stopped")
    record = read_json(path, f"{how} --overwrite", _CORPUS_BYTES)
    content = unsealed(path, record, f"{how} --overwrite") if isinstance(record, dict) else record
    try:
        corpus = UnifiedCorpus.model_validate_json(json.dumps(content))
        if corpus.format_version != FORMAT_VERSION:
            raise UserError(
                f"{path}: expected format_version {FORMAT_VERSION}, found {corpus.format_version}, of another version "
                f"of nystromformer. {how} --overwrite"
            )
    except ValidationError as error:
        problems = [f"  {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise UserError(
            "\n".join([f"{path}: not what this version writes:", *problems, f"{how} --overwrite"])
        ) from error
    for name, stamp in corpus.shards.items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size != stamp.size:
            state = "no such file" if size is None else f"{size} bytes"
            raise UserError(f"{folder / name}: expected {stamp.size} bytes as in {CORPUS_FILE}, found {state}. {how}")
    return corpus


def shard_name(number: int) -> str:
    """Name of a file of documents."""
    return f"{number:05d}.jsonl"


def log_corpus(corpus: UnifiedCorpus, seconds: float) -> None:
    """Say what a corpus holds and what was left out."""
    log.info(
        "%s: %s, %s, %s, %.1f million characters in %s, in %.1f seconds",
        corpus.name,
        number_of(corpus.documents, "document"),
        number_of(corpus.sentences, "sentence"),
        number_of(corpus.words, "word"),
        corpus.characters / 1e6,
        number_of(len(corpus.shards), "file"),
        seconds,
    )
    log.info("%s: dropped %s; cut %s", corpus.name, counted(corpus.dropped), counted(corpus.cut))
