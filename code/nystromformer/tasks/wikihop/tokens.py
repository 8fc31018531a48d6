"""Instances' token ids in a cache on disk, which is made once for a file and a tokenizer and mapped into memory.

A cache is a folder of finished parts, `<hash>`, of which there is one, with the files

    tokens.npy      token ids of all texts, one after the other, int32; an instance's texts are its question, its
                    candidates and its supports
    offsets.npy     where in them each text begins, and the end, int64
    instances.npy   of each instance: number of its first text, of candidates, of supports, and of the answer, int64
    texts.json      the instances' ids, and their candidates

The hash is of everything that the content depends on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from nystromformer.files.parts import Part, Parts, open_parts
from nystromformer.files.writing import NewFile, sha256_of, write_json
from nystromformer.tasks.finetuning.encoded import literal
from nystromformer.tasks.wikihop.chunks import InstanceTokens
from nystromformer.tasks.wikihop.read import check_file, read_instances
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

_PART, _TEXTS = "tokens", "texts.json"
_ARRAYS = ("tokens.npy", "offsets.npy", "instances.npy")
_PIECE = 1024
"""Texts that are encoded together, which bounds the memory of the tokenizer's own objects."""
_NO_ANSWER = -1


class TokenCache:
    """The tokens of a file's instances.

    ids, candidates: of the instances, in the file's order, and the texts of each one's candidates. num_candidates,
    num_supports: of each, (I,). answers: numbers of the right candidates, (I,) int64, None where the file has none.
    fingerprint: SHA-256 (hexadecimal) of the tokens and answers.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        hashes = [part.files[name].sha256 for name in _ARRAYS]
        self.fingerprint = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
        texts = json.loads((folder / _TEXTS).read_bytes())
        self.ids: list[str] = texts["ids"]
        self.candidates: list[list[str]] = texts["candidates"]
        self._tokens, offsets, table = (np.load(folder / name, mmap_mode="r") for name in _ARRAYS)
        self._offsets = np.array(offsets)
        self._sizes = np.diff(self._offsets)
        self._first, self.num_candidates, self.num_supports, answers = np.array(table).T
        self.answers: NDArray[np.int64] | None = None if (answers == _NO_ANSWER).any() else answers

    def __len__(self) -> int:
        return len(self.ids)

    def lengths(self, number: int) -> tuple[int, list[int], list[int]]:
        """Numbers of tokens of an instance: of its question, candidates and supports."""
        first, middle, last = self._texts_of(number)
        sizes = self._sizes[first:last].tolist()
        return sizes[0], sizes[1 : middle - first], sizes[middle - first :]

    def tokens(self, number: int) -> InstanceTokens:
        """An instance's token ids."""
        first, middle, last = self._texts_of(number)
        bounds = self._offsets[first : last + 1]
        flat = np.asarray(self._tokens[bounds[0] : bounds[-1]], dtype=np.int32)
        texts = np.split(flat, bounds[1:-1] - bounds[0])
        return InstanceTokens(texts[0], texts[1 : middle - first], texts[middle - first :])

    def _texts_of(self, number: int) -> tuple[int, int, int]:
        """Numbers of an instance's first text, of its first support, and of the text after its last."""
        first = int(self._first[number])
        middle = first + 1 + int(self.num_candidates[number])
        return first, middle, middle + int(self.num_supports[number])


def open_tokens(source: Path, tokenizer: Tokenizer, cache: Path) -> TokenCache:
    """Open the tokens of a file such as train.json; they are made where the cache has none, or damaged ones.

    Several processes may call this at the same time: one of them makes the tokens.

    Args:
        tokenizer: special tokens that a text spells are taken for text.
        cache: the folder of all caches, made if missing.

    Raises:
        UserError: as `read_instances`.
    """
    check_file(source)
    facts = {
        "source": sha256_of(source),
        "tokenizer": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
    }
    folder = cache / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    with open_parts(folder, "run_wikihop.py", facts, in_use="wait", overwrite=True) as parts:
        # To compare the content takes as long as to hash the source, which is done every time, too.
        return TokenCache(folder, parts.find(_PART, verify=True) or _make(parts, source, tokenizer))


def _make(parts: Parts, source: Path, tokenizer: Tokenizer) -> Part:
    instances = read_instances(source)
    log.info("%s: tokenising %s", source, number_of(len(instances), "instance"))
    encoder = literal(tokenizer)
    encoder.no_truncation()
    encoder.no_padding()
    texts = [text for each in instances for text in (each.query, *each.candidates, *each.supports)]
    pieces: list[NDArray[np.int32]] = []
    for start in range(0, len(texts), _PIECE):
        encodings = encoder.encode_batch_fast(texts[start : start + _PIECE], add_special_tokens=False)
        pieces += [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
    counts = np.asarray([(len(instance.candidates), len(instance.supports)) for instance in instances])
    first = np.cumsum(counts.sum(1) + 1) - counts.sum(1) - 1
    answers = [_NO_ANSWER if instance.right is None else instance.right for instance in instances]
    arrays = (
        np.concatenate(pieces),
        np.cumsum([0, *map(len, pieces)]),
        np.column_stack([first, counts, answers]),
    )
    names = {"ids": [each.id for each in instances], "candidates": [each.candidates for each in instances]}
    stamps = {parts.folder / _TEXTS: write_json(parts.folder / _TEXTS, names)}
    for name, array in zip(_ARRAYS, arrays, strict=True):
        with NewFile(parts.folder / name) as file:
            np.save(file, array)
        stamps[file.path] = file.stamp
    return parts.add(_PART, stamps)
