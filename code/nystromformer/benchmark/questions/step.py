"""A step of pretraining beside transformers' Nyströmformer, time and memory.

Shapes: B rows, N tokens, K masked positions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nystromformer.benchmark.findings import Findings, Record
from nystromformer.benchmark.methods import expand, parse_at
from nystromformer.benchmark.questions import ATTENTIONS, OUT, Out, count, flag, numbers, threads
from nystromformer.benchmark.timing import peak_memory, quartiles, time_side_by_side
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config import ModelConfig
from nystromformer.config.ranges import MOST_LAYERS
from nystromformer.data.masking import IGNORED_LABEL, predictions_per_row
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel
from nystromformer.tables import markdown, show
from nystromformer.training.device import Device, choose_device

PEER = "transformers"
HEAD_DIM = LANDMARKS = 64
_TAPS, _DROPOUT, _MASK_PROB = 33, 0.1, 0.15
NYSTROM = f"nystrom,num_landmarks={LANDMARKS},conv_kernel_size={_TAPS}"


@dataclass(frozen=True)
class Step:
    """The model, by default the paper's BERT-small with RoBERTa's vocabulary, and its batches."""

    attentions: list[str] = flag([], f"{ATTENTIONS}Nyström with the convolution, and softmax.", name="attention")
    lengths: Sequence[int] = numbers((512, 4096), "Tokens of a row, separated by commas.", least=128)
    tokens: int = count(4096, "Tokens of a batch, of as many rows as that gives.")
    repeats: int = count(7, "Measurements of each.")
    num_layers: int = count(4, "Layers of the model.", most=MOST_LAYERS, name="layers")
    width: int = count(512, f"Width of the model: {HEAD_DIM} for each attention head.", least=HEAD_DIM)
    vocab_size: int = count(50265, "Tokens of the vocabulary.", least=300)
    precision: Literal["float32", "bf16", "fp16"] = flag(
        "float32", "What models compute in: float32, or bf16 or fp16 under autocast."
    )
    compiled: bool = flag(False, "Also measure ours with compiled layers.", name="compile")
    threads: int = threads()

    def __post_init__(self) -> None:
        for name, values in (("width", [self.width]), ("lengths", self.lengths)):
            if wrong := [value for value in values if value % LANDMARKS]:
                why = "the heads' width" if name == "width" else "its landmarks: transformers accepts no other lengths"
                raise UserError(f"--{name}: expected multiples of {LANDMARKS}, {why}; found {wrong}")


@with_flag_groups
def step(settings: Step, out: Out = OUT) -> None:
    """Time and memory of a step of pretraining, beside transformers' Nyströmformer."""
    for length in settings.lengths:
        for text in expand(settings.attentions):
            our_config(settings, length, text)
    torch.set_num_threads(settings.threads)
    device = choose_device("auto", False if settings.precision == "float32" else settings.precision)
    found = Findings.begin("step", settings, out)
    for length in settings.lengths:
        found.records += measure_steps(settings, length, device)
    show(found.publish(out / "step.json"))


def measure_steps(settings: Step, length: int, device: Device) -> list[Record]:
    """Steps of ours, with each attention, and of transformers', side by side on one batch; memory is MiB at the peak of
    a step, weights and Adam's two moments included.
    """
    rows = max(1, settings.tokens // length)
    batch = made_up_batch(settings.vocab_size, length, rows, device.device)
    models: dict[str, nn.Module] = {}
    for text in expand(settings.attentions or (NYSTROM, "softmax")):
        for ending in ("", ", compiled layers") if settings.compiled else ("",):
            model = PretrainingModel(our_config(settings, length, text), ["mlm"])
            models[parse_at(text, length)[2] + ending] = model
            for layer in model.encoder.layers if ending else ():
                layer.compile()
    models[PEER] = peer_model(settings, length)
    steps = {name: _step(model.to(device.device).train(), batch, device) for name, model in models.items()}
    times = time_side_by_side(steps, settings.repeats, warmup=1)
    found = []
    for name, each in models.items():
        each.zero_grad(set_to_none=True)  # what a step makes anew is the step's
        weights = sum(p.numel() * p.element_size() for p in each.parameters()) / 2**20
        figures = {"time": times[name], "memory": 3 * weights + peak_memory(steps[name])}
        found.append({"task": "pretraining", "rows": rows, "tokens": length, "method": name, **figures})
    return found


def _step(model: nn.Module, batch: Mapping[str, Tensor], device: Device) -> Callable[[], None]:
    """Forward, backward, clipping, fused AdamW."""
    parameters = list(model.parameters())
    adamw = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def loss() -> Tensor:
        if not isinstance(model, PretrainingModel):
            theirs: Tensor = model(batch["tokens_BN"], labels=batch["labels_BN"]).loss
            return theirs
        out = model(batch["tokens_BN"], batch["positions_BK"], labels_BK=batch["labels_BK"])
        assert out.mlm_sums is not None, "labels were given"
        mean: Tensor = out.mlm_sums[0] / out.mlm_sums[2].detach()
        return mean

    def run() -> None:
        adamw.zero_grad(set_to_none=True)
        with device.autocast():
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.step()

    return run


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


def our_config(settings: Step, length: int, attention: str = NYSTROM) -> ModelConfig:
    """Ours, for rows of up to `length` tokens; a UserError where there is none with such an attention."""
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


def peer_model(settings: Step, length: int) -> nn.Module:
    """transformers' model of the same sizes, for rows of exactly `length` tokens."""
    from transformers import NystromformerConfig, NystromformerForMaskedLM

    config = NystromformerConfig(
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
        pad_token_id=1,
    )
    model: nn.Module = NystromformerForMaskedLM(config).train()
    return model


def blocks(found: Findings) -> list[str]:
    """What was measured, and its table."""
    settings = ", ".join(f"{key} {value}" for key, value in found.settings.items())
    return ["A step of training", f"{settings}.", table(found.records)]


def table(records: Sequence[Record]) -> str:
    """Times, memory, and ratios to transformers' model on the same rows."""
    bases = {record["tokens"]: record for record in records if record["method"] == PEER}
    lines = []
    for record in records:
        base, place = bases[record["tokens"]], f"{record['rows']} x {record['tokens']}"
        times = [quartiles(record["time"], ".1f"), f"{record['time']['median'] / base['time']['median']:.2f}"]
        memory = [f"{record['memory']:.0f}", f"{record['memory'] / base['memory']:.2f}"]
        lines.append([record["task"], place, record["method"], *times, *memory])
    header = ["", "rows x tokens", "step", "ms (quartiles)", "/ transformers", "peak memory, MiB", "/ transformers"]
    return markdown(header, lines)
