"""RoBERTa's tokenizer or BERT's, or another of their kinds, from a folder or the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nystromformer.bounded import JSON_BYTES, json_problem, read_bytes, read_json
from nystromformer.data.preprocessing.byte_level import Merge, check_byte_level, check_ids
from nystromformer.data.tokenizer import TOKENIZER_FILE, added_tokens, row_form, special_tokens
from nystromformer.errors import UserError

_CONFIG_FILE = "tokenizer_config.json"
_VOCAB_FILE, _MERGES_FILE = "vocab.json", "merges.txt"
_HOW_TO_GET = "Get the tokenizer's files anew, all from one place"
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
    """Read a tokenizer: `tokenizer.json`, byte-level BPE as RoBERTa's or WordPiece as BERT's; or RoBERTa's vocab.json
    and merges.txt.

    A byte-level one is made to put a space before every text, so that sentences encoded one by one are what their text
    is as a whole; of WordPiece, which splits at spaces, they are so anyhow.

    Raises:
        UserError: files are missing, damaged, or of another kind of tokenizer.
    """
    here = [file for file in (TOKENIZER_FILE, _VOCAB_FILE, _MERGES_FILE) if (folder / file).is_file()]
    if here[:1] != [TOKENIZER_FILE] and len(here) < 2:
        raise UserError(
            f"{folder}: expected a tokenizer: {_VOCAB_FILE} and {_MERGES_FILE}, or {TOKENIZER_FILE}; found "
            f"{' and '.join(here) or 'none of them'}"
        )
    files = here[:1] if here[0] == TOKENIZER_FILE else here
    try:
        tokenizer = _read_json(folder) if here[0] == TOKENIZER_FILE else _read_vocabulary(folder)
    except UserError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{folder}: the tokenizer's {' and '.join(files)} cannot be read: {error}") from error
    try:
        special_tokens(tokenizer)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    tokenizer.post_processor = row_form(tokenizer)
    return PretrainedTokenizer(tokenizer, Path(name).name, _limit(folder / _CONFIG_FILE))


def _read_vocabulary(folder: Path) -> Tokenizer:
    vocabulary = _vocabulary(read_json(folder / _VOCAB_FILE, _HOW_TO_GET), folder / _VOCAB_FILE)
    merges = _read_merges(folder / _MERGES_FILE)
    special = [token.content for token in added_tokens()]
    # ids that the vocabulary has are kept; a token that it lacks would get one that no checkpoint knows
    missing = [token for token in special if token not in vocabulary]
    if missing:
        raise UserError(f"{folder / _VOCAB_FILE}: expected RoBERTa's special tokens, found no {', '.join(missing)}")
    _check(f"{folder}: {_VOCAB_FILE} and {_MERGES_FILE}", vocabulary, merges, special)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(added_tokens())
    return tokenizer


def _read_json(folder: Path) -> Tokenizer:
    path = folder / TOKENIZER_FILE
    state = read_json(path, _HOW_TO_GET)
    splitter = state.get("pre_tokenizer") if isinstance(state, dict) else None
    kind = splitter.get("type") if isinstance(splitter, dict) else None
    if not isinstance(splitter, dict) or kind not in ("ByteLevel", "BertPreTokenizer"):
        raise UserError(
            f"{path}: expected a byte-level tokenizer as RoBERTa's, or WordPiece as BERT's, found one whose "
            f"pre-tokenizer is {kind or 'missing'}"
        )
    if kind == "ByteLevel":
        _check_state(path, state)
        splitter["add_prefix_space"] = True
    else:
        _check_word_pieces(path, state)
    state["truncation"] = state["padding"] = None
    return Tokenizer.from_str(json.dumps(state))


def _check_state(path: Path, state: dict[str, Any]) -> None:
    model, added = state.get("model"), state.get("added_tokens") or []
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise UserError(f"{path}: expected a model of the type BPE as RoBERTa's, found {kind or 'none'}")
    if model.get("dropout"):
        raise UserError(f"{path}: expected a model without dropout, which makes of a text now these tokens, now those")
    tokens = {token["content"]: token["id"] for token in added}
    merges = [_merge(path, number, each) for number, each in enumerate(model.get("merges") or [], start=1)]
    vocabulary = _vocabulary(model.get("vocab"), path)
    for token, number in tokens.items():
        if vocabulary.setdefault(token, number) != number:
            raise UserError(f"{path}: the added token {token!r} has the id {number}, and {vocabulary[token]} in vocab")
    _check(str(path), vocabulary, merges, tokens.keys())


def _check_word_pieces(path: Path, state: dict[str, Any]) -> None:
    model, added = state.get("model"), state.get("added_tokens") or []
    if not isinstance(model, dict) or model.get("type") != "WordPiece":
        found = model.get("type") if isinstance(model, dict) else None
        raise UserError(f"{path}: expected a model of the type WordPiece as BERT's, found {found or 'none'}")
    vocabulary = _vocabulary(model.get("vocab"), path)
    for token in added:
        if vocabulary.setdefault(token["content"], token["id"]) != token["id"]:
            other = vocabulary[token["content"]]
            raise UserError(
                f"{path}: the added token {token['content']!r} has the id {token['id']}, and {other} in vocab"
            )
    try:
        check_ids(vocabulary)
    except UserError as error:
        raise UserError(f"{path}: damaged: {error}. {_HOW_TO_GET}") from None
    if (unknown := model.get("unk_token")) not in vocabulary:
        raise UserError(f"{path}: its token for unknown words, {unknown!r}, is not in the vocabulary. {_HOW_TO_GET}")


def _check(place: str, vocabulary: dict[str, int], merges: list[Merge], added: Collection[str]) -> None:
    try:
        check_byte_level(vocabulary, merges, added)
    except UserError as error:
        raise UserError(f"{place} do not belong together, or are damaged: {error}. {_HOW_TO_GET}") from None


def _vocabulary(value: Any, path: Path) -> dict[str, int]:
    if not isinstance(value, dict) or not all(type(number) is int for number in value.values()):
        raise UserError(f"{path}: expected a vocabulary, tokens with their ids as integers. {_HOW_TO_GET}")
    return dict(value)


def _read_merges(path: Path) -> list[Merge]:
    content = read_bytes(path, JSON_BYTES, "merges", _HOW_TO_GET)
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected merges, found {json_problem(error)}. {_HOW_TO_GET}") from None
    return [
        _merge(path, number, line.removesuffix("\r"))
        for number, line in enumerate(lines, start=1)
        if line.strip("\r") and not line.startswith("#version")
    ]


def _merge(path: Path, number: int, value: Any) -> Merge:
    parts = value.split(" ") if isinstance(value, str) else value
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        what = "line" if path.name == _MERGES_FILE else "merge"
        raise UserError(f"{path}, {what} {number}: expected two tokens to merge, found {value!r:.60}. {_HOW_TO_GET}")
    return parts[0], parts[1]


def _limit(path: Path) -> int | None:
    if not path.is_file():
        return None
    config = read_json(path)
    limit = config.get("model_max_length", config.get("max_len")) if isinstance(config, dict) else None
    return int(limit) if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT else None
