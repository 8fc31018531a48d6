"""Corpora that the datasets library loads, streamed: from the Hugging Face hub, or a folder of parquet or JSON."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nystromformer.data.preprocessing.stages import fingerprint_of
from nystromformer.errors import UserError


@dataclass(frozen=True)
class HubSet:
    """The train split of a data set.

    rows: iterable; state: of its files, with the hub's revision or the times of their change, as a hash.
    """

    rows: Any
    state: str


def open_hub(name: str) -> HubSet:
    """The train split of NAME or NAME:CONFIG.

    Raises:
        UserError: there is no network, or no such data set.
    """
    # imported here: it takes seconds, and most corpora are files
    load_builder = importlib.import_module("datasets").load_dataset_builder
    for noisy in ("httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    path, _, config = name.partition(":")
    try:
        builder = load_builder(path, config or None)
        return HubSet(builder.as_streaming_dataset(split="train"), _state(builder.config.data_files or {}))
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"--hub {name}: cannot be loaded: {_reason(error)}. Expected NAME or NAME:CONFIG on the Hugging Face hub, "
            "which needs a network, or a folder with parquet or JSON lines files. Without a network, put the corpus' "
            "files in place and leave out --hub"
        ) from error


def _state(data_files: Mapping[Any, Any]) -> str:
    origins = [[str(split), list(map(str, files)), files.origin_metadata] for split, files in data_files.items()]
    return fingerprint_of(origins)


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def hub_rows(name: str, state: str, part: int, parts: int, text_field: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the rows of one of a data set's parts.

    Raises:
        UserError: a row has no text, the data set has not this state any more, or the network fails.
    """
    data_set = open_hub(name)
    if data_set.state != state:
        raise UserError(f"--hub {name}: was changed while it was read. Start the command again, to read it anew")
    for number, row in enumerate(_read(name, data_set.rows.shard(parts, part))):
        text = row.get(text_field)
        if not isinstance(text, str):
            raise UserError(
                f"--hub {name}: row {number} of part {part}: expected a text in {text_field!r}, found {text!r:.60}; "
                f"there are {', '.join(row)}: name the text by --text_field"
            )
        yield str(row.get("id", f"{part}.{number}")), text


def _read(name: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    try:
        yield from rows
    except Exception as error:  # as above
        raise UserError(
            f"--hub {name}: cannot be read on: {_reason(error)}. Started again, the same command continues with the "
            "parts that are left"
        ) from error
