"""Records of finished runs that nobody trained."""

from pathlib import Path
from typing import Any

from small import small_config

from nystromformer.runs.record import EpochMetrics, Origin, Run, Tested
from nystromformer.runs.settings import Settings

NYSTROM = {"name": "nystrom", "num_landmarks": 64, "conv_kernel_size": None}
FIELDS = set(Settings.__dataclass_fields__)


def a_run(folder: Path = Path(), values: tuple[float, ...] = (0.9,), **changes: Any) -> Run:
    """A run of SST-2 whose epochs reached these values of its main metric.

    Args:
        changes: fields of the record, of its settings or of what was tested; `tested` is written where one of the last
            is given.
    """
    given = {key: changes.pop(key) for key in FIELDS & changes.keys()}
    values *= given.get("epochs", 1) if len(values) == 1 else 1
    metric = changes.get("main_metric", "accuracy")
    epochs = changes.pop("validated", None) or [
        EpochMetrics(number, {"loss": 0.5, metric: value}) for number, value in enumerate(values)
    ]
    settings = Settings(**{"epochs": len(epochs), "length": 512} | given)
    config = small_config().model_dump(mode="json", by_alias=True)
    layers = changes.pop("attention", (NYSTROM,) * 4)
    config["model"] |= {"num_landmarks": None, "conv_kernel_size": None}
    config["model"] |= {"attn_type": list(layers), "num_layers": len(layers), "max_seq_len": 512} | changes.pop(
        "model", {}
    )
    tested = {key: changes.pop(f"test_{key}") for key in ("metrics", "rows", "warnings") if f"test_{key}" in changes}
    tested |= {name: changes.pop(key) for key, name in _OF_TESTED.items() if key in changes}
    facts: dict[str, Any] = {
        "kind": "glue",
        "choices": {"task": "SST-2"},
        "task": "glue/SST-2",
        "command": "python code/run_glue.py --task SST-2 --seed 0",
        "experiment": "whatever",
        "origin": Origin("cp-0002.model", 2, 1500, "8d6a49d1" * 8, "t" * 64),
        "config": config,
        "main_metric": metric,
        "data": "d" * 64,
        "rows": {"train": 67349, "validation": 872},
        "exact_share": {"train": 1.0, "validation": 0.99},
        "warnings": (),
        "version": "0.1.0",
        "device": "cpu",
        "processes": 1,
    } | changes
    run = Run(**facts, settings=settings, epochs=tuple(epochs), folder=folder)
    if not tested:
        return run
    about = {"epoch": run.best.epoch, "data": "", "shown": "", "files": ()} | tested
    return Run(**{**vars(run), "tested": Tested(**about)})


_OF_TESTED = {"tested_epoch": "epoch", "tested_data": "data", "files": "files"}
