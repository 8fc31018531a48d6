"""RoBERTa's tokenizer or BERT's, or another of their kinds, from a folder or the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nystromformer.data.tokenizer import TOKENIZER_FILE, added_tokens, row_form, special_tokens
from nystromformer.errors import UserError, first_line

_VOCAB_FILE, _MERGES_FILE = "vocab.json", "merges.txt"


def find_tokenizer(name: str, beside: Path) -> Path:
    """The folder of a tokenizer: the given one, the one of that name in the folder `beside`, or a download."""
    for folder in (Path(name), beside / name):
        if folder.is_dir():
            return folder
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"--tokenizer {name}: expected a folder with a tokenizer's files, found none")
    download = importlib.import_module("huggingface_hub").snapshot_download
    try:
        files = [TOKENIZER_FILE, _VOCAB_FILE, _MERGES_FILE]
        return Path(download(name, allow_patterns=files))
    except Exception as error:  # whatever the network's layers raise
        raise UserError(
            f"--tokenizer {name}: no such folder here or in {beside}, and it cannot be downloaded from the Hugging "
            f"Face hub: {first_line(error)}. Give a folder with RoBERTa's {_VOCAB_FILE} and {_MERGES_FILE}, or train"
        ) from error


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a tokenizer: `tokenizer.json`, byte-level BPE as RoBERTa's or WordPiece as BERT's; or RoBERTa's vocab.json
    and merges.txt.

    A byte-level one is made to put a space before every text, so that sentences encoded one by one are what their text
    is as a whole; of WordPiece, which splits at spaces, they are so anyhow.
    """
    pair = [folder / _VOCAB_FILE, folder / _MERGES_FILE]
    is_json = (folder / TOKENIZER_FILE).is_file()
    if not is_json and not all(path.is_file() for path in pair):
        raise UserError(f"{folder}: expected a tokenizer: {_VOCAB_FILE} and {_MERGES_FILE}, or {TOKENIZER_FILE}")
    try:
        tokenizer = _read_json(folder / TOKENIZER_FILE) if is_json else _read_vocabulary(*map(str, pair))
        special_tokens(tokenizer)
        if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
            raise UserError("expected ids 0, 1, … without a gap")
    except Exception as error:  # the library raises nothing narrower
        files = TOKENIZER_FILE if is_json else f"{_VOCAB_FILE} and {_MERGES_FILE}"
        raise UserError(
            f"{folder}: the tokenizer's {files} cannot be used: {error}. Get the tokenizer's files again, all from the "
            "same source"
        ) from error
    tokenizer.post_processor = row_form(tokenizer)
    return tokenizer


def _read_vocabulary(vocabulary: str, merges: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE.from_file(vocabulary, merges))
    # ids that the vocabulary has are kept; a token that it lacks would get one that no checkpoint knows
    special_tokens(tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(added_tokens())
    return tokenizer


def _read_json(path: Path) -> Tokenizer:
    # what the library has made of the file, whose types are right
    state = json.loads(Tokenizer.from_file(str(path)).to_str())
    kind = state["model"]["type"], (state["pre_tokenizer"] or {}).get("type")
    if kind == ("BPE", "ByteLevel"):
        state["model"]["dropout"] = None  # which tokenises a text differently each time
        state["pre_tokenizer"]["add_prefix_space"] = True
    elif kind != ("WordPiece", "BertPreTokenizer"):
        raise UserError(
            f"expected byte-level BPE as RoBERTa's, or WordPiece as BERT's, found {kind[0]} with the pre-tokenizer "
            f"{kind[1] or 'none'}"
        )
    state["truncation"] = state["padding"] = None
    return Tokenizer.from_str(json.dumps(state))
