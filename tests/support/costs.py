"""Made-up measurements of time and memory, and made-up weights to measure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nystromformer.benchmark.attention import OURS, SOFTMAX
from nystromformer.benchmark.timing import Timing
from nystromformer.model import PretrainingModel
from nystromformer.report.cost import WRITTEN_OUT, Cost, CostRow, CostSettings, Omitted
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.training.archive import FORMAT, write_checkpoint
from nystromformer.training.checkpoint import epoch_name

LENGTHS = (512, 1024, 2048)
MACHINE = {"date": "2026-01-02", "commit": "abc1234", "processor": "a processor, 2 cores", "threads": 2}


def made_up_cost(
    ours: Sequence[float] = (4, 8, 16),
    softmax: Sequence[float] = (2, 8, 32),
    written_out: Sequence[float] = (3, 12, 48),
    left_out: Sequence[Omitted] = (),
    **changes: Any,
) -> Cost:
    """Milliseconds of each method at the lengths; of memory, as many MiB, but of softmax as much as ours.

    Args:
        left_out: no row stands for these, from their lengths on.
        changes: of fields.
    """
    columns = {OURS: (ours, ours), SOFTMAX: (softmax, ours), WRITTEN_OUT: (written_out, written_out)}
    ends = {left.method: left.length for left in left_out}
    rows = [
        CostRow(length, method, Timing(times[i], times[i], times[i]), memory=float(memory[i]), repeats=3 + i)
        for i, length in enumerate(LENGTHS)
        for method, (times, memory) in columns.items()
        if length < ends.get(method, LENGTHS[-1] + 1)
    ]
    fields: dict[str, Any] = {
        "settings": CostSettings(lengths=LENGTHS),
        "weights": "0" * 64,
        "experiment": "nystrom-demo-conv",
        "trained_length": 256,
        "precision": "float32",
        "machine": MACHINE | {"device": "cpu", "torch": "2.0"},
        "seconds": 1.0,
        "rows": rows,
        "left_out": list(left_out),
    }
    return Cost(**fields | changes)


def write_weights(experiment: Experiment, seed: int, tokenizer: str = "") -> Path:
    """Random weights as the checkpoint of an experiment's first epoch; returns its path.

    Args:
        tokenizer: its sha256.
    """
    torch.manual_seed(seed)
    config = experiment.config
    model = PretrainingModel(config.model, config.pretraining_setting.objectives)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    path = experiment.checkpoints / f"{epoch_name(0)}.model"
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "format": FORMAT,
        "run_id": "x",
        "config": config.model_dump(mode="json", by_alias=True),
        "tokenizer": tokenizer,
    }
    facts |= {"step": config.pretraining_setting.batches_per_epoch, "epoch": 0}
    write_checkpoint(facts | {"model": model.state_dict()}, path)
    return path
