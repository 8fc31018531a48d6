"""Tokenizers with RoBERTa's or BERT's special tokens, in a folder that transformers loads too."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from nystromformer.errors import UserError, first_line
from nystromformer.files.writing import FileStamp, NewFile, write_json

TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE, _VOCAB_FILE, _MERGES_FILE = "tokenizer_config.json", "vocab.json", "merges.txt"
_BYTES = 256


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens: `<s>`, `<pad>`, `</s>`, `<unk>`, `<mask>`, or what stands in their place."""

    bos: int
    pad: int
    eos: int
    unk: int
    mask: int


SPECIAL_TOKENS = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
"""RoBERTa's, which a tokenizer that is trained here gets."""
_BERTS = {"bos": "[CLS]", "pad": "[PAD]", "eos": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}

MOST_TOKENS = 10**7
"""Of a tokenizer that is trained; room for all of them is made beforehand."""
LEAST_TOKENS = len(SPECIAL_TOKENS) + _BYTES
"""Of a tokenizer that is trained."""


def train_tokenizer(sentences: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer; special tokens get the ids 0 to 4 in RoBERTa's order.

    A space is put before every text, so that sentences encoded one by one decode to text with spaces between them.
    Texts too few for `vocab_size` tokens give a smaller tokenizer.
    """
    if vocab_size < LEAST_TOKENS:
        raise UserError(f"vocab_size: expected at least {LEAST_TOKENS} (special tokens and bytes), found {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=added_tokens(),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = row_form(tokenizer)
    return tokenizer


def added_tokens() -> list[AddedToken]:
    """RoBERTa's special tokens, in the order of their ids."""
    # "a <mask>" shall not leave a lone space token before the mask
    return [AddedToken(token, special=True, lstrip=token == "<mask>") for token in SPECIAL_TOKENS.values()]


def row_form(tokenizer: Tokenizer, sentence_types: bool = False) -> processors.PostProcessor:
    """`<s> A </s>` and `<s> A </s> B </s>`, the form of a dataset's rows, in the tokenizer's own special tokens.

    Args:
        sentence_types: tell transformers that B is of type 1.
    """
    names = special_names(tokenizer)
    bos, eos, second = names["bos"], names["eos"], ":1" if sentence_types else ""
    template = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} $B{second} {eos}{second}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (bos, eos)],
    )
    if not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        return template
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template])


def sha256_as_saved(tokenizer: Tokenizer | None) -> str:
    """The SHA-256 of the tokenizer.json that `save_tokenizer` writes; empty where there is no tokenizer."""
    return "" if tokenizer is None else hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> dict[str, FileStamp]:
    """Write a folder that `AutoTokenizer.from_pretrained` loads; returns the stamps by file name."""
    tokens = {f"{role}_token": token for role, token in special_names(tokenizer).items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokens,
        "cls_token": tokens["bos_token"],
        "sep_token": tokens["eos_token"],
        "clean_up_tokenization_spaces": False,
    }
    config_stamp = write_json(folder / _CONFIG_FILE, config)
    # Last: a folder that has this file is taken for complete.
    with NewFile(folder / TOKENIZER_FILE) as file:
        file.write(tokenizer.to_str(pretty=True).encode())
    return {TOKENIZER_FILE: file.stamp, _CONFIG_FILE: config_stamp}


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load a folder's `tokenizer.json`."""
    path = folder / TOKENIZER_FILE
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: expected a tokenizer as the tokenizers library saves it: {error}") from error


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens by their roles: bos, pad, eos, unk, mask; RoBERTa's or BERT's."""
    for family in (SPECIAL_TOKENS, _BERTS):
        if all(tokenizer.token_to_id(token) is not None for token in family.values()):
            return dict(family)
    missing = next(token for token in SPECIAL_TOKENS.values() if tokenizer.token_to_id(token) is None)
    raise UserError(
        f"the tokenizer has no {missing}: expected RoBERTa's {', '.join(SPECIAL_TOKENS.values())}, or BERT's "
        f"{', '.join(_BERTS.values())}"
    )


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Ids of the special tokens, as of `special_names`."""
    vocabulary = tokenizer.get_vocab()
    return SpecialTokens(**{role: vocabulary[token] for role, token in special_names(tokenizer).items()})


def find_tokenizer(name: str, beside: Path) -> Path:
    """The folder of a tokenizer: the given one, the one of that name in the folder `beside`, or a download."""
    for folder in (Path(name), beside / name):
        if folder.is_dir():
            return folder
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
