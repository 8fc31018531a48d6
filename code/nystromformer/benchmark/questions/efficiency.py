"""What every attention costs over the length, alone and in a small encoder."""

from collections.abc import Sequence
from dataclasses import dataclass

from nystromformer.benchmark.flags import ATTENTIONS, MOST_REPEATS, REPEATS, Results, flag, names, numbers, threads
from nystromformer.config.ranges import MOST, MOST_LAYERS
from nystromformer.errors import UserError
from nystromformer.runs.call import this_call


@dataclass(frozen=True)
class Efficiency:
    """Every attention over the length.

    Raises:
        UserError: heads that do not divide the encoder's width.
    """

    attentions: list[str] = flag([], ATTENTIONS, name="attention")
    lengths: Sequence[int] = numbers(
        (512, 1024, 2048, 4096, 8192, 16384), "Sequence lengths in tokens, separated by commas."
    )
    batch: int = flag(1, "Sequences that are computed together.", 1, MOST)
    heads: int = flag(12, "Heads of the attention alone.", 1, MOST)
    head_dim: int = flag(64, "Width of each of these heads.", 1, MOST)
    repeats: int = flag(9, REPEATS, 1, MOST_REPEATS)
    threads: int = threads()
    parts: Sequence[str] = names(
        ("attention", "encoder"), "What to measure: attention, encoder or both, separated by commas."
    )
    encoder_lengths: Sequence[int] = numbers((1024, 2048, 3072, 4096), "Sequence lengths of the encoder.")
    encoder_batch: int = flag(8, "Rows of a step of the encoder.", 1, MOST)
    encoder_layers: int = flag(2, "Layers of the encoder.", 1, MOST_LAYERS)
    encoder_heads: int = flag(2, "Heads of the encoder.", 1, MOST)
    encoder_width: int = flag(64, "Width of the encoder, which its heads divide.", 1, MOST)
    budget: float = flag(1800.0, "Time limit in seconds; measurements that do not fit are left out and listed.", 0)
    peers: bool = flag(False, "Also measure the installed public implementations of each attention, and padded rows.")

    def __post_init__(self) -> None:
        if self.encoder_width % self.encoder_heads:
            raise UserError(
                f"--encoder_width: expected a multiple of --encoder_heads = {self.encoder_heads}, found "
                f"{self.encoder_width}"
            )


def efficiency(settings: Efficiency, results: Results) -> str:
    """Time and memory of every attention over the length, alone and in a small encoder, beside softmax."""
    from nystromformer.benchmark.efficiency.measure import measure_efficiency

    return measure_efficiency(settings, results.out, str(this_call()))
