"""A pretraining step of BERT-small beside transformers' NystromformerForMaskedLM: time and memory.

Shapes: B rows, N tokens, K masked positions.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.benchmark.models import BertSmall, standing_memory
from nystromformer.benchmark.timing import Timing, Work, machine_facts, peak_memory, time_side_by_side, write_figures
from nystromformer.data.masking import IGNORED_LABEL, predictions_per_row
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.training.compile import compile_units, missing_compiler
from nystromformer.training.device import choose_device
from nystromformer.training.settings import Device

logger = logging.getLogger(__name__)

OURS, COMPILED, PEER = "nystromformer", "nystromformer, compiled", "transformers"
_MASK_PROB = 0.15


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
    batch = _batch(settings.vocab_size, length, rows, device.device)
    plain = Device(device.device, None)
    ours = {OURS: False, COMPILED: True} if settings.compile else {OURS: False}
    steps: dict[str, tuple[Work, nn.Module]] = {}
    for name, compiled in ours.items():
        model = PretrainingModel(settings.config(length), ["mlm"]).to(device.device)
        if compiled:
            compile_units(model.encoder.layers, device.device)
        steps[name] = _ours(model, batch, device), model
    peer = _transformers_model(settings, length).to(device.device)
    steps[PEER] = _peer(peer, batch, plain), peer
    if device.autocast_dtype is not None:
        steps[f"{PEER}, same autocast"] = _peer(peer, batch, device), peer
    sizes = {name: count_parameters(model) for name, (_, model) in steps.items()}
    logger.info("parameters: %s", ", ".join(f"{name} {size:,}" for name, size in sizes.items()))
    return steps


def _batch(vocab_size: int, length: int, rows: int, device: torch.device) -> dict[str, Tensor]:
    tokens_BN = torch.randint(5, vocab_size - 1, (rows, length))
    count = predictions_per_row(length, _MASK_PROB)
    positions_BK = torch.stack([torch.randperm(length)[:count].sort().values for _ in range(rows)])
    labels_BK = tokens_BN.gather(1, positions_BK)
    labels_BN = torch.full_like(tokens_BN, IGNORED_LABEL).scatter(1, positions_BK, labels_BK)
    batch = {"tokens_BN": tokens_BN, "positions_BK": positions_BK, "labels_BK": labels_BK, "labels_BN": labels_BN}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _transformers_model(settings: PretrainBenchmark, length: int) -> nn.Module:
    from transformers import NystromformerForMaskedLM

    model: nn.Module = NystromformerForMaskedLM(settings.transformers_config(length)).train()
    return model


def _ours(model: PretrainingModel, batch: Mapping[str, Tensor], device: Device) -> Work:
    optimizer = _optimizer(model)

    def loss() -> Tensor:
        out = model(batch["tokens_BN"], batch["positions_BK"], labels_BK=batch["labels_BK"])
        assert out.mlm_sums is not None, "labels were given"
        mean: Tensor = out.mlm_sums[0] / out.mlm_sums[2].detach()
        return mean

    return lambda: _step(loss, model, optimizer, device)


def _peer(model: nn.Module, batch: Mapping[str, Tensor], device: Device) -> Work:
    optimizer = _optimizer(model)

    def loss() -> Tensor:
        found: Tensor = model(batch["tokens_BN"], labels=batch["labels_BN"]).loss
        return found

    return lambda: _step(loss, model, optimizer, device)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)


def _step(loss: Any, model: nn.Module, optimizer: torch.optim.Optimizer, device: Device) -> None:
    optimizer.zero_grad(set_to_none=True)
    with device.autocast():
        value = loss()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


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
