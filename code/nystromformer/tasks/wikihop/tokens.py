"""Instances' token ids in a cache on disk, which is made once for a file and a tokenizer and mapped into memory.

A cache is a folder of finished parts, `<hash>`, of which there is one, with the files

    tokens.bin      token ids of all texts, one after the other, int32; an instance's texts are its question, its
                    candidates and its supports
    offsets.bin     where in them each text begins, and the end, int64
    instances.bin   of each instance: number of its first text, of candidates, of supports, and of the answer, int64
    ids.json, candidates.json

all little-endian. The hash is of everything that the content depends on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from nystromformer.files.parts import Part, Parts, open_parts
from nystromformer.files.writing import NewFile, sha256_of, write_json
from nystromformer.tasks.finetuning.encoded import literal
from nystromformer.tasks.wikihop.chunks import InstanceTokens
from nystromformer.tasks.wikihop.read import Instance, check_file, read_instances
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

_PART = "tokens"
_IDS, _CANDIDATES = "ids.json", "candidates.json"
_TOKENS, _OFFSETS, _INSTANCES = "tokens.bin", "offsets.bin", "instances.bin"
_TOKEN, _NUMBER = np.dtype("<i4"), np.dtype("<i8")
_PIECE = 1024
"""Texts that are encoded together, which bounds the memory of the tokenizer's own objects."""
_NO_ANSWER = -1


class TokenCache:
    """The tokens of a file's instances.

    ids: of the instances, in the file's order. num_candidates, num_supports: of each, (I,). answers: numbers of the
    right candidates, (I,) int64, None where the file has none. left_out: ids of the unanswerable instances that were
    skipped. fingerprint: SHA-256 (hexadecimal) of the tokens and answers.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        self.left_out: list[str] = part.figures["left_out"]
        hashes = [part.files[name].sha256 for name in (_TOKENS, _OFFSETS, _INSTANCES)]
        self.fingerprint = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
        self.ids: list[str] = json.loads((folder / _IDS).read_bytes())
        self._candidates_path = folder / _CANDIDATES
        self._tokens = np.memmap(folder / _TOKENS, _TOKEN, "r")
        self._offsets: NDArray[np.int64] = np.fromfile(folder / _OFFSETS, _NUMBER).astype(np.int64)
        self._sizes = np.diff(self._offsets)
        table = np.fromfile(folder / _INSTANCES, _NUMBER).astype(np.int64).reshape(-1, 4)
        self._first, self.num_candidates, self.num_supports, answers = table.T
        self.answers: NDArray[np.int64] | None = None if (answers == _NO_ANSWER).any() else answers

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def candidates(self) -> list[list[str]]:
        """The texts of each instance's candidates."""
        texts: list[list[str]] = json.loads(self._candidates_path.read_bytes())
        return texts

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


def open_tokens(source: Path, tokenizer: Tokenizer, cache: Path, skip_unanswerable: bool = False) -> TokenCache:
    """Open the tokens of a file such as train.json; they are made where the cache has none, or damaged ones.

    Several processes may call this at the same time: one of them makes the tokens.

    Args:
        tokenizer: special tokens that a text spells are taken for text.
        cache: the folder of all caches, made if missing.
        skip_unanswerable: as for `read_instances`.

    Raises:
        UserError: as `read_instances`.
    """
    check_file(source)
    facts = {
        "source": sha256_of(source),
        "tokenizer": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        "skip_unanswerable": skip_unanswerable,
    }
    folder = cache / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    with open_parts(folder, "run_wikihop.py", facts, in_use="wait", overwrite=True) as parts:
        # To compare the content takes as long as to hash the source, which is done every time, too.
        part = parts.find(_PART, verify=True)
        if part is None:
            part = _make(parts, source, tokenizer, skip_unanswerable)
        tokens = TokenCache(folder, part)
    if tokens.left_out:
        left_out = number_of(len(tokens.left_out), "instance")
        log.warning("%s: left out %s whose answer is not a candidate, %s first", source, left_out, tokens.left_out[0])
    return tokens


def _make(parts: Parts, source: Path, tokenizer: Tokenizer, skip_unanswerable: bool) -> Part:
    instances, left_out = read_instances(source, skip_unanswerable)
    log.info("%s: tokenising %s", source, number_of(len(instances), "instance"))
    lengths: list[int] = []
    with NewFile(parts.folder / _TOKENS) as file:
        for tokens, sizes in _encoded(instances, tokenizer):
            file.write(tokens)
            lengths += sizes
    counts = np.asarray([(len(instance.candidates), len(instance.supports)) for instance in instances])
    first = np.cumsum(counts.sum(1) + 1) - counts.sum(1) - 1
    answers = [_NO_ANSWER if instance.answer is None else instance.answer for instance in instances]
    stamps = {file.path: file.stamp}
    for name, values in (
        (_OFFSETS, np.cumsum([0, *lengths])),
        (_INSTANCES, np.column_stack([first, counts, answers])),
    ):
        with NewFile(parts.folder / name) as file:
            file.write(values.astype(_NUMBER).tobytes())
        stamps[file.path] = file.stamp
    for name, texts in (
        (_IDS, [instance.id for instance in instances]),
        (_CANDIDATES, [instance.candidates for instance in instances]),
    ):
        stamps[parts.folder / name] = write_json(parts.folder / name, texts)
    return parts.add(_PART, stamps, {"left_out": left_out})


def _encoded(instances: Iterable[Instance], tokenizer: Tokenizer) -> Iterator[tuple[bytes, list[int]]]:
    """Token ids of consecutive texts, and the number of each text's."""
    encoder = literal(tokenizer)
    encoder.no_truncation()
    encoder.no_padding()
    texts = [text for each in instances for text in (each.query, *each.candidates, *each.supports)]
    for start in range(0, len(texts), _PIECE):
        encodings = encoder.encode_batch_fast(texts[start : start + _PIECE], add_special_tokens=False)
        ids = [np.asarray(encoding.ids, dtype=_TOKEN) for encoding in encodings]
        yield np.concatenate(ids).tobytes(), list(map(len, ids))
