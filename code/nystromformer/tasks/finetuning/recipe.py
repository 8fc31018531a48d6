"""What predicting new rows needs beside a run's weights: kept in its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.tokenizer import TOKENIZER_FILE, save_tokenizer
from nystromformer.errors import UserError
from nystromformer.files import sha256_of
from nystromformer.kept import read_kept, write_kept

RECIPE_FILE = "task.json"
FORMAT = 1
TOKENIZER_SHA256 = "tokenizer_sha256"


def keep_recipe(folder: Path, recipe: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Write a task's recipe and its tokenizer to a run's folder; what is there and the same stays.

    Raises:
        UserError: they cannot be written.
    """
    place = folder / TOKENIZER_FOLDER / TOKENIZER_FILE
    sha256 = hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()
    if not place.is_file() or sha256_of(place) != sha256:
        save_tokenizer(tokenizer, place.parent)
    path, data = folder / RECIPE_FILE, {"format": FORMAT, **recipe, TOKENIZER_SHA256: sha256}
    try:
        there = read_kept(path)
    except ValueError:  # damaged: it follows from the data and the flags, and is made again
        there = None
    if there != data:
        write_kept(path, data)


def read_recipe(folder: Path) -> dict[str, Any] | None:
    """What `keep_recipe` wrote, without its format; None where there is none.

    Raises:
        UserError: it is damaged, or of another version.
    """
    path = folder / RECIPE_FILE
    advice = "Start the run's command again, which writes it anew"
    try:
        data = read_kept(path)
    except ValueError as error:
        raise UserError(
            f"{path}: expected what a run says of its task, found something else ({error}). {advice}"
        ) from None
    if data is None:
        return None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise UserError(f"{path}: expected what a run of this version says of its task (format {FORMAT}). {advice}")
    return data
