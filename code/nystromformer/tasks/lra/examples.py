"""Prepared data as examples of a training run.

Shapes: B rows, N tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.lra.store import StoredSplit

PADDING = 0
"""The token of padding; the data's own count from 1."""


class StoredExamples:
    """A split, or some of its examples; implements Examples. Of a batch of pairs the first ones' rows come before all
    of the second ones', as `TwoTowerHead` wants them.

    Args:
        length: tokens of the longest row; a longer sequence loses its end.
        chosen: numbers of examples, ascending; None: all.
    """

    def __init__(self, name: str, split: StoredSplit, length: int, chosen: Ints | None = None) -> None:
        self.name = name
        self.length = length
        self._split = split
        self.numbers: Ints = np.arange(len(split)) if chosen is None else chosen
        """Of its examples in the split."""
        whole_ns = split.lengths[self.numbers]
        self._lengths_ns = np.minimum(whole_ns, length)
        self.lengths = self._lengths_ns.max(axis=1)
        self.rows = np.full(len(self.numbers), split.sequences, dtype=np.int64)
        self.tokens = self._lengths_ns.sum(axis=1)
        self.truncated = int((whole_ns > length).sum())
        self.labels: Ints = split.labels[self.numbers]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def num_sequences(self) -> int:
        """Of each example: 1, or 2 of a pair."""
        return self._split.sequences

    def sequences(self, which: int = 0) -> Iterator[NDArray[np.uint8]]:
        """Each example's sequence as the data have it, cut to `length`; of a pair the first or the second one."""
        for number in self.numbers.tolist():
            yield self._split.tokens(number, which)[: self.length]

    def take(self, places: Ints) -> StoredExamples:
        """Some of the examples, by their places among these."""
        return StoredExamples(self.name, self._split, self.length, self.numbers[places])

    @cached_property
    def fingerprint(self) -> str:
        stamps = {name: stamp.sha256 for name, stamp in sorted(self._split.facts.files.items())}
        digest = hashlib.sha256(f"{stamps} {self.length};".encode())
        digest.update(np.ascontiguousarray(self.numbers, dtype="<i8").data)
        return digest.hexdigest()

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        lengths_sB = self._lengths_ns[numbers].T.reshape(-1)
        width = pad_to or int(lengths_sB.max())
        tokens_BN = np.full((len(lengths_sB), width), PADDING, dtype=np.int64)
        examples = self.numbers[numbers].tolist()
        places = [(example, sequence) for sequence in range(self._split.sequences) for example in examples]
        for row, (example, sequence) in enumerate(places):
            length = int(lengths_sB[row])
            tokens_BN[row, :length] = self._split.tokens(example, sequence)[:length]
            tokens_BN[row, :length] += 1
        mask_BN = np.arange(width) < lengths_sB[:, None]
        return {
            "tokens_BN": torch.from_numpy(tokens_BN),
            "mask_BN": torch.from_numpy(mask_BN),
            "labels": torch.from_numpy(self.labels[numbers]),
        }
