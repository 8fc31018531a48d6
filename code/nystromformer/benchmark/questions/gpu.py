"""The kernels and attentions on a GPU: right, fast, and in training."""

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from nystromformer.benchmark.flags import Results, flag, names
from nystromformer.command_line.runtime import this_command
from nystromformer.tables import show


@dataclass(frozen=True)
class Gpu:
    """Sections and their time."""

    sections: Sequence[str] = names(
        ("check", "speed", "training"), "What to measure: all of the default or some, separated by commas."
    )
    minutes: float = flag(8.0, "Total minutes; what does not fit is left out and listed.", 0.001)
    seed: int | None = flag(None, "Random seed of the inputs on which results are compared. Default: a new one.", 0)
    dry_run: bool = flag(False, "Try the command on a CPU, in tiny sizes: its figures mean nothing.")


def gpu(settings: Gpu, results: Results) -> str:
    """The kernels and attentions on a GPU: are they correct, how fast are they, and what do they gain in training.

    The exit status is 1 where a measurement failed, or the kernels' results differ too much from float64's.
    """
    from nystromformer.benchmark.gpu import measure_on_gpu

    text, went_well = measure_on_gpu(settings, results.out, this_command())
    if went_well:
        return text
    show(text)
    raise typer.Exit(1)
