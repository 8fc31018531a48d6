"""Time and memory of a trained encoder over the length of its input, beside softmax attention with the same weights.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.attention.base import Attention
from nystromformer.benchmark.attention import OURS, SOFTMAX
from nystromformer.benchmark.efficiency.measure import carry_on
from nystromformer.benchmark.peers import WrittenOutSoftmax
from nystromformer.benchmark.timing import Timing, peak_memory, repeats_at, time_side_by_side
from nystromformer.config import ModelConfig, SoftmaxConfig
from nystromformer.files.checked_json import read_checked
from nystromformer.files.writing import sha256_of
from nystromformer.interop.transfer import transfer_weights
from nystromformer.machine import machine_facts
from nystromformer.model import Encoder, PretrainingModel
from nystromformer.model.layers import Layer
from nystromformer.resources import free_memory
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedScoring
from nystromformer.training import Device
from nystromformer.training.archive import read_checkpoint

logger = logging.getLogger(__name__)

WRITTEN_OUT = "softmax, written out"
METHODS = (OURS, SOFTMAX, WRITTEN_OUT)

_MOST_OF_MEMORY = 0.8
"""The part of the free memory that a method may take: other programs go on."""


@dataclass(frozen=True)
class CostSettings:
    """What is measured, and what it may cost."""

    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    """Tokens, ascending."""
    seconds: float = 30
    """What would not fit into these is left out."""
    repeats: int = 9
    """At up to 2048 tokens, see `repeats_at`; fewer where there is no time for them."""


@dataclass(frozen=True)
class CostRow:
    """One method at one length."""

    length: int
    method: str
    time: Timing
    """Of one forward."""
    memory: float
    """MiB at the peak of one forward, beyond the weights and the input."""
    repeats: int


@dataclass(frozen=True)
class Omitted:
    """What was not measured."""

    length: int
    """From it on."""
    method: str
    reason: str


@dataclass(frozen=True)
class Cost:
    """A finished measurement."""

    settings: CostSettings
    weights: str
    """SHA-256 of the file that the weights come from."""
    experiment: str
    trained_length: int
    """Tokens of the rows that the encoder was trained on: its own positions, where they are learned."""
    precision: str
    machine: dict[str, Any]
    seconds: float
    """That the measurement took."""
    rows: list[CostRow]
    left_out: list[Omitted]
    positions: str = "learned"
    """As in config.json."""


class WrittenOutAttention(Attention):
    """Softmax attention by its formula, with the N x N matrix of each head in memory."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        assert mask is None, "rows without padding are measured"
        out: Tensor = WrittenOutSoftmax()(q, k, v)
        return out


def kept_or_measured(results: Path, opened: OpenedScoring, settings: CostSettings) -> Cost:
    """The measurement that an earlier run of the demo wrote, if it is of these weights; a new one otherwise.

    Args:
        results: the demo's results.json, which need not be there.
        opened: a trained experiment; the input's tokens come from its validation rows.
    """
    try:
        earlier = TypeAdapter(Cost).validate_python(read_checked(results)["cost"])
    except (ValueError, LookupError, TypeError):
        return measure_cost(opened, settings)  # none yet, one of another version, or an edited file
    if (earlier.weights, earlier.settings) != (sha256_of(opened.checkpoints[-1]), settings):
        return measure_cost(opened, settings)
    logger.info("time and memory by length: already measured")
    return earlier


def measure_cost(opened: OpenedScoring, settings: CostSettings) -> Cost:
    """Measure the forward of the experiment's encoder and of its two softmax twins, without gradients, on one row."""
    started = time.monotonic()
    experiment, device, weights = opened.experiment, opened.device, opened.checkpoints[-1]
    model = experiment.config.model
    longest = settings.lengths[-1]
    logger.info("time and memory by length, up to %d tokens: about %.0f s at the most", longest, settings.seconds)
    encoders = softmax_twins(experiment, weights, longest, device)
    tokens = np.resize(opened.dataset.validation.tokens, longest).astype(np.int64)
    tokens_BN = torch.from_numpy(tokens)[None].to(device.device)
    measured, left_out = _measure(encoders, tokens_BN, settings, device, model.num_head)
    return Cost(
        settings=settings,
        weights=sha256_of(weights),
        experiment=experiment.name,
        trained_length=model.max_seq_len,
        precision=device.precision,
        machine=machine_facts(),
        seconds=round(time.monotonic() - started, 1),
        rows=measured,
        left_out=left_out,
        positions=model.positions,
    )


def softmax_twins(experiment: Experiment, weights: Path, longest: int, device: Device) -> dict[str, Encoder]:
    """The trained encoder, and the same weights with softmax attention, once fused and once written out.

    Args:
        weights: a checkpoint of the experiment.
        longest: tokens that they take; learned positions are repeated (`interop/positions.py`).
    """
    content = read_checkpoint(weights)
    before = content["config"]["model"]
    softmax = {"attn_type": "softmax", "num_landmarks": None}
    encoders = {}
    for method, changes in zip(METHODS, ({}, softmax, softmax), strict=True):
        now = before | {"max_seq_len": longest} | changes
        model = PretrainingModel(ModelConfig.model_validate(now), experiment.config.pretraining_setting.objectives)
        model.load_state_dict(transfer_weights(model.state_dict(), now, content["model"], before).weights)
        encoders[method] = model.encoder.to(device.device).eval()
    for layer in encoders[WRITTEN_OUT].layers:
        assert isinstance(layer, Layer)
        core = layer.attention.core
        layer.attention.core = WrittenOutAttention(SoftmaxConfig(), core.num_heads, core.head_dim)
        layer.attention.core.skip = core.skip
    return encoders


@torch.inference_mode()
def _measure(
    encoders: Mapping[str, Encoder], tokens_BN: Tensor, settings: CostSettings, device: Device, heads: int
) -> tuple[list[CostRow], list[Omitted]]:
    """All methods of a length in turn, the lengths one after another."""
    end = time.monotonic() + settings.seconds
    rows: list[CostRow] = []
    left_out: dict[str, Omitted] = {}
    for length in settings.lengths:
        left, seconds = end - time.monotonic(), {}
        free = free_memory(device.device) / 2**30
        for method in (each for each in encoders if each not in left_out):
            before = {row.length: row.time.median / 1e3 for row in rows if row.method == method}
            expected = carry_on(before, length) if before else 0.0
            # The scores and the weights of each head, N x N, which softmax written out holds at once.
            matrices = 2 * 4 * heads * length**2 / 2**30 if method == WRITTEN_OUT else 0.0
            if matrices > _MOST_OF_MEMORY * free:
                reason = f"it takes {matrices:.1f} GiB of memory, and {free:.1f} GiB are free"
            elif 2 * expected > left:  # a forward for the memory and one for the time
                reason = f"it would take about {2 * expected:.1f} s, and {max(left, 0):.1f} s were left for it"
            else:
                left -= 2 * expected
                seconds[method] = expected
                continue
            left_out[method] = Omitted(length, method, reason)
        works = {method: partial(_forward, encoders[method], tokens_BN[:, :length], device) for method in seconds}
        # The forward whose memory is measured is also the one that warms up.
        memory = {method: peak_memory(work) for method, work in works.items()}
        further = int(left / sum(seconds.values())) if any(seconds.values()) else settings.repeats
        repeats = min(repeats_at(length, settings.repeats), 1 + further)
        times = time_side_by_side(works, repeats, warmup=0)
        rows += [CostRow(length, method, times[method], memory[method], repeats) for method in works]
        logger.info("  %d tokens: %d methods", length, len(works))
    return rows, list(left_out.values())


def _forward(encoder: Encoder, tokens_BN: Tensor, device: Device) -> object:
    with device.autocast():
        return encoder(tokens_BN)
