"""Corpora that the datasets library loads, streamed: from the Hugging Face hub, or a folder of parquet or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nystromformer.data.hub import datasets_library
from nystromformer.data.preprocessing.corpus import digest_of
from nystromformer.errors import UserError, first_line


def open_hub(name: str) -> tuple[Any, str]:
    """The train split of NAME or NAME:CONFIG, an iterable of rows.

    Returns:
        the rows, and a hash of the state of its files: the hub's revision or the times of their change.

    Raises:
        UserError: there is no network, or no such data set.
    """
    library = datasets_library()
    path, _, config = name.partition(":")
    try:
        builder = library.load_dataset_builder(path, config or None)
        files = builder.config.data_files or {}
        origins = [[str(split), list(map(str, each)), each.origin_metadata] for split, each in files.items()]
        return builder.as_streaming_dataset(split="train"), digest_of(origins)
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"--hub {name}: cannot be loaded: {first_line(error)}. Expected NAME or NAME:CONFIG on the Hugging Face "
            "hub, which needs a network, or a folder with parquet or JSON lines files. Without a network, put the "
            "corpus' files in place and leave out --hub"
        ) from error


def hub_rows(name: str, state: str, part: int, parts: int, text_field: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the rows of one of a data set's parts.

    Raises:
        UserError: a row has no text, the data set has not this state any more, or the network fails.
    """
    rows, state_now = open_hub(name)
    if state_now != state:
        raise UserError(
            f"--hub {name}: changed while it was being read. Start the command again to read it from the beginning"
        )
    for number, row in enumerate(_read(name, rows.shard(parts, part))):
        text = row.get(text_field)
        if not isinstance(text, str):
            raise UserError(
                f"--hub {name}: row {number} of part {part}: expected a text in {text_field!r}, found {text!r:.60}; "
                f"the columns are {', '.join(row)}: name the text column with --text_field"
            )
        identity = row.get("id")
        yield f"{part}.{number}" if identity is None else str(identity), text


def _read(name: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    try:
        yield from rows
    except Exception as error:  # as above
        raise UserError(
            f"--hub {name}: reading stopped: {first_line(error)}. Start the same command again: it continues with the "
            "remaining parts"
        ) from error
