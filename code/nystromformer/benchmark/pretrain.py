"""A pretraining step of BERT-small beside transformers' NystromformerForMaskedLM: time and memory.

Shapes: B rows, N tokens, K masked positions, E width.
"""

import logging
import re
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
    step_memory,
    take_step,
)
from nystromformer.benchmark.results import measure_and_write
from nystromformer.benchmark.timing import Timing, Work, time_side_by_side
from nystromformer.config import AttentionName, ModelConfig
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.model import MaskedLMHead, PretrainingModel, count_parameters
from nystromformer.model.layers import at_positions
from nystromformer.tables import Column, aligned
from nystromformer.tasks.experiment.room import check_room_to_train
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
_COLUMNS = (
    *(Column("tokens x rows", 13), Column("step", 28, is_text=True), Column("ms (quartiles)", 22, gap=1)),
    *(Column("ratio", 5, gap=1), Column("tokens/s", 10, gap=1), Column("MiB", 8, gap=1), Column("ratio", 5, gap=1)),
)


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
class PretrainRow:
    """One way to make a step, at one size."""

    length: int
    rows: int
    tokens: int
    """Of all rows, padding left out."""
    method: str
    time: Timing
    memory: float
    """MiB at the peak of a step, weights and optimizer included."""


def parse_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Tokens and rows of `--sizes`, such as 512x8,4096x1.

    Raises:
        UserError: another form, or a size that transformers does not take.
    """
    matches = [re.fullmatch(r"(\d{1,10})x(\d{1,10})", part.strip()) for part in text.split(",")]
    sizes = tuple((int(match[1]), int(match[2])) for match in matches if match)
    if len(sizes) < len(matches) or any(n <= 64 or n % 64 or not rows or max(n, rows) > MOST for n, rows in sizes):
        raise UserError(
            "--sizes: expected TOKENSxROWS separated by commas, such as 512x8,4096x1, with more tokens than the 64 "
            f"landmarks and a multiple of them (transformers accepts no others); found {text!r}"
        )
    return sizes


def run_pretrain_benchmark(settings: PretrainBenchmark) -> list[PretrainRow]:
    """Measure all ways to make a step, side by side at each size."""
    torch.set_num_threads(settings.threads)
    device = choose_device("auto", settings.mixed_precision)
    if settings.compile and (missing := missing_compiler(device.device)):
        raise UserError(f"--compile: {missing}")
    rows = []
    for length, count in settings.sizes:
        check_room_to_train(f"{length}x{count}", settings.config(length), device.device, count, length, count)
    for length, count in settings.sizes:
        steps = _steps(settings, length, count, device)
        times = time_side_by_side({name: step.work for name, step in steps.items()}, settings.repeats)
        for name, step in steps.items():
            memory = step_memory(step.model, step.work)
            rows.append(PretrainRow(length, count, step.tokens, name, times[name], memory))
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
        mean: Tensor = model(batch["tokens_BN"], labels=batch["labels_BN"]).loss
        return mean

    return lambda: take_step(loss, model, optimizer, device)


def _sparse(model: SparseHead, batch: Mapping[str, Tensor], device: Device) -> Work:
    optimizer = adamw(model)

    def loss() -> Tensor:
        sums = model(batch["tokens_BN"], batch["positions_BK"], batch["labels_BK"])
        mean: Tensor = sums[0] / sums[2].detach()
        return mean

    return lambda: take_step(loss, model, optimizer, device)


def table(rows: Sequence[PretrainRow]) -> str:
    """Times, memory, and ratios to transformers in float32 at the same size; what they are made of, below."""
    sizes = dict.fromkeys((row.length, row.rows) for row in rows)
    methods = {size: {row.method: row for row in rows if (row.length, row.rows) == size} for size in sizes}
    lines = aligned(_COLUMNS, (_cells(row, methods[row.length, row.rows][PEER]) for row in rows))
    lines.append("")
    for (length, count), alike in methods.items():
        lines.append(f"{length} x {count}: {_parts(alike)}")
        lines += [f"{length} x {count}: {_padding(alike[name], alike[PADDED[name]])}" for name in PADDED]
    return "\n".join(lines)


def _cells(row: PretrainRow, peer: PretrainRow) -> list[str]:
    return [
        f"{row.length} x {row.rows}",
        row.method,
        f"{row.time.median:.0f} ({row.time.low:.0f}-{row.time.high:.0f})",
        f"{row.time.median / peer.time.median:.2f}",
        f"{1e3 * row.tokens / row.time.median:,.0f}",
        f"{row.memory:.0f}",
        f"{row.memory / peer.memory:.2f}",
    ]


def _parts(methods: Mapping[str, PretrainRow]) -> str:
    """What the speed beside transformers is the product of."""
    ours, sparse, peer = (methods[name].time.median for name in (OURS, SPARSE, PEER))
    return (
        f"{peer / ours:.2f} times as fast as {PEER}: {peer / sparse:.2f} by logits at the masked positions alone "
        f"({SPARSE}), {sparse / ours:.2f} by all else"
    )


def _padding(full: PretrainRow, padded: PretrainRow) -> str:
    ratio = padded.time.median / full.time.median
    filled, verdict = padded.tokens / full.tokens, "kept" if ratio <= _GOAL else "missed"
    return (
        f"{full.method}, rows {filled:.0%} full with their mask: {padded.time.median:.0f} ms, full rows "
        f"{full.time.median:.0f} ms, ratio {ratio:.2f} (goal: at most {_GOAL}, {verdict})"
    )


def measure_pretraining(settings: PretrainBenchmark, folder: Path) -> str:
    """Measure, write `pretrain.json` and `pretrain.txt`, and return what to print."""
    return measure_and_write(folder, "pretrain", lambda: run_pretrain_benchmark(settings), table, asdict(settings))
