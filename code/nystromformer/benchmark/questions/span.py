"""How far trained models attend."""

from dataclasses import dataclass
from pathlib import Path

from nystromformer.benchmark.flags import CHECKPOINT, Results, count, flag
from nystromformer.command_line.flags import DatasetFolder, DeviceName
from nystromformer.command_line.runtime import this_command
from nystromformer.files.paths import experiment_folder


@dataclass(frozen=True)
class Span:
    """Pretrained models."""

    models: list[Path] = flag(
        [],
        "Folder of a pretrained experiment, looked at on --dataset; may be given several times.",
        name="model",
        parser=experiment_folder,
        metavar="DIRECTORY",
    )
    checkpoint: str = flag("last", CHECKPOINT)
    rows: int = count(1000, "Rows of validation data, drawn once and for all.")


def span(settings: Span, results: Results, dataset: DatasetFolder = None, device: DeviceName = "auto") -> str:
    """How far pretrained models attend: the mean distance to attended tokens."""
    from nystromformer.benchmark.span import measure_spans
    from nystromformer.training import choose_device

    chosen = choose_device(device, mixed_precision=False)
    return measure_spans(settings, dataset, chosen, results.out, this_command())
