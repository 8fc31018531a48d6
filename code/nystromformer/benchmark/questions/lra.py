"""A training step on ListOps beside the same model with the authors' attention."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nystromformer.benchmark.flags import BATCHES, MOST_REPEATS, Results, flag, threads
from nystromformer.command_line.flag_groups import Without
from nystromformer.command_line.flags import Overrides
from nystromformer.files.paths import EXPERIMENTS


@dataclass(frozen=True)
class ListOps:
    """A recipe on prepared or drawn ListOps."""

    data: Path | None = flag(
        None, "Prepared ListOps, as experiments/lra/prepare.py writes it. Default: drawn for the measurement."
    )
    batches: int = flag(8, BATCHES, 1, MOST_REPEATS)
    repeats: int = flag(5, "Measured steps of each model.", 1, MOST_REPEATS)
    threads: int = threads()
    overrides: Overrides = None
    config: Path = EXPERIMENTS / "lra" / "listops" / "config.json"
    """The recipe; no flag."""


def lra(settings: Annotated[ListOps, Without("config")], results: Results) -> str:
    """A step of training on ListOps beside the same model with the authors' attention, and where its time goes."""
    from nystromformer.benchmark.lra import measure_lra

    return measure_lra(settings, results.out)
