"""Seeds of the random numbers that a step draws."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """A seed for torch's generators, below 2⁶⁴ and as good as random in its low 32 bits alone.

    A CPU's generator (mt19937) reads no others: of numbers that are packed side by side it would not see the upper
    ones, and masks would come again after a power of two of steps. So each number goes through splitmix64 (Steele, Lea
    and Flood 2014) in turn.

    Args:
        seed: of the run.
        step: the optimizer step, from 0.
        micro_batch: which of the step's, over all processes, from 0.
    """
    state = 0
    for number in (seed, step, micro_batch):
        state = _scattered((state + _GOLDEN + number) % _WORD)
    return state


def _scattered(x: int) -> int:
    """The finaliser of splitmix64: a bijection of 64 bits in which each bit of x decides on all."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % _WORD
    return x ^ (x >> 31)
