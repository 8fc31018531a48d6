"""What is compared: attentions by their settings, softmax written out, and a control; each alone and in an encoder.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nystromformer.attention import create_attention
from nystromformer.benchmark.models import replace_attention, standing_memory, training_step
from nystromformer.benchmark.peers import SharedQueryKey, WrittenOutSoftmax, elementwise
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.timing import Passes, passes_side_by_side
from nystromformer.config import ATTENTIONS, AttentionConfig, ModelConfig, attention_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.model import ClassificationModel
from nystromformer.training.device import Device

SDPA, WRITTEN_OUT, CONTROL = "softmax (SDPA)", "softmax, written out", "elementwise control"
BASELINES = (SDPA, WRITTEN_OUT)
"""What times and memory are divided by."""
_PAPERS = {"nystrom": ("nystrom,num_landmarks=32",), "longformer": ("longformer,window=256",)}
"""Behind an attention with its defaults, others of the paper's Table 1."""


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    config: AttentionConfig | None
    """None: one that no config.json names."""

    def why_not(self, length: int) -> str | None:
        """Why it cannot be measured at a length; None where it can."""
        if self.config is None:
            return None
        if reason := self.config.why_not_length(length):
            return reason
        problems = [text for _, text in self.config.impossible_at(length)]
        return problems[0] if problems else None


def choose_methods(attentions: Sequence[str]) -> list[Method]:
    """The methods that `--attention` asks for, all where it does not, behind the two softmaxes.

    Raises:
        UserError: an unknown attention, or parameters that it does not take.
    """
    found = [Method(SDPA, attention_config("softmax")), Method(WRITTEN_OUT, None)]
    for text in attentions or [text for name in ATTENTIONS for text in (name, *_PAPERS.get(name, ()))]:
        method = parse_method(text)
        if method.config not in [other.config for other in found]:
            found.append(method)
    return found


def parse_method(text: str) -> Method:
    """An attention and its parameters, as `parse_attention` takes them.

    Raises:
        UserError: as `choose_methods`.
    """
    config, parameters = parse_attention(text)
    return Method(label_attention(config.name, parameters), config)


def label_attention(name: str, parameters: Mapping[str, object]) -> str:
    """Such as `local (block_size 4)`."""
    shown = ", ".join(f"{key} {value}" for key, value in parameters.items())
    return f"{name} ({shown})" if shown else name


@dataclass(frozen=True)
class Part:
    """A table of the comparison."""

    name: str
    batch: int
    lengths: tuple[int, ...]
    passes: Callable[[list[Method], int, int], Mapping[str, Passes]]
    """Of methods at a length and batch, on input that they share; a part may leave methods out."""


def attention_part(settings: Efficiency, device: Device) -> Part:
    """Attention over projected tensors, bare, and beside it an elementwise control."""

    def call(method: Method, length: int) -> Callable[..., Tensor]:
        if method.config is None:
            return WrittenOutSoftmax() if method.name == WRITTEN_OUT else elementwise
        heads = {"num_heads": settings.heads, "head_dim": settings.head_dim, "max_length": length}
        module = create_attention(method.config, **heads)
        return SharedQueryKey(module) if module.needs.shared_query_key else module

    def passes(methods: list[Method], length: int, batch: int) -> Mapping[str, Passes]:
        torch.manual_seed(0)  # of the methods' own parameters
        calls = {method.name: call(method, length) for method in methods}
        return passes_side_by_side(calls, (batch, length, settings.heads, settings.head_dim), device.device)

    return Part("attention", settings.batch, tuple(settings.lengths), passes)


def encoder_part(settings: Efficiency, device: Device) -> Part:
    """A step of classifying bytes with an encoder of the Long Range Arena's kind, and its forward pass alone."""

    def passes(methods: list[Method], length: int, batch: int) -> Mapping[str, Passes]:
        generator = torch.Generator().manual_seed(0)
        tokens_BN = torch.randint(256, (batch, length), generator=generator).to(device.device)
        labels_B = torch.randint(2, (batch,), generator=generator).to(device.device)
        return {
            method.name: _passes_of(_encoder(method, length, settings).to(device.device), tokens_BN, labels_B, device)
            for method in methods
            if method.name != CONTROL
        }

    return Part("encoder", settings.encoder_batch, tuple(settings.encoder_lengths), passes)


PARTS = {"attention": attention_part, "encoder": encoder_part}


def _passes_of(model: ClassificationModel, tokens_BN: Tensor, labels_B: Tensor, device: Device) -> Passes:
    train = training_step(model, lambda: nn.functional.cross_entropy(model(tokens_BN).float(), labels_B), device)

    def step() -> None:
        model.train()
        train()
        model.zero_grad(set_to_none=True)  # so that a profiler sees where each gradient's memory began

    def forward() -> Tensor:
        model.eval()
        with device.autocast():
            logits: Tensor = model(tokens_BN)
        return logits

    return Passes(torch.no_grad()(forward), step, standing_memory(model) / 3)


def _encoder(method: Method, length: int, settings: Efficiency) -> ClassificationModel:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=256,
        max_seq_len=length,
        embedding_dim=settings.encoder_width,
        transformer_dim=settings.encoder_width,
        transformer_hidden_dim=2 * settings.encoder_width,
        num_layers=settings.encoder_layers,
        num_head=settings.encoder_heads,
        head_dim=settings.encoder_width // settings.encoder_heads,
        attn_type="softmax" if method.config is None else method.config,
        pooling="mean",
        norm="pre",
        activation="gelu",
    )
    model = ClassificationModel(config, num_classes=2)
    if method.name == WRITTEN_OUT:
        replace_attention(model.encoder, (WrittenOutSoftmax() for _ in model.encoder.layers))
    return model
