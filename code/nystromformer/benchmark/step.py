"""`run_benchmark.py step`: steps of training beside transformers' Nyströmformer, time and memory.

Shapes: B rows, N tokens, K masked positions, E width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.benchmark.findings import Findings, Record
from nystromformer.benchmark.methods import expand, parse_at
from nystromformer.benchmark.questions.shipped import HEAD_DIM, LANDMARKS, Step
from nystromformer.benchmark.timing import peak_memory, quartiles, time_side_by_side
from nystromformer.config import ModelConfig
from nystromformer.data.masking import IGNORED_LABEL, predictions_per_row
from nystromformer.errors import UserError
from nystromformer.model import ClassificationModel, MaskedLMHead, PretrainingModel
from nystromformer.model.layers import at_positions
from nystromformer.tables import markdown
from nystromformer.training.device import Device, choose_device

PRETRAINING, FINETUNING = "pretraining", "fine-tuning"
PEER, SPARSE = "transformers", "transformers, our head"
"""The latter is its encoder under our head and loss: logits at the masked positions alone."""
BY_LENGTH, PADDED, PADDED_PEER = "nystromformer, by length", "nystromformer, padded", "transformers, padded"
PAD = 1
_TAPS, _DROPOUT, _MASK_PROB = 33, 0.1, 0.15
NYSTROM = f"nystrom,num_landmarks={LANDMARKS},conv_kernel_size={_TAPS}"


@dataclass(frozen=True)
class Way:
    """To make a step: forward, backward, clipping, fused AdamW."""

    model: nn.Module
    loss: Callable[[], Tensor]
    tokens: int
    """Of a row, padding included."""

    def step(self, device: Device) -> Callable[[], None]:
        parameters = list(self.model.parameters())
        adamw = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

        def run() -> None:
            adamw.zero_grad(set_to_none=True)
            with device.autocast():
                loss = self.loss()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            adamw.step()

        return run


def measure_step(settings: Step, folder: Path) -> str:
    """Measure, write `step.json` and `.md`, and return what to print.

    Raises:
        UserError: an unknown attention, or one that does not take such rows.
    """
    for length in settings.lengths:
        for text in expand(settings.attentions):
            our_config(settings, length, text)
    torch.set_num_threads(settings.threads)
    device = choose_device("auto", False if settings.precision == "float32" else settings.precision)
    found = Findings.begin("step", settings, folder)
    for length in settings.lengths:
        found.records += measure_pretraining(settings, length, device)
    found.records += _time(FINETUNING, settings.batch, finetuning_ways(settings, device), settings.repeats, device)
    return found.publish(folder / "step.json")


def _time(task: str, rows: int, ways: Mapping[str, Way], repeats: int, device: Device) -> list[Record]:
    """All ways to make a step, side by side; memory is MiB at the peak of a step, weights and Adam's two moments
    included.
    """
    steps = {name: way.step(device) for name, way in ways.items()}
    times = time_side_by_side(steps, repeats, warmup=1)
    found = []
    for name, way in ways.items():
        way.model.zero_grad(set_to_none=True)  # what a step makes anew is the step's
        weights = sum(p.numel() * p.element_size() for p in way.model.parameters()) / 2**20
        figures = {"time": asdict(times[name]), "memory": 3 * weights + peak_memory(steps[name])}
        found.append({"task": task, "rows": rows, "tokens": way.tokens, "method": name, **figures})
    return found


def measure_pretraining(settings: Step, length: int, device: Device) -> list[Record]:
    """Steps of ours, with each attention, and of transformers', on one batch."""
    rows = max(1, settings.tokens // length)
    batch = made_up_batch(settings.vocab_size, length, rows, device.device)
    ways = dict(our_ways(settings, batch, device))
    peer = peer_model(settings, length, "NystromformerForMaskedLM").to(device.device)
    sparse = SparseHead(peer, our_config(settings, length)).to(device.device)

    def peer_loss() -> Tensor:
        loss: Tensor = peer(batch["tokens_BN"], labels=batch["labels_BN"]).loss
        return loss

    def sparse_loss() -> Tensor:
        return _mean_loss(sparse(batch["tokens_BN"], batch["positions_BK"], batch["labels_BK"]))

    ways |= {PEER: Way(peer, peer_loss, length), SPARSE: Way(sparse, sparse_loss, length)}
    return _time(PRETRAINING, rows, ways, settings.repeats, device)


def our_ways(settings: Step, batch: Mapping[str, Tensor], device: Device) -> Iterator[tuple[str, Way]]:
    """Steps of ours on a batch, with each attention."""
    length = batch["tokens_BN"].shape[1]
    for text in expand(settings.attentions or (NYSTROM, "softmax")):
        for compiled in (False, True) if settings.compiled else (False,):
            model = PretrainingModel(our_config(settings, length, text), ["mlm"]).to(device.device).train()
            for layer in model.encoder.layers if compiled else ():
                layer.compile()

            def loss(model: PretrainingModel = model) -> Tensor:
                out = model(batch["tokens_BN"], batch["positions_BK"], labels_BK=batch["labels_BK"])
                assert out.mlm_sums is not None, "labels were given"
                return _mean_loss(out.mlm_sums)

            yield parse_at(text, length)[2] + (", compiled layers" if compiled else ""), Way(model, loss, length)


def made_up_batch(vocab_size: int, length: int, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Random tokens, as many masked positions a row as in pretraining; labels for ours and for transformers'."""
    torch.manual_seed(0)
    tokens_BN = torch.randint(5, vocab_size - 1, (rows, length))
    count = predictions_per_row(length, _MASK_PROB)
    positions_BK = torch.stack([torch.randperm(length)[:count].sort().values for _ in range(rows)])
    labels_BK = tokens_BN.gather(1, positions_BK)
    labels_BN = torch.full_like(tokens_BN, IGNORED_LABEL).scatter(1, positions_BK, labels_BK)
    batch = {"tokens_BN": tokens_BN, "positions_BK": positions_BK, "labels_BK": labels_BK, "labels_BN": labels_BN}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _mean_loss(sums: Tensor) -> Tensor:
    """Of `MaskedLMHead.sums`, (3,)."""
    mean: Tensor = sums[0] / sums[2].detach()
    return mean


def finetuning_ways(settings: Step, device: Device) -> dict[str, Way]:
    """Steps on the median batch of short texts, as long as they are, as in training; and padded, as transformers needs
    it. Their lengths are as those of SST-2's training sentences, mostly phrases of a few words.
    """
    torch.manual_seed(0)
    lengths = torch.exp(2.4 + 0.65 * torch.randn(51 * settings.batch)).long().clamp(3, 66).sort().values
    lengths_B = lengths[25 * settings.batch : 26 * settings.batch]
    ways = {}
    for name, width in ((BY_LENGTH, int(lengths_B.max())), (PADDED, settings.pad_to), (PADDED_PEER, settings.pad_to)):
        model: nn.Module = ClassificationModel(our_config(settings, settings.pad_to), 2)
        if name == PADDED_PEER:
            model = peer_model(settings, settings.pad_to, "NystromformerForSequenceClassification")
        model.to(device.device).train()
        ways[name] = Way(model, _classifying_loss(model, settings.vocab_size, lengths_B, width, device.device), width)
    return ways


def _classifying_loss(
    model: nn.Module, vocab_size: int, lengths_B: Tensor, width: int, device: torch.device
) -> Callable[[], Tensor]:
    mask_BN = torch.arange(width, device=device) < lengths_B.to(device)[:, None]
    tokens_BN = torch.randint(5, vocab_size - 1, mask_BN.shape, device=device).where(mask_BN, PAD)
    labels_B = torch.randint(2, lengths_B.shape, device=device)
    # The Nyström path of transformers takes no mask of two dimensions.
    bias_B11N = torch.zeros(mask_BN.shape, device=device).masked_fill(~mask_BN, -1e9)[:, None, None]

    def loss() -> Tensor:
        if isinstance(model, ClassificationModel):
            return F.cross_entropy(model(tokens_BN, mask_BN).float(), labels_B)
        mean: Tensor = model(tokens_BN, attention_mask=bias_B11N, labels=labels_B).loss
        return mean

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
            attn_type=parse_at(attention, length)[0],
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


def blocks(found: Findings) -> list[str]:
    """What was measured, and its table."""
    settings = ", ".join(f"{key} {value}" for key, value in found.settings.items())
    return ["A step of training", f"{settings}.", table(found.records)]


def table(records: Sequence[Record]) -> str:
    """Times, memory, and ratios to transformers' model on the same rows."""

    def size(record: Record) -> tuple[str, float]:
        # Of fine-tuning, batches by length have another number of tokens.
        return record["task"], record["tokens"] if record["task"] == PRETRAINING else 0

    bases = {size(record): record for record in records if record["method"] in (PEER, PADDED_PEER)}
    lines = []
    for record in records:
        base, place = bases[size(record)], f"{record['rows']} x {record['tokens']:g}"
        times = [quartiles(record["time"], ".1f"), f"{record['time']['median'] / base['time']['median']:.2f}"]
        memory = [f"{record['memory']:.0f}", f"{record['memory'] / base['memory']:.2f}"]
        lines.append([record["task"], place, record["method"], *times, *memory])
    header = ["", "rows x tokens", "step", "ms (quartiles)", "/ transformers", "peak memory, MiB", "/ transformers"]
    return markdown(header, lines)
