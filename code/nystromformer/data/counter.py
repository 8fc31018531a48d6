"""Counter-based random numbers: a pure function of a key and a counter, with no state to keep or restore.

What a training step sees is computed from (seed, step, row), so it does not depend on how many workers or processes
prepare it, and a run resumes exactly.
"""

import math

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Bits) -> Bits:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection that scatters every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_bits(*key: int | NDArray[np.integer]) -> Bits:
    """64 random bits for each element of the broadcast key.

    >>> random_bits(seed, step, np.arange(4)).shape
    (4,)
    """
    # On 1-d arrays, because numpy warns where a scalar wraps around, which is meant here.
    state = np.zeros(1, dtype=np.uint64)
    for part in key:
        state = _mix(state + _GOLDEN + _mix(np.atleast_1d(np.asarray(part)).astype(np.uint64) * _GOLDEN + _GOLDEN))
    return state


def random_uniform(*key: int | NDArray[np.integer]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one for each element of the broadcast key."""
    return (random_bits(*key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute(indices: NDArray[np.int64], size: int, *key: int) -> NDArray[np.int64]:
    """Where a random permutation of 0 … size-1 sends the given indices, without holding the permutation.

    A Feistel network over pairs of numbers below √size, rounded up; the few indices that fall outside 0 … size-1 are
    sent on until they are inside (cycle walking).
    """
    side = np.uint64(math.isqrt(size - 1) + 1)
    turns = random_bits(*key, np.arange(_ROUNDS))
    values = indices.astype(np.uint64)
    outside = np.ones(values.shape, dtype=bool)
    while outside.any():
        left, right = values[outside] // side, values[outside] % side
        for turn in turns:
            left, right = right, (left + _mix(right + turn) % side) % side
        values[outside] = left * side + right
        outside = values >= np.uint64(size)
    return values.astype(np.int64)


_ROUNDS = 6
