"""How far attentions are from softmax."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nystromformer.benchmark.flags import ATTENTIONS, CHECKPOINT, REPEATS, Results, count, flag, names, threads
from nystromformer.command_line.flags import DatasetFolder, DeviceName, ModelFolder, Overrides
from nystromformer.command_line.runtime import this_command


@dataclass(frozen=True)
class Approximation:
    """Attentions beside softmax, of a checkpoint or of saved tensors."""

    tensors: list[Path] = flag(
        [],
        "Instead of a checkpoint: a safetensors file with q, k and v of (rows, heads, tokens, head dim), and mask of "
        "(rows, tokens) where some are masked; or several such sets, as NAME.q. May be given several times.",
    )
    checkpoint: str = flag("last", CHECKPOINT)
    attentions: list[str] = flag([], ATTENTIONS, name="attention")
    parts: Sequence[str] = names(("errors", "loss"), "What to look at: errors, loss, separated by commas.")
    rows: int = count(8, "Validation rows whose queries and keys are looked at.")
    score_rows: int = count(256, "Number of validation rows over which losses are averaged.")
    repeats: int = count(9, REPEATS)
    threads: int = threads()


def approximation(
    settings: Approximation,
    results: Results,
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    device: DeviceName = "auto",
    overrides: Overrides = None,
) -> str:
    """How far attentions are from softmax on a checkpoint's or a file's queries and keys, and what that costs the
    checkpoint's loss.
    """
    if settings.tensors:
        from nystromformer.benchmark.approximation import measure_tensors

        return measure_tensors(settings, device, results.out, this_command())

    from nystromformer.tasks.experiment.folder import open_experiment

    experiment = open_experiment(model, overrides or [])

    from nystromformer.benchmark.approximation import measure_checkpoint
    from nystromformer.tasks.experiment.run import run_device
    from nystromformer.training import Group

    chosen = run_device(experiment, device, Group())
    return measure_checkpoint(experiment, dataset, chosen, settings, results.out, this_command())
