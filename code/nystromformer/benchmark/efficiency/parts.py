"""What is measured of each method: the attention alone, and a training step of a small encoder.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.efficiency.methods import CONTROL, WRITTEN_OUT, Method
from nystromformer.benchmark.models import adamw, standing_memory, take_step
from nystromformer.benchmark.peers import SharedQueryKey, WrittenOutSoftmax
from nystromformer.benchmark.timing import Work, forward_and_backward
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
        torch.manual_seed(0)
        size = (batch, length, self.num_heads, self.head_dim)
        # In the layout in which an encoder's projections give them.
        q, k, v = (torch.randn(size, device=self.device).transpose(1, 2).requires_grad_() for _ in range(3))
        upstream = torch.randn(size, device=self.device).transpose(1, 2)
        works = {}
        for method in methods:
            module = self._module(method, length)
            wanted = [q, k, v, *(p for p in module.parameters() if p.requires_grad)]
            works[method.name] = Works(
                lambda module=module: module(q, k, v),  # type: ignore[misc]
                forward_and_backward(module, (q, k, v), wanted, upstream),
            )
        return works

    def _module(self, method: Method, length: int) -> nn.Module:
        if method.name == WRITTEN_OUT:
            return WrittenOutSoftmax()
        if method.config is None:
            return _Control()
        heads = {"num_heads": self.num_heads, "head_dim": self.head_dim, "max_length": length}
        module = create_attention(method.config, **heads).to(self.device)
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


class _Control(nn.Module):
    """Reads its input, writes as much, and is linear in the length beyond doubt."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q * k + v
