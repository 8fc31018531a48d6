"""How texts to predict are put into batches: near each other in length, or in batches of a few fixed shapes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from torch import nn

from nystromformer.attention import Attention
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.plan import fit_to_budget

_LENGTHS_APART = 32
"""So that the shapes of fast products come again, for a few per cent more tokens."""


@dataclass(frozen=True)
class PlannedBatch:
    """Some examples that are computed at once."""

    numbers: Ints
    length: int | None
    """Tokens of each row; None: as long as the longest."""
    size: int
    """Examples that are computed: those of `numbers`, and repetitions of them up to this many."""

    def filled(self) -> Ints:
        """The numbers of the examples that are computed; those beyond `numbers` are of no use."""
        return np.resize(self.numbers, self.size)


@dataclass(frozen=True)
class Lengths:
    """To how many tokens rows are padded.

    Args:
        pad_to: every row; None: by its length.
        most: that the model takes.
    """

    pad_to: int | None
    most: int

    def rounded(self, longest: int) -> int:
        """Of a row or a batch whose longest row has so many tokens."""
        return self.pad_to or min(-(-longest // _LENGTHS_APART) * _LENGTHS_APART, self.most)


def has_rows_apart(model: nn.Module) -> bool:
    """Whether a row's result does not depend on the others of its batch."""
    return all(module.holds.batch for module in model.modules() if isinstance(module, Attention))


def batches_of_near_lengths(
    examples: Examples, tokens_at_a_time: int, lengths: Lengths, are_rounded: bool
) -> list[PlannedBatch]:
    """As few tokens of padding as possible.

    Args:
        are_rounded: whether batches have few lengths, for fast products.
    """
    everything = np.arange(len(examples))
    parts = fit_to_budget(everything, examples.lengths, examples.rows, tokens_at_a_time, 1, lengths.pad_to)
    longest = [int(examples.lengths[part].max()) for part in parts]
    return [
        PlannedBatch(part, lengths.rounded(most) if are_rounded else lengths.pad_to, len(part))
        for part, most in zip(parts, longest, strict=True)
    ]


def batches_of_fixed_shapes(
    examples: Examples, tokens_at_a_time: int, lengths: Lengths, model: nn.Module
) -> list[PlannedBatch]:
    """The shape in which an example is computed follows from the example alone.

    The last bits of a product of float32 matrices depend on their shapes. An example of several rows is a batch of its
    own, and so is every example for an attention that mixes the rows of a batch.
    """
    are_apart = has_rows_apart(model)
    of_length: dict[int, list[int]] = defaultdict(list)
    planned: list[PlannedBatch] = []
    for number in np.argsort(examples.lengths, kind="stable").tolist():
        length = lengths.rounded(int(examples.lengths[number]))
        if are_apart and examples.rows[number] == 1:
            of_length[length].append(number)
        else:
            planned.append(PlannedBatch(np.asarray([number]), length, 1))
    for length, numbers in of_length.items():
        size = max(tokens_at_a_time // length, 1)
        parts = (np.asarray(numbers[start : start + size]) for start in range(0, len(numbers), size))
        planned += [PlannedBatch(part, length, size) for part in parts]
    return planned
