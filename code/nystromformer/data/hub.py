"""Data sets of the Hugging Face hub, through the datasets library."""

import importlib
import logging
from typing import Any


def datasets_library() -> Any:
    """The library, without its network layers' messages; it takes seconds to import, and most people have files."""
    library = importlib.import_module("datasets")
    for noisy in ("httpx", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return library


def load_split(name: str, config: str | None, split: str) -> Any:
    """A split of a data set, from the hub or the library's cache.

    Raises:
        Exception: whatever the library's network and file system layers raise; `first_line` says it in a line.
    """
    return datasets_library().load_dataset(name, config, split=split)
