"""Time and memory of a trained encoder over the length of its input, beside softmax attention with the same weights.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.attention.base import Attention
from nystromformer.benchmark.attention import OURS, SOFTMAX
from nystromformer.benchmark.peers import WrittenOutSoftmax
from nystromformer.benchmark.timing import Timing, Work, peak_memory, summarise, time_side_by_side
from nystromformer.checked_json import read_checked
from nystromformer.config import ModelConfig, SoftmaxConfig
from nystromformer.files import sha256_of
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

_FEWEST_REPEATS = 3
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
    """At up to 1024 tokens, in inverse proportion to the length at more, but three where there is time for them."""


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
    """As in config.json; there were no others once."""


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
    weights = opened.checkpoints[-1]
    earlier = _read(results)
    if earlier is not None and (earlier.weights, earlier.settings) == (sha256_of(weights), settings):
        logger.info("time and memory by length: measured already")
        return earlier
    return measure_cost(opened, settings)


def _read(results: Path) -> Cost | None:
    try:
        data = read_checked(results)
        return TypeAdapter(Cost).validate_python(data.get("cost"))
    except (ValueError, AttributeError):  # of pydantic's and JSON's kinds
        return None  # none yet, one of another version, or an edited file


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
        expected = {m: _expected_seconds(rows, m, length) for m in encoders if m not in left_out}
        needed = {WRITTEN_OUT: _matrices(heads, length)}
        reasons = _too_much(expected, end - time.monotonic(), needed, free_memory(device.device))
        left_out |= {method: Omitted(length, method, reason) for method, reason in reasons.items()}
        works = {m: _forward(encoders[m], tokens_BN[:, :length], device) for m in expected if m not in reasons}
        rows += _side_by_side(works, settings, length, end)
        logger.info("  %d tokens: %d methods", length, len(works))
    return rows, list(left_out.values())


def _side_by_side(works: Mapping[str, Work], settings: CostSettings, length: int, end: float) -> list[CostRow]:
    begin = time.monotonic()
    # Of the time that is left its share: most belongs to the lengths that follow.
    end = begin + (end - begin) * length / sum(other for other in settings.lengths if other >= length)
    # The forward whose memory is measured is also the one that warms up.
    memory = {method: peak_memory(work) for method, work in works.items()}
    samples: dict[str, list[float]] = {method: [] for method in works}
    for _ in range(_repeats(settings, length)):
        before = time.monotonic()
        for method, timing in time_side_by_side(works, repeats=1, warmup=0).items():
            samples[method].append(timing.median)
        now = time.monotonic()
        if now + (now - before) > end:
            break
    return [CostRow(length, m, summarise(samples[m]), memory[m], len(samples[m])) for m in works]


def _forward(encoder: Encoder, tokens_BN: Tensor, device: Device) -> Work:
    def work() -> object:
        with device.autocast():
            return encoder(tokens_BN)

    return work


def _expected_seconds(rows: Sequence[CostRow], method: str, length: int) -> float:
    """Of one forward: the last one measured, which goes on to grow as it did, but no faster than the length's square
    and no slower than the length; 0 where there is none yet.
    """
    mine = [(row.length, row.time.median / 1e3) for row in rows if row.method == method]
    if not mine:
        return 0.0
    last, seconds = mine[-1]
    power = 1.0
    if len(mine) > 1:
        before, seconds_before = mine[-2]
        power = min(2.0, max(1.0, math.log(seconds / seconds_before) / math.log(last / before)))
    return float(seconds * (length / last) ** power)


def _matrices(heads: int, length: int) -> float:
    """Bytes of the two N x N matrices that a head's written-out softmax holds at once, the scores and the weights."""
    return 2 * 4.0 * heads * length**2


def _too_much(expected: Mapping[str, float], left: float, needed: Mapping[str, float], free: float) -> dict[str, str]:
    """Why a method is left out, of those that are.

    Args:
        expected: seconds of each one's forward.
        left: seconds that all may take.
        needed: bytes that are known beforehand.
        free: bytes that there are.
    """
    reasons = {}
    for method, seconds in expected.items():
        # One forward for the memory and one for the time.
        least = 2 * seconds
        if needed.get(method, 0) > _MOST_OF_MEMORY * free:
            reasons[method] = (
                f"it takes {needed[method] / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"
            )
        elif least > left:
            reasons[method] = f"it would take about {least:.1f} s, and {max(left, 0):.1f} s were left for it"
        else:
            left -= least
    return reasons


def _repeats(settings: CostSettings, length: int) -> int:
    """How often a length is timed at the most."""
    return max(_FEWEST_REPEATS, settings.repeats * 1024 // max(length, 1024))
