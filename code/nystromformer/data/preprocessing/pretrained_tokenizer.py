"""RoBERTa's tokenizer, or another of its kind, from a folder or the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nystromformer.data.tokenizer import TOKENIZER_FILE, added_tokens, row_form, special_tokens
from nystromformer.errors import UserError

_CONFIG_FILE = "tokenizer_config.json"
_VOCAB_FILE, _MERGES_FILE = "vocab.json", "merges.txt"
_NO_LIMIT = 1_000_000
"""Libraries write such a length, or a much larger one, for a tokenizer without a limit."""


@dataclass(frozen=True)
class PretrainedTokenizer:
    """A tokenizer as the rows of a dataset need it.

    name: without paths of the machine; limit: tokens that the models take that it was made for, None for any number.
    """

    tokenizer: Tokenizer
    name: str
    limit: int | None


def find_tokenizer(name: str, beside: Path) -> Path:
    """The folder of a tokenizer: the given one, the one of that name in the folder `beside`, or a download.

    Raises:
        UserError: there is no such folder, and it cannot be downloaded.
    """
    for folder in (Path(name), beside / name):
        if folder.is_dir():
            return folder
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"--tokenizer {name}: expected a folder with a tokenizer's files, found none")
    download = importlib.import_module("huggingface_hub").snapshot_download
    try:
        files = [TOKENIZER_FILE, _VOCAB_FILE, _MERGES_FILE, _CONFIG_FILE]
        return Path(download(name, allow_patterns=files))
    except Exception as error:  # whatever the network's layers raise
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            f"--tokenizer {name}: no such folder here or in {beside}, and it cannot be had from the Hugging Face hub: "
            f"{reason}. Give a folder with RoBERTa's {_VOCAB_FILE} and {_MERGES_FILE}, or train"
        ) from error


def read_tokenizer(folder: Path, name: str) -> PretrainedTokenizer:
    """Read a tokenizer: `tokenizer.json`, or RoBERTa's vocab.json and merges.txt.

    It is made to put a space before every text, so that sentences encoded one by one are what their text is as a whole.

    Raises:
        UserError: files are missing, damaged, or of another kind of tokenizer.
    """
    here = [file for file in (TOKENIZER_FILE, _VOCAB_FILE, _MERGES_FILE) if (folder / file).is_file()]
    if here[:1] != [TOKENIZER_FILE] and len(here) < 2:
        raise UserError(
            f"{folder}: expected a tokenizer: {_VOCAB_FILE} and {_MERGES_FILE}, or {TOKENIZER_FILE}; found "
            f"{' and '.join(here) or 'none of them'}"
        )
    try:
        tokenizer = _read_json(folder) if here[0] == TOKENIZER_FILE else _read_vocabulary(folder)
    except UserError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{folder}: the tokenizer's {' and '.join(here[:2])} cannot be read: {error}") from error
    try:
        special_tokens(tokenizer)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    tokenizer.post_processor = row_form(tokenizer)
    return PretrainedTokenizer(tokenizer, Path(name).name, _limit(folder / _CONFIG_FILE))


def _read_vocabulary(folder: Path) -> Tokenizer:
    model = models.BPE.from_file(str(folder / _VOCAB_FILE), str(folder / _MERGES_FILE))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    # ids that the vocabulary has are kept; a token that it lacks would get one that no checkpoint knows
    missing = [token.content for token in added_tokens() if model.token_to_id(token.content) is None]
    if missing:
        raise UserError(f"{folder / _VOCAB_FILE}: expected RoBERTa's special tokens, found no {', '.join(missing)}")
    tokenizer.add_special_tokens(added_tokens())
    return tokenizer


def _read_json(folder: Path) -> Tokenizer:
    path = folder / TOKENIZER_FILE
    state: dict[str, Any] = json.loads(path.read_bytes())
    splitter = state.get("pre_tokenizer") or {}
    if splitter.get("type") != "ByteLevel":
        raise UserError(
            f"{path}: expected a byte-level tokenizer as RoBERTa's, found one whose pre-tokenizer is "
            f"{splitter.get('type', 'missing')}"
        )
    splitter["add_prefix_space"] = True
    state["truncation"] = state["padding"] = None
    return Tokenizer.from_str(json.dumps(state))


def _limit(path: Path) -> int | None:
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: expected JSON, found something else: {error}") from error
    limit = config.get("model_max_length", config.get("max_len")) if isinstance(config, dict) else None
    return int(limit) if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT else None
