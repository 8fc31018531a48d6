"""What is measured of each method: the attention alone, and a training step of a small encoder.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.efficiency.methods import CONTROL, WRITTEN_OUT, Method
from nystromformer.benchmark.models import standing_memory, training_step
from nystromformer.benchmark.peers import SharedQueryKey, WrittenOutSoftmax, elementwise
from nystromformer.benchmark.settings import Efficiency
from nystromformer.benchmark.timing import Work, attention_works
from nystromformer.config import ModelConfig
from nystromformer.model import ClassificationModel
from nystromformer.training.device import Device


@dataclass(frozen=True)
class Works:
    """What is timed of a method at one length."""

    forward: Work
    """Without gradients."""
    both: Work
    standing: float = 0.0
    """MiB that stand beside what `both` takes at its peak."""
    standing_forward: float = 0.0
    """Beside what `forward` takes."""


@dataclass(frozen=True)
class Part:
    """A table of the comparison."""

    name: str
    batch: int
    lengths: tuple[int, ...]
    works: Callable[[list[Method], int, int], Mapping[str, Works]]
    """Of methods at a length and batch, on input that they share; a part may leave methods out."""


def attention_part(settings: Efficiency, device: Device) -> Part:
    """Attention over projected tensors, bare, and beside it an elementwise control."""

    def call(method: Method, length: int) -> Callable[..., Tensor]:
        if method.config is None:
            return WrittenOutSoftmax() if method.name == WRITTEN_OUT else elementwise
        heads = {"num_heads": settings.heads, "head_dim": settings.head_dim, "max_length": length}
        module = create_attention(method.config, **heads)
        return SharedQueryKey(module) if module.needs.shared_query_key else module

    def works(methods: list[Method], length: int, batch: int) -> Mapping[str, Works]:
        torch.manual_seed(0)  # of the methods' own parameters
        calls = {method.name: call(method, length) for method in methods}
        forwards, boths = attention_works(calls, (batch, length, settings.heads, settings.head_dim), device.device)
        return {name: Works(forwards[name], boths[name]) for name in calls}

    return Part("attention", settings.batch, tuple(settings.lengths), works)


def encoder_part(settings: Efficiency, device: Device) -> Part:
    """A step of classifying bytes with an encoder of the Long Range Arena's kind, and its forward pass alone."""

    def works(methods: list[Method], length: int, batch: int) -> Mapping[str, Works]:
        generator = torch.Generator().manual_seed(0)
        tokens_BN = torch.randint(256, (batch, length), generator=generator).to(device.device)
        labels_B = torch.randint(2, (batch,), generator=generator).to(device.device)
        return {
            method.name: _works_of(_encoder(method, length, settings).to(device.device), tokens_BN, labels_B, device)
            for method in methods
            if method.name != CONTROL
        }

    return Part("encoder", settings.encoder_batch, tuple(settings.encoder_lengths), works)


PARTS = {"attention": attention_part, "encoder": encoder_part}


def _works_of(model: ClassificationModel, tokens_BN: Tensor, labels_B: Tensor, device: Device) -> Works:
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

    standing = standing_memory(model)
    return Works(forward, step, standing, standing / 3)  # weights alone, without Adam's two moments


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
        for layer in model.encoder.layers:
            layer.attention.core = _Unmasked(layer.attention.core.needs)  # type: ignore[union-attr]
    return model


class _Unmasked(nn.Module):
    """Softmax written out in an attention's place, for input that is not masked."""

    def __init__(self, needs: object) -> None:
        super().__init__()
        self.needs = needs
        self.core = WrittenOutSoftmax()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        assert mask is None
        out: Tensor = self.core(q, k, v)
        return out
