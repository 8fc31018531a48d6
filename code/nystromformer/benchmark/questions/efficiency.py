"""What every attention costs over the length."""

from collections.abc import Sequence
from dataclasses import dataclass

from nystromformer.benchmark.flags import ATTENTIONS, MOST_REPEATS, REPEATS, Results, flag, numbers, threads
from nystromformer.config.ranges import MOST
from nystromformer.runs.call import this_call


@dataclass(frozen=True)
class Efficiency:
    """Every attention over the length."""

    attentions: list[str] = flag([], ATTENTIONS, name="attention")
    lengths: Sequence[int] = numbers(
        (512, 1024, 2048, 4096, 8192, 16384), "Sequence lengths in tokens, separated by commas."
    )
    batch: int = flag(1, "Sequences that are computed together.", 1, MOST)
    heads: int = flag(12, "Heads of the attention.", 1, MOST)
    head_dim: int = flag(64, "Width of each head.", 1, MOST)
    repeats: int = flag(9, REPEATS, 1, MOST_REPEATS)
    threads: int = threads()
    budget: float = flag(1800.0, "Time limit in seconds; measurements that do not fit are left out and listed.", 0)
    peers: bool = flag(False, "Also measure the installed public implementations of each attention, and padded rows.")


def efficiency(settings: Efficiency, results: Results) -> str:
    """Time and memory of every attention over the length, beside softmax."""
    from nystromformer.benchmark.efficiency.measure import measure_efficiency

    return measure_efficiency(settings, results.out, str(this_call()))
