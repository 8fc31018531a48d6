"""What every attention costs over the length."""

from collections.abc import Sequence
from dataclasses import dataclass

from nystromformer.benchmark.flags import ATTENTIONS, REPEATS, Results, count, flag, numbers, threads
from nystromformer.command_line.runtime import this_command


@dataclass(frozen=True)
class Efficiency:
    """Every attention over the length."""

    attentions: list[str] = flag([], ATTENTIONS, name="attention")
    lengths: Sequence[int] = numbers(
        (512, 1024, 2048, 4096, 8192, 16384), "Sequence lengths in tokens, separated by commas."
    )
    batch: int = count(1, "Sequences that are computed together.")
    heads: int = count(12, "Heads of the attention.")
    head_dim: int = count(64, "Width of each head.")
    repeats: int = count(9, REPEATS)
    threads: int = threads()
    budget: float = flag(
        1800.0, "Time limit in seconds; what does not fit is left out and listed, the reference (SDPA) last.", 0
    )
    peers: bool = flag(False, "Also measure the installed public implementations of each attention, and padded rows.")


def efficiency(settings: Efficiency, results: Results) -> str:
    """Time and memory of every attention over the length, beside softmax."""
    from nystromformer.benchmark.efficiency import measure_efficiency

    return measure_efficiency(settings, results.out, this_command())
