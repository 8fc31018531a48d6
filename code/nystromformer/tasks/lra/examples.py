"""Prepared data as examples of a training run, and what training does to a batch of them: masked tokens to guess,
pictures flipped and shifted.

Shapes: B rows, I examples, N tokens or pixels, K tokens to be guessed; n examples of a split, s sequences of each.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nystromformer.data.counter import random_uniform
from nystromformer.model.heads import IGNORED
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.lra.store import StoredSplit

PADDING = 0
"""The token of padding; the data's own count from 1."""
_WHICH_STREAM, _MASK_STREAM, _FLIP_STREAM = range(50, 53)
_MOST_SHIFTED = 4
"""Pixels that a photograph is shifted by, at most, each way."""


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


class PathExamples(StoredExamples):
    """Pictures, of which each has a row of pixels and a row of their labels in the data; arguments as its base's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        both_n2N = self._split.stacked()[self.numbers]
        self.pixels_nN = both_n2N[:, 0]
        self.labels = cast(Any, both_n2N[:, 1])
        self.rows = np.ones(len(self), dtype=np.int64)
        self.tokens = self.lengths

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        pixels_BN = self.pixels_nN[numbers].astype(np.int64) + 1
        padding = (pad_to or pixels_BN.shape[1]) - pixels_BN.shape[1]
        tokens_BN = np.pad(pixels_BN, ((0, 0), (0, padding)), constant_values=PADDING)
        return {
            "tokens_BN": torch.from_numpy(tokens_BN),
            "mask_BN": torch.from_numpy(tokens_BN != PADDING),
            "labels": torch.from_numpy(self.labels[numbers].astype(np.int64)),
        }


def mask_tokens(
    batch: Mapping[str, Tensor], numbers: Ints, rate: float, share: float, mask_token: int, seed: int, step: int
) -> dict[str, Tensor]:
    """A batch in which some tokens of some examples are hidden, with "hidden" (I,), bool, "positions_BK", where tokens
    were replaced, at least one in each row, and "guessed_BK", which they were, `IGNORED` beyond a row's last.

    Args:
        numbers: of the examples; with seed and step they decide what is hidden.
        rate: of a hidden example's valid tokens that are replaced, each by `mask_token`.
        share: of the examples that are hidden; the others stay as they are.
    """
    rows = len(batch["tokens_BN"]) // len(numbers)
    hidden_I = random_uniform(seed, _WHICH_STREAM, step, numbers) < share
    tokens_BN, valid_BN = batch["tokens_BN"].numpy(), batch["mask_BN"].numpy()
    examples_B, towers_B = np.tile(numbers, rows), np.repeat(np.arange(rows), len(numbers))
    places_N = np.arange(tokens_BN.shape[1])
    uniform_BN = random_uniform(seed, _MASK_STREAM, step, towers_B[:, None], examples_B[:, None], places_N)
    uniform_BN = np.where(valid_BN, uniform_BN, 2.0)
    chosen_BN = (uniform_BN < rate) | (uniform_BN == uniform_BN.min(1, keepdims=True))
    chosen_BN &= valid_BN & np.tile(hidden_I, rows)[:, None]
    counts_B = chosen_BN.sum(1)
    # The chosen places of a row come first, in their order.
    positions_BK = np.argsort(~chosen_BN, axis=1, kind="stable")[:, : counts_B.max()]
    counted_BK = np.arange(positions_BK.shape[1]) < counts_B[:, None]
    guessed_BK = np.where(counted_BK, np.take_along_axis(tokens_BN, positions_BK, 1), IGNORED)
    return {
        **batch,
        "tokens_BN": torch.from_numpy(np.where(chosen_BN, mask_token, tokens_BN)),
        "positions_BK": torch.from_numpy(positions_BK),
        "guessed_BK": torch.from_numpy(guessed_BK),
        "hidden": torch.from_numpy(hidden_I),
    }


def move_pictures(batch: Mapping[str, Tensor], numbers: Ints, task: str, seed: int, step: int) -> dict[str, Tensor]:
    """A batch of square pictures of one size, each moved at random as its class allows: photographs left to right, and
    by up to 4 pixels before black; paths to any of the eight symmetries of the square. Padding stays where it is.
    """
    tokens_BN = batch["tokens_BN"].numpy().copy()
    (pixels,) = np.unique(batch["mask_BN"].numpy().sum(1)).tolist()
    side = math.isqrt(pixels)
    draws_I4 = random_uniform(seed, _FLIP_STREAM, step, numbers[:, None], np.arange(4))
    for row_N, draws in zip(tokens_BN, draws_I4, strict=True):
        row_N[:pixels] = _move(row_N[:pixels].reshape(side, side), draws, task == "pathfinder").reshape(-1)
    return {**batch, "tokens_BN": torch.from_numpy(tokens_BN)}


def _move(picture: NDArray[np.int64], draws: NDArray[np.float64], any_side_up: bool) -> NDArray[np.int64]:
    flipped = picture[:, ::-1] if draws[0] < 0.5 else picture
    if any_side_up:
        return np.rot90(flipped, int(4 * draws[1]))
    black = PADDING + 1
    down, right = (int((2 * _MOST_SHIFTED + 1) * draw) for draw in draws[1:3])
    padded = np.pad(flipped, _MOST_SHIFTED, constant_values=black)
    return padded[down : down + len(picture), right : right + len(picture)]
