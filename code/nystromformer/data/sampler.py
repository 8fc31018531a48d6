"""Which rows a step sees."""

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import permute

_ORDER_STREAM = 1


def rows_of_step(seed: int, step: int, batch_size: int, num_rows: int) -> NDArray[np.int64]:
    """Row numbers (batch_size,) of a step's global batch.

    Each pass over the data is a new permutation; a batch may span two passes. Every row is seen once a pass.
    """
    return rows_from(seed, step * batch_size, batch_size, num_rows)


def rows_from(seed: int, first: int, count: int, num_rows: int) -> NDArray[np.int64]:
    """The same of `count` rows in the order in which a run sees them, from the one at `first` on."""
    positions = first + np.arange(count)
    passes = positions // num_rows
    rows = np.empty(count, dtype=np.int64)
    for number in np.unique(passes):
        here = passes == number
        rows[here] = permute(positions[here] % num_rows, num_rows, seed, _ORDER_STREAM, int(number))
    return rows
