"""A pretraining step of BERT-small beside transformers' NystromformerForMaskedLM: time and memory.

Shapes: B rows, N tokens.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nystromformer.benchmark.models import (
    BertSmall,
    adamw,
    made_up_batch,
    masked_lm_step,
    standing_memory,
    take_step,
)
from nystromformer.benchmark.timing import Timing, Work, peak_memory, time_side_by_side, write_figures
from nystromformer.errors import UserError
from nystromformer.machine import machine_facts
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.training.compile import compile_units, missing_compiler
from nystromformer.training.device import choose_device
from nystromformer.training.settings import Device

logger = logging.getLogger(__name__)

OURS, COMPILED, PEER = "nystromformer", "nystromformer, compiled", "transformers"


@dataclass(frozen=True)
class PretrainBenchmark(BertSmall):
    """What is measured: sizes of a batch, and of the model."""

    sizes: tuple[tuple[int, int], ...] = ((512, 8), (4096, 1))
    """Tokens and rows of each batch."""
    mixed_precision: bool | str = False
    """Of ours; the peer's steps are float32 always, and under the same autocast too where it is not false."""
    compile: bool = False
    """Whether to measure compiled layers as well."""
    repeats: int = 7
    threads: int = 2


@dataclass(frozen=True)
class Row:
    """One way to make a step, at one size."""

    length: int
    rows: int
    method: str
    time: Timing
    memory: float
    """MiB at the peak of a step, weights and optimizer included."""


def run_pretrain_benchmark(settings: PretrainBenchmark) -> list[Row]:
    """Measure all ways to make a step, side by side at each size."""
    torch.set_num_threads(settings.threads)
    device = choose_device("auto", settings.mixed_precision)
    if settings.compile and (missing := missing_compiler(device.device)):
        raise UserError(f"--compile: {missing}")
    rows = []
    for length, count in settings.sizes:
        steps = _steps(settings, length, count, device)
        times = time_side_by_side({name: step for name, (step, _) in steps.items()}, settings.repeats)
        for name, (step, model) in steps.items():
            model.zero_grad(set_to_none=True)  # what a step makes anew is the step's
            rows.append(Row(length, count, name, times[name], standing_memory(model) + peak_memory(step)))
        logger.info("%d x %d tokens measured", count, length)
    return rows


def _steps(settings: PretrainBenchmark, length: int, rows: int, device: Device) -> dict[str, tuple[Work, nn.Module]]:
    torch.manual_seed(0)
    batch = made_up_batch(settings.vocab_size, length, rows, device.device)
    plain = Device(device.device, None)
    ours = {OURS: False, COMPILED: True} if settings.compile else {OURS: False}
    steps: dict[str, tuple[Work, nn.Module]] = {}
    for name, compiled in ours.items():
        model = PretrainingModel(settings.config(length), ["mlm"]).to(device.device)
        if compiled:
            compile_units(model.encoder.layers, device.device)
        steps[name] = masked_lm_step(model, batch, device), model
    peer = _transformers_model(settings, length).to(device.device)
    steps[PEER] = _peer(peer, batch, plain), peer
    if device.autocast_dtype is not None:
        steps[f"{PEER}, same autocast"] = _peer(peer, batch, device), peer
    sizes = {name: count_parameters(model) for name, (_, model) in steps.items()}
    logger.info("parameters: %s", ", ".join(f"{name} {size:,}" for name, size in sizes.items()))
    return steps


def _transformers_model(settings: PretrainBenchmark, length: int) -> nn.Module:
    from transformers import NystromformerForMaskedLM

    model: nn.Module = NystromformerForMaskedLM(settings.transformers_config(length)).train()
    return model


def _peer(model: nn.Module, batch: Mapping[str, Tensor], device: Device) -> Work:
    optimizer = adamw(model)

    def loss() -> Tensor:
        found: Tensor = model(batch["tokens_BN"], labels=batch["labels_BN"]).loss
        return found

    return lambda: take_step(loss, model, optimizer, device)


def table(rows: Sequence[Row]) -> str:
    """Times, memory, and ratios to transformers in float32 at the same size."""
    lines = [f"{'tokens x rows':>13}  {'step':28} {'ms (quartiles)':>22} ratio {'tokens/s':>10} {'MiB':>8} ratio"]
    base = {(row.length, row.rows): row for row in rows if row.method == PEER}
    for row in rows:
        other, time = base[row.length, row.rows], row.time
        shown = f"{time.median:.0f} ({time.low:.0f}-{time.high:.0f})"
        speed = 1e3 * row.length * row.rows / time.median
        lines.append(
            f"{f'{row.length} x {row.rows}':>13}  {row.method:28} {shown:>22} {time.median / other.time.median:>5.2f} "
            f"{speed:>10,.0f} {row.memory:>8.0f} {row.memory / other.memory:>5.2f}"
        )
    return "\n".join(lines)


def write_results(settings: PretrainBenchmark, rows: Sequence[Row], folder: Path) -> None:
    """`pretrain.json` and `pretrain.txt`."""
    write_figures(folder, "pretrain", machine_facts(), asdict(settings), rows, table(rows))
