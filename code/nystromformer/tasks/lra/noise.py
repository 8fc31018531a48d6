"""What training does to a batch of prepared examples: masked tokens to guess, pictures flipped and shifted.

Shapes: B rows, I examples, N tokens, K tokens to be guessed.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nystromformer.data.counter import random_uniform
from nystromformer.model.heads import IGNORED
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.lra.examples import PADDING

_WHICH_STREAM, _MASK_STREAM, _FLIP_STREAM = range(50, 53)
_MOST_SHIFTED = 4
"""Pixels that a photograph is shifted by, at most, each way."""


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
