"""Data sets that the datasets library loads: from the Hugging Face hub, or a folder of Parquet or JSON lines."""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nystromformer.errors import UserError, first_line


def datasets_library() -> Any:
    """The library, without its network layers' messages; it takes seconds to import, and most people have files."""
    library = importlib.import_module("datasets")
    for noisy in ("httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return library


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


def open_corpus(name: str) -> tuple[Any, str]:
    """The train split of NAME or NAME:CONFIG, an iterable of rows that is not held in memory; and a hash of its files'
    state: the hub's revision or the times of their change.
    """
    path, _, config = name.partition(":")
    with _loading(name):
        builder = datasets_library().load_dataset_builder(path, config or None)
        files = builder.config.data_files or {}
        origins = [[str(split), list(map(str, each)), each.origin_metadata] for split, each in files.items()]
        return builder.as_streaming_dataset(split="train"), hashlib.sha256(repr(origins).encode()).hexdigest()


def corpus_rows(name: str, part: int, parts: int, text_field: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the rows of one of a data set's parts."""
    with _loading(name):
        for number, row in enumerate(open_corpus(name)[0].shard(parts, part)):
            text, identity = row.get(text_field), row.get("id")
            if not isinstance(text, str):
                raise UserError(
                    f"--hub {name}: row {number} of part {part}: expected a text in {text_field!r}, found {text!r:.60};"
                    f" the columns are {', '.join(row)}: name the text column with --text_field"
                )
            yield f"{part}.{number}" if identity is None else str(identity), text
