"""A pretraining step of BERT-small beside transformers' NystromformerForMaskedLM: time and memory.

Shapes: B rows, N tokens, K masked positions, E width.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
from nystromformer.config import AttentionName, ModelConfig
from nystromformer.errors import UserError
from nystromformer.machine import machine_facts
from nystromformer.model import MaskedLMHead, PretrainingModel, count_parameters
from nystromformer.model.layers import at_positions
from nystromformer.training.compile import compile_units, missing_compiler
from nystromformer.training.device import Device, choose_device

logger = logging.getLogger(__name__)

OURS, COMPILED, PEER = "nystromformer", "nystromformer, compiled", "transformers"
SPARSE = "transformers, our head"
"""Its encoder under our head and loss: logits at the masked positions alone."""
SOFTMAX = "softmax"
PADDED = {OURS: f"{OURS}, padded rows", SOFTMAX: f"{SOFTMAX}, padded rows"}
"""The same models on rows that end in padding, with its mask."""
_GOAL = 1.08
"""Of the time of full rows, at most, that padded ones may take."""


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
    tokens: int
    """Of all rows, padding left out."""
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
        times = time_side_by_side({name: step.work for name, step in steps.items()}, settings.repeats)
        for name, step in steps.items():
            step.model.zero_grad(set_to_none=True)  # what a step makes anew is the step's
            memory = standing_memory(step.model) + peak_memory(step.work)
            rows.append(Row(length, count, step.tokens, name, times[name], memory))
        logger.info("%d x %d tokens measured", count, length)
    return rows


@dataclass(frozen=True)
class _Step:
    work: Work
    model: nn.Module
    tokens: int


def _steps(settings: PretrainBenchmark, length: int, rows: int, device: Device) -> dict[str, _Step]:
    torch.manual_seed(0)
    full, padded = (
        made_up_batch(settings.vocab_size, length, rows, device.device, padded=each) for each in (False, True)
    )
    tokens, padded_tokens = full["tokens_BN"].numel(), int(padded["mask_BN"].sum())
    steps: dict[str, _Step] = {}
    for name in (OURS, SOFTMAX):
        model = _ours(settings, length, device, "nystrom" if name == OURS else "softmax")
        steps[name] = _Step(masked_lm_step(model, full, device), model, tokens)
        steps[PADDED[name]] = _Step(masked_lm_step(model, padded, device), model, padded_tokens)
    if settings.compile:
        compiled = _ours(settings, length, device, "nystrom")
        compile_units(compiled.encoder.layers, device.device)
        steps[COMPILED] = _Step(masked_lm_step(compiled, full, device), compiled, tokens)
    peer = _transformers_model(settings, length).to(device.device)
    sparse = SparseHead(peer, settings.config(length)).to(device.device)
    steps[PEER] = _Step(_peer(peer, full, Device(device.device, None)), peer, tokens)
    steps[SPARSE] = _Step(_sparse(sparse, full, Device(device.device, None)), sparse, tokens)
    if device.autocast_dtype is not None:
        steps[f"{PEER}, same autocast"] = _Step(_peer(peer, full, device), peer, tokens)
    sizes = {name: count_parameters(step.model) for name, step in steps.items()}
    logger.info("parameters: %s", ", ".join(f"{name} {size:,}" for name, size in sizes.items()))
    return steps


def _ours(settings: PretrainBenchmark, length: int, device: Device, attention: AttentionName) -> PretrainingModel:
    return PretrainingModel(settings.config(length, attention), ["mlm"]).to(device.device)


class SparseHead(nn.Module):
    """transformers' encoder under our head, whose logits and loss are of the masked positions alone.

    Args:
        peer: a NystromformerForMaskedLM, whose encoder is shared; its head is left aside.
        config: ours, of the same sizes.
    """

    def __init__(self, peer: nn.Module, config: ModelConfig) -> None:
        super().__init__()
        self.encoder: Any = peer.nystromformer
        self.mlm = MaskedLMHead(config)

    def forward(self, tokens_BN: Tensor, positions_BK: Tensor, labels_BK: Tensor) -> Tensor:
        """As `MaskedLMHead.sums`, (3,)."""
        hidden_BKE = at_positions(self.encoder(tokens_BN)[0], positions_BK)
        return self.mlm.sums(hidden_BKE, self.encoder.embeddings.word_embeddings.weight, labels_BK)


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


def _sparse(model: SparseHead, batch: Mapping[str, Tensor], device: Device) -> Work:
    optimizer = adamw(model)

    def loss() -> Tensor:
        sums = model(batch["tokens_BN"], batch["positions_BK"], batch["labels_BK"])
        mean: Tensor = sums[0] / sums[2].detach()
        return mean

    return lambda: take_step(loss, model, optimizer, device)


def table(rows: Sequence[Row]) -> str:
    """Times, memory, and ratios to transformers in float32 at the same size; what they are made of, below."""
    lines = [f"{'tokens x rows':>13}  {'step':28} {'ms (quartiles)':>22} ratio {'tokens/s':>10} {'MiB':>8} ratio"]
    sizes = dict.fromkeys((row.length, row.rows) for row in rows)
    found = {size: {row.method: row for row in rows if (row.length, row.rows) == size} for size in sizes}
    for row in rows:
        other, time = found[row.length, row.rows][PEER], row.time
        shown = f"{time.median:.0f} ({time.low:.0f}-{time.high:.0f})"
        speed = 1e3 * row.tokens / time.median
        lines.append(
            f"{f'{row.length} x {row.rows}':>13}  {row.method:28} {shown:>22} {time.median / other.time.median:>5.2f} "
            f"{speed:>10,.0f} {row.memory:>8.0f} {row.memory / other.memory:>5.2f}"
        )
    lines.append("")
    for (length, count), methods in found.items():
        lines.append(f"{length} x {count}: {_parts(methods)}")
        lines += [f"{length} x {count}: {_padding(methods[name], methods[PADDED[name]])}" for name in PADDED]
    return "\n".join(lines)


def _parts(methods: Mapping[str, Row]) -> str:
    """What the speed beside transformers is the product of."""
    ours, sparse, peer = (methods[name].time.median for name in (OURS, SPARSE, PEER))
    return (
        f"{peer / ours:.2f} times as fast as {PEER}: {peer / sparse:.2f} by logits at the masked positions alone "
        f"({SPARSE}), {sparse / ours:.2f} by all else"
    )


def _padding(full: Row, padded: Row) -> str:
    ratio = padded.time.median / full.time.median
    filled, verdict = padded.tokens / full.tokens, "kept" if ratio <= _GOAL else "missed"
    return (
        f"{full.method}, rows {filled:.0%} full with their mask: {padded.time.median:.0f} ms, full rows "
        f"{full.time.median:.0f} ms, ratio {ratio:.2f} (goal: at most {_GOAL}, {verdict})"
    )


def write_results(settings: PretrainBenchmark, rows: Sequence[Row], folder: Path) -> None:
    """`pretrain.json` and `pretrain.txt`."""
    write_figures(folder, "pretrain", machine_facts(), asdict(settings), rows, table(rows))
