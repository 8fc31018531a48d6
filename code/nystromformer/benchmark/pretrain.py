"""`run_benchmark.py pretrain`: a step of BERT-small beside transformers' NystromformerForMaskedLM, time and memory.

Shapes: B rows, N tokens, K masked positions, E width.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.benchmark.models import (
    made_up_batch,
    masked_lm_step,
    mean_loss,
    our_config,
    step_memory,
    training_step,
    transformers_config,
)
from nystromformer.benchmark.questions.pretrain import Pretraining
from nystromformer.benchmark.results import measure_and_write, table_of
from nystromformer.benchmark.timing import Timing, Work, time_side_by_side
from nystromformer.config import ModelConfig
from nystromformer.errors import UserError
from nystromformer.model import MaskedLMHead, PretrainingModel, count_parameters
from nystromformer.model.layers import at_positions
from nystromformer.tables import Column
from nystromformer.tasks.experiment.checks import check_room_to_train
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


def measure_pretraining(settings: Pretraining, folder: Path) -> str:
    """Measure, write `pretrain.json` and `pretrain.txt`, and return what to print."""
    return measure_and_write(folder, "pretrain", lambda: measure_steps(settings), table, asdict(settings))


def measure_steps(settings: Pretraining) -> list[PretrainRow]:
    """Measure all ways to make a step, side by side at each size."""
    torch.set_num_threads(settings.threads)
    device = choose_device("auto", settings.mixed_precision)
    if settings.compile and (missing := missing_compiler(device.device)):
        raise UserError(f"--compile: {missing}")
    rows = []
    for length, count in settings.sizes:
        model = our_config(settings, length)
        check_room_to_train(f"{length}x{count}", model, device.device, count, length, count)
    for length, count in settings.sizes:
        steps = _steps(settings, length, count, device)
        times = time_side_by_side({name: work for name, (work, _, _) in steps.items()}, settings.repeats)
        for name, (work, trained, tokens) in steps.items():
            logger.info("%s: %s parameters", name, f"{count_parameters(trained):,}")
            rows.append(PretrainRow(length, count, tokens, name, times[name], step_memory(trained, work)))
        logger.info("%d x %d tokens measured", count, length)
    return rows


def _steps(settings: Pretraining, length: int, rows: int, device: Device) -> dict[str, tuple[Work, nn.Module, int]]:
    """By method: a step, the model that it trains, and the tokens that it takes."""
    torch.manual_seed(0)
    full, padded = (
        made_up_batch(settings.vocab_size, length, rows, device.device, padded=each) for each in (False, True)
    )
    tokens, padded_tokens = full["tokens_BN"].numel(), int(padded["mask_BN"].sum())
    config = our_config(settings, length)
    steps: dict[str, tuple[Work, nn.Module, int]] = {}
    for name, model_config in ((OURS, config), (SOFTMAX, our_config(settings, length, "softmax"))):
        model = PretrainingModel(model_config, ["mlm"]).to(device.device)
        steps[name] = masked_lm_step(model, full, device), model, tokens
        steps[PADDED[name]] = masked_lm_step(model, padded, device), model, padded_tokens
    if settings.compile:
        compiled = PretrainingModel(config, ["mlm"]).to(device.device)
        compile_units(compiled.encoder.layers, device.device)
        steps[COMPILED] = masked_lm_step(compiled, full, device), compiled, tokens
    peer = peer_model(settings, length).to(device.device)
    sparse = SparseHead(peer, config).to(device.device)

    def peer_loss() -> Tensor:
        loss: Tensor = peer(full["tokens_BN"], labels=full["labels_BN"]).loss
        return loss

    def sparse_loss() -> Tensor:
        return mean_loss(sparse(full["tokens_BN"], full["positions_BK"], full["labels_BK"]))

    steps[PEER] = training_step(peer, peer_loss, device), peer, tokens
    steps[SPARSE] = training_step(sparse, sparse_loss, device), sparse, tokens
    if device.autocast_dtype is not None:
        steps[f"{PEER}, float32"] = training_step(peer, peer_loss, Device(device.device, None)), peer, tokens
    return steps


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


def peer_model(settings: Pretraining, length: int) -> nn.Module:
    """transformers' model of the same sizes."""
    from transformers import NystromformerForMaskedLM

    model: nn.Module = NystromformerForMaskedLM(transformers_config(settings, length)).train()
    return model


def table(rows: Sequence[PretrainRow]) -> str:
    """Times, memory, and ratios to transformers at the same size and precision; what they are made of, below."""
    by_place = {(row.length, row.rows, row.method): row for row in rows}

    def peer(row: PretrainRow) -> PretrainRow:
        return by_place[row.length, row.rows, PEER]

    lines = table_of(
        rows,
        (Column("tokens x rows", 13), lambda row: f"{row.length} x {row.rows}"),
        (Column("step", 28, is_text=True), lambda row: row.method),
        (Column("ms (quartiles)", 22, gap=1), lambda row: f"{row.time:.0f}"),
        (Column("ratio", 5, gap=1), lambda row: f"{row.time.median / peer(row).time.median:.2f}"),
        (Column("tokens/s", 10, gap=1), lambda row: f"{1e3 * row.tokens / row.time.median:,.0f}"),
        (Column("MiB", 8, gap=1), lambda row: f"{row.memory:.0f}"),
        (Column("ratio", 5, gap=1), lambda row: f"{row.memory / peer(row).memory:.2f}"),
    )
    notes = []
    for length, count in dict.fromkeys((row.length, row.rows) for row in rows):
        ours, sparse, theirs = (by_place[length, count, name] for name in (OURS, SPARSE, PEER))
        notes.append(f"{length} x {count}: {_parts(*(each.time.median for each in (ours, sparse, theirs)))}")
        for name, padded in PADDED.items():
            notes.append(f"{length} x {count}: {_padding(*(by_place[length, count, each] for each in (name, padded)))}")
    return "\n".join([*lines, "", *notes])


def _parts(ours: float, sparse: float, peer: float) -> str:
    """What the speed beside transformers is the product of."""
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
