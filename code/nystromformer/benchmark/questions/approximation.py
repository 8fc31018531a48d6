"""How far attentions are from a checkpoint's softmax."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nystromformer.benchmark.flags import (
    ATTENTIONS,
    CHECKPOINT,
    MOST_REPEATS,
    REPEATS,
    Results,
    flag,
    names,
    numbers,
    threads,
)
from nystromformer.command_line.flags import DatasetFolder, DeviceName, ModelFolder, Overrides
from nystromformer.config.ranges import MOST
from nystromformer.runs.call import this_call


@dataclass(frozen=True)
class Approximation:
    """Attentions beside a checkpoint's softmax."""

    checkpoint: str = flag("last", CHECKPOINT)
    attentions: list[str] = flag([], ATTENTIONS, name="attention")
    parts: Sequence[str] = names(("errors", "loss"), "What to look at: errors, loss, separated by commas.")
    rows: int = flag(8, "Validation rows whose queries and keys are looked at.", 1, MOST)
    landmarks: Sequence[int] = numbers((8, 16, 32, 64, 128, 256), "Numbers of landmarks, separated by commas.")
    score_rows: int = flag(256, "Number of validation rows over which losses are averaged.", 1, MOST)
    repeats: int = flag(9, REPEATS, 1, MOST_REPEATS)
    threads: int = threads()


def approximation(
    settings: Approximation,
    results: Results,
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    device: DeviceName = "auto",
    overrides: Overrides = None,
) -> str:
    """How far attentions are from softmax on a checkpoint's queries and keys, and what that costs its loss."""
    from nystromformer.tasks.experiment.folder import open_experiment

    experiment = open_experiment(model, overrides or [])

    from nystromformer.benchmark.approximation.compare import measure_approximation
    from nystromformer.tasks.experiment.run import run_device
    from nystromformer.training import Group

    chosen = run_device(experiment, device, Group())
    return measure_approximation(experiment, dataset, chosen, settings, results.out, str(this_call()))
