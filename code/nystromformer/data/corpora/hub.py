"""Corpora that the datasets library loads, streamed: from the Hugging Face hub, or a folder of parquet or JSON."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

from nystromformer.errors import UserError


def open_hub(name: str) -> Any:
    """The train split of NAME or NAME:CONFIG, as an iterable data set.

    Raises:
        UserError: there is no network, or no such data set.
    """
    # imported here: it takes seconds, and most corpora are files
    load_dataset = importlib.import_module("datasets").load_dataset
    for noisy in ("httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    path, _, config = name.partition(":")
    try:
        return load_dataset(path, config or None, split="train", streaming=True)
    except Exception as error:  # the library raises whatever its network and file system layers raise
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            f"--hub {name}: cannot be loaded: {reason}. Expected NAME or NAME:CONFIG on the Hugging Face hub, which "
            "needs a network, or a folder with parquet or JSON lines files. Without a network, put the corpus' files "
            "in place and leave out --hub"
        ) from error


def hub_rows(name: str, part: int, parts: int, text_field: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the rows of one of a data set's parts.

    Raises:
        UserError: a row has no text.
    """
    rows = open_hub(name).shard(parts, part)
    for number, row in enumerate(rows):
        text = row.get(text_field)
        if not isinstance(text, str):
            raise UserError(
                f"--hub {name}: row {number} of part {part}: expected a text in {text_field!r}, found {text!r:.60}; "
                f"there are {', '.join(row)}: name the text by --text_field"
            )
        yield str(row.get("id", f"{part}.{number}")), text
