"""`run_benchmark.py step`: steps of training beside transformers' Nyströmformer, time and memory.

Shapes: B rows, N tokens, K masked positions, E width.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.benchmark.efficiency.methods import parse_method
from nystromformer.benchmark.models import (
    PAD,
    made_up_batch,
    masked_lm_step,
    mean_loss,
    new_optimizer,
    step_memory,
    training_step,
)
from nystromformer.benchmark.questions.step import HEAD_DIM, LANDMARKS, Step
from nystromformer.benchmark.results import measure_and_write
from nystromformer.benchmark.timing import Timing, Work, time_side_by_side
from nystromformer.config import ModelConfig
from nystromformer.errors import UserError
from nystromformer.model import ClassificationModel, MaskedLMHead, PretrainingModel
from nystromformer.model.layers import at_positions
from nystromformer.tables import markdown
from nystromformer.training.device import Device, choose_device

logger = logging.getLogger(__name__)

PRETRAINING, FINETUNING = "pretraining", "fine-tuning"
PEER, SPARSE = "transformers", "transformers, our head"
"""The latter is its encoder under our head and loss: logits at the masked positions alone."""
BY_LENGTH, PADDED, PADDED_PEER = "nystromformer, by length", "nystromformer, padded", "transformers, padded"
_POOL = 50
"""Batches by length are cut from the sorted examples of so many."""
_TAPS = 33
_DROPOUT = 0.1
NYSTROM = f"nystrom,num_landmarks={LANDMARKS},conv_kernel_size={_TAPS}"


@dataclass(frozen=True)
class StepRow:
    """One way to make a step."""

    task: str
    rows: int
    tokens: float
    """Of a row, padding included."""
    method: str
    time: Timing
    """Of one step."""
    memory: float
    """MiB at the peak of a step, of the longest batch, weights and optimizer included."""


@dataclass(frozen=True)
class Way:
    """A model, and what one measurement of it does."""

    model: nn.Module
    steps: Sequence[Work]
    """The last one has the longest batch."""
    tokens: float
    """Of a row."""

    def run(self) -> None:
        for step in self.steps:
            step()


def measure_step(settings: Step, folder: Path) -> str:
    """Measure, write `step.json` and `step.md`, and return what to print.

    Raises:
        UserError: an attention that is unknown, or that such a model cannot have.
    """
    for text in settings.attentions:
        for length, _ in settings.sizes:
            our_config(settings, length, text)
    torch.set_num_threads(settings.threads)
    device = choose_device("auto", False if settings.precision == "float32" else settings.precision)
    return measure_and_write(folder, "step", lambda: _measure(settings, device), table, asdict(settings))


def _measure(settings: Step, device: Device) -> list[StepRow]:
    """All ways to make a step, side by side at each size."""
    rows = []
    for length, count in settings.sizes:
        rows += _time(PRETRAINING, count, pretraining_ways(settings, length, count, device), settings.repeats)
    return rows + _time(FINETUNING, settings.batch, finetuning_ways(settings, device), settings.repeats)


def _time(task: str, rows: int, ways: Mapping[str, Way], repeats: int) -> list[StepRow]:
    times = time_side_by_side({name: way.run for name, way in ways.items()}, repeats, warmup=1)
    found = []
    for name, way in ways.items():
        memory = step_memory(way.model, way.steps[-1])
        found.append(StepRow(task, rows, way.tokens, name, times[name] / len(way.steps), memory))
    logger.info("%s, batches of %d measured", task, rows)
    return found


def pretraining_ways(settings: Step, length: int, rows: int, device: Device) -> dict[str, Way]:
    """Steps on one batch."""
    torch.manual_seed(0)
    batch = made_up_batch(settings.vocab_size, length, rows, device.device)
    ways: dict[str, Way] = {}
    for text in settings.attentions or (NYSTROM, "softmax"):
        model = PretrainingModel(our_config(settings, length, text), ["mlm"]).to(device.device)
        ways[parse_method(text).name] = Way(model, [masked_lm_step(model, batch, device)], length)
    peer = peer_model(settings, length, "NystromformerForMaskedLM").to(device.device)
    sparse = SparseHead(peer, our_config(settings, length)).to(device.device)

    def peer_loss() -> Tensor:
        loss: Tensor = peer(batch["tokens_BN"], labels=batch["labels_BN"]).loss
        return loss

    def sparse_loss() -> Tensor:
        return mean_loss(sparse(batch["tokens_BN"], batch["positions_BK"], batch["labels_BK"]))

    ways[PEER] = Way(peer, [training_step(peer, peer_loss, device)], length)
    ways[SPARSE] = Way(sparse, [training_step(sparse, sparse_loss, device)], length)
    return ways


def finetuning_ways(settings: Step, device: Device) -> dict[str, Way]:
    """Steps on short texts: batches of similar length, made as in training, and padded ones, as transformers needs."""
    torch.manual_seed(0)
    lengths = made_up_lengths(_POOL * settings.batch).sort().values.view(_POOL, settings.batch)
    spread = torch.linspace(0, _POOL - 1, settings.batches).long()
    by_length = [_texts(settings, each, int(each.max()), device.device) for each in lengths[spread]]
    padded = [_texts(settings, lengths[_POOL // 2], settings.pad_to, device.device)]
    ways = {}
    for name, batches in ((BY_LENGTH, by_length), (PADDED, padded), (PADDED_PEER, padded)):
        model: nn.Module = ClassificationModel(our_config(settings, settings.pad_to), 2)
        if name == PADDED_PEER:
            model = peer_model(settings, settings.pad_to, "NystromformerForSequenceClassification")
        model.to(device.device).train()
        optimizer = new_optimizer(model)
        losses = [_classifying_loss(model, batch, is_peer=name == PADDED_PEER) for batch in batches]
        steps = [training_step(model, loss, device, optimizer) for loss in losses]
        ways[name] = Way(model, steps, sum(batch["tokens_BN"].shape[1] for batch in batches) / len(batches))
    return ways


def made_up_lengths(count: int) -> Tensor:
    """As those of SST-2's training sentences: mostly phrases of a few words."""
    return torch.exp(2.4 + 0.65 * torch.randn(count)).long().clamp(3, 66)


def _texts(settings: Step, lengths_B: Tensor, width: int, device: torch.device) -> dict[str, Tensor]:
    mask_BN = torch.arange(width) < lengths_B[:, None]
    tokens_BN = torch.randint(5, settings.vocab_size - 1, mask_BN.shape).where(mask_BN, PAD)
    batch = {"tokens_BN": tokens_BN, "mask_BN": mask_BN, "labels_B": torch.randint(2, (len(lengths_B),))}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _classifying_loss(model: nn.Module, batch: Mapping[str, Tensor], is_peer: bool) -> Callable[[], Tensor]:
    tokens_BN, mask_BN, labels_B = batch.values()
    # Its Nyström path takes no mask of two dimensions.
    bias_B11N = torch.zeros(mask_BN.shape, device=mask_BN.device).masked_fill(~mask_BN, -1e9)[:, None, None]

    def loss() -> Tensor:
        if is_peer:
            mean: Tensor = model(tokens_BN, attention_mask=bias_B11N, labels=labels_B).loss
            return mean
        return F.cross_entropy(model(tokens_BN, mask_BN).float(), labels_B)

    return loss


def our_config(settings: Step, length: int, attention: str = NYSTROM) -> ModelConfig:
    """Ours, for rows of up to `length` tokens.

    Args:
        attention: as `--attention` takes it.

    Raises:
        UserError: no such attention, or none for such a model.
    """
    try:
        return ModelConfig(
            vocab_size=settings.vocab_size,
            max_seq_len=length,
            embedding_dim=settings.width,
            transformer_dim=settings.width,
            transformer_hidden_dim=4 * settings.width,
            num_layers=settings.num_layers,
            dropout_prob=_DROPOUT,
            num_head=settings.width // HEAD_DIM,
            head_dim=HEAD_DIM,
            attn_type=parse_method(attention).config,
        )
    except ValueError as error:
        raise UserError(f"--attention {attention} for rows of {length} tokens: {error}") from None


def peer_model(settings: Step, length: int, name: str) -> nn.Module:
    """A model of transformers of the same sizes, for rows of exactly `length` tokens."""
    import transformers

    config = transformers.NystromformerConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.width,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.width // HEAD_DIM,
        intermediate_size=4 * settings.width,
        max_position_embeddings=length,
        segment_means_seq_len=length,
        num_landmarks=LANDMARKS,
        conv_kernel_size=_TAPS,
        hidden_dropout_prob=_DROPOUT,
        # Its Nyström path has no dropout of attention probabilities; ours has none either.
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
    )
    model: nn.Module = getattr(transformers, name)(config).train()
    return model


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


def table(rows: Sequence[StepRow]) -> str:
    """Times, memory, and ratios to transformers' model on the same rows."""
    bases = {_size_of(row): row for row in rows if row.method in (PEER, PADDED_PEER)}
    lines = []
    for row in rows:
        base = bases[_size_of(row)]
        figures = [f"{row.time:.1f}", f"{row.time.median / base.time.median:.2f}"]
        figures += [f"{row.memory:.0f}", f"{row.memory / base.memory:.2f}"]
        lines.append([row.task, f"{row.rows} x {row.tokens:g}", row.method, *figures])
    header = ["", "rows x tokens", "step", "ms (quartiles)", "/ transformers", "peak memory, MiB", "/ transformers"]
    return markdown(header, lines)


def _size_of(row: StepRow) -> tuple[int, float]:
    """What rows that are compared have in common: of fine-tuning batches by length, no number of tokens."""
    return row.rows, row.tokens if row.task == PRETRAINING else 0
