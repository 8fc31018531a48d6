"""What is measured of each method: the attention alone, and a training step of a small encoder.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.efficiency.methods import CONTROL, WRITTEN_OUT, Method
from nystromformer.benchmark.models import adamw, standing_memory, take_step
from nystromformer.benchmark.peers import SharedQueryKey, WrittenOutSoftmax, elementwise
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


class Part(ABC):
    """A table of the comparison."""

    name: str
    batch: int

    @abstractmethod
    def works(self, methods: list[Method], length: int, batch: int) -> Mapping[str, Works]:
        """Of each method, on input that they share."""


@dataclass(frozen=True)
class AttentionPart(Part):
    """Attention over projected tensors, bare, and beside it an elementwise control."""

    batch: int
    num_heads: int
    head_dim: int
    device: torch.device
    name = "attention"

    def works(self, methods: list[Method], length: int, batch: int) -> Mapping[str, Works]:
        torch.manual_seed(0)  # of the methods' own parameters
        calls = {method.name: self._call(method, length) for method in methods}
        forwards, boths = attention_works(calls, (batch, length, self.num_heads, self.head_dim), self.device)
        return {name: Works(forwards[name], boths[name]) for name in calls}

    def _call(self, method: Method, length: int) -> Callable[..., Tensor]:
        if method.config is None:
            return WrittenOutSoftmax() if method.name == WRITTEN_OUT else elementwise
        heads = {"num_heads": self.num_heads, "head_dim": self.head_dim, "max_length": length}
        module = create_attention(method.config, **heads)
        return SharedQueryKey(module) if module.needs.shared_query_key else module


@dataclass(frozen=True)
class EncoderPart(Part):
    """A step of classifying bytes with an encoder of the Long Range Arena's kind, and its forward pass alone."""

    batch: int
    num_layers: int
    num_heads: int
    width: int
    device: Device
    name = "encoder"

    def works(self, methods: list[Method], length: int, batch: int) -> Mapping[str, Works]:
        generator = torch.Generator().manual_seed(0)
        tokens_BN = torch.randint(256, (batch, length), generator=generator).to(self.device.device)
        labels_B = torch.randint(2, (batch,), generator=generator).to(self.device.device)
        return {
            method.name: self._of(self._model(method, length), tokens_BN, labels_B)
            for method in methods
            if method.name != CONTROL
        }

    def _of(self, model: ClassificationModel, tokens_BN: Tensor, labels_B: Tensor) -> Works:
        optimizer = adamw(model)

        def loss() -> Tensor:
            return nn.functional.cross_entropy(model(tokens_BN).float(), labels_B)

        def step() -> None:
            model.train()
            take_step(loss, model, optimizer, self.device)
            optimizer.zero_grad(set_to_none=True)  # so that a profiler sees where each gradient's memory began

        def forward() -> Tensor:
            model.eval()
            with self.device.autocast():
                logits: Tensor = model(tokens_BN)
            return logits

        standing = standing_memory(model)
        return Works(forward, step, standing, standing / 3)  # weights alone, without Adam's two moments

    def _model(self, method: Method, length: int) -> ClassificationModel:
        torch.manual_seed(0)
        config = ModelConfig(
            vocab_size=256,
            max_seq_len=length,
            embedding_dim=self.width,
            transformer_dim=self.width,
            transformer_hidden_dim=2 * self.width,
            num_layers=self.num_layers,
            num_head=self.num_heads,
            head_dim=self.width // self.num_heads,
            attn_type="softmax" if method.config is None else method.config,
            pooling="mean",
            norm="pre",
            activation="gelu",
        )
        model = ClassificationModel(config, num_classes=2)
        if method.name == WRITTEN_OUT:
            for layer in model.encoder.layers:
                layer.attention.core = _Unmasked(layer.attention.core.needs)  # type: ignore[union-attr]
        return model.to(self.device.device)


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
