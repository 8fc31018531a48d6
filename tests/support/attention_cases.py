"""Which attentions the shared suite runs, each with its own oracle."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import Attention, NystromAttention, create_attention, reference
from nystromformer.attention.bigbird import BigBirdAttention
from nystromformer.attention.conv_linformer import ConvLinformerAttention
from nystromformer.attention.linformer import LinformerAttention
from nystromformer.attention.local import LocalAttention
from nystromformer.attention.longformer import LongformerAttention
from nystromformer.attention.performer import PerformerAttention
from nystromformer.attention.sparse import SparseAttention

HEADS, DIM = 2, 8
LONGEST = 8192
"""Tokens of the longest input that a method is to learn something for."""

Oracle = Callable[[Attention, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""From the module, whose learned and random numbers it reads, q, k, v and the mask; float64."""


@dataclass(frozen=True)
class Case:
    id: str
    name: str
    oracle: Oracle
    parameters: dict[str, Any] = field(default_factory=dict)

    def build(self, dtype: torch.dtype = torch.float32) -> Attention:
        torch.manual_seed(1)
        sizes = {"num_heads": HEADS, "head_dim": DIM, "max_length": LONGEST}
        return create_attention(self.name, **sizes, **self.parameters).to(dtype)

    def expected(self, module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """The oracle's output in float64, with the module's own convolution where it has one."""
        keep = None if module.ignore_mask else keep
        out = self.oracle(module, q, k, v, keep)
        if module.skip is not None:
            out = out + reference.depthwise_convolution(v, module.skip.weight, keep)
        return out


def _softmax(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    return reference.softmax_attention(q, k, v, keep)


def _linear(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    return reference.linear_attention(q, k, v, keep)


def _performer(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, PerformerAttention)
    return reference.performer_attention(q, k, v, keep, features=module.features_MD, kernel=module.kernel)


def _linformer(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, LinformerAttention)
    keys, values = module.key_projection_GKL, module.value_projection_GKL
    both = {"keys_GKL": keys, "values_GKL": keys if values is None else values}
    return reference.linformer_attention(q, k, v, keep, **both)


def _piecewise(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, ConvLinformerAttention)
    weights = {"keys_HSD": module.key_weight_HSD, "values_HSD": module.value_weight_HSD}
    return reference.piecewise_attention(q, k, v, keep, **weights)


def _local(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, LocalAttention)
    size, neighbours = module.block_size, module.neighbours

    def allowed(count: int, head: int) -> Tensor:
        blocks = torch.arange(count) // size
        return (blocks[:, None] - blocks).abs() <= neighbours

    return reference.pattern_attention(q, k, v, keep, allowed=allowed)


def _sparse(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, SparseAttention)
    stride, summary = module.stride, module.summary

    def allowed(count: int, head: int) -> Tensor:
        i, j = torch.arange(count)[:, None], torch.arange(count)
        if module.pattern == "strided":
            first, second = (i - j).abs() <= stride, (i - j) % stride == 0
        else:
            ends = ((j // stride + 1) * stride).clamp(max=count)
            first, second = i // stride == j // stride, (j >= ends - summary).expand(count, -1)
        if module.heads == "merged":
            return first | second
        return first if head < (module.num_heads + 1) // 2 else second

    return reference.pattern_attention(q, k, v, keep, allowed=allowed)


def bigbird(
    module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_global: Tensor | None = None
) -> Tensor:
    """The oracle of BigBird; `is_global`: tokens of the rows that are marked, all of equally many valid ones, (n,)."""
    assert isinstance(module, BigBirdAttention)
    sizes = module.block_size, module.num_window_blocks, module.num_global_blocks

    def allowed(count: int, head: int) -> Tensor:
        return reference.bigbird_pattern(count, module.salts_HR[head].tolist(), *sizes, is_global)

    return reference.bigbird_attention(q, k, v, keep, allowed=allowed, extra=module.extra)


def _longformer(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, LongformerAttention)
    steps = [module.dilation] * HEADS if isinstance(module.dilation, int) else module.dilation
    sizes = {"window": module.window, "steps": steps, "num_first": module.num_global_tokens}
    return reference.longformer_attention(q, k, v, keep, **sizes, changes_2HDD=module.global_changes_2HDD)


def _nystrom(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, NystromAttention)
    sizes = {"num_landmarks": module.num_landmarks, "iterations": module.pinv_iterations}
    return reference.nystrom_attention(q, k, v, keep, **sizes)


CASES = [
    Case("softmax", "softmax", _softmax),
    Case("softmax+conv", "softmax", _softmax, {"conv_kernel_size": 3}),
    Case("softmax+conv-unmasked", "softmax", _softmax, {"conv_kernel_size": 3, "ignore_mask": True}),
    Case("linear", "linear", _linear),
    Case("linear+conv", "linear", _linear, {"conv_kernel_size": 3}),
    Case("performer", "performer", _performer, {"num_features": 12}),
    Case("performer+conv", "performer", _performer, {"num_features": 8, "conv_kernel_size": 3}),
    Case("performer-relu", "performer", _performer, {"num_features": 12, "kernel": "relu"}),
    Case("linformer", "linformer", _linformer, {"projected_length": 6}),
    Case("linformer+conv", "linformer", _linformer, {"projected_length": 6, "conv_kernel_size": 3}),
    Case(
        "linformer-shared",
        "linformer",
        _linformer,
        {"projected_length": 6, "sharing": "layer", "share_keys_and_values": True},
    ),
    Case("conv_linformer", "conv_linformer", _piecewise, {"stride": 4}),
    Case("conv_linformer+conv", "conv_linformer", _piecewise, {"stride": 5, "conv_kernel_size": 3}),
    Case("local", "local", _local, {"block_size": 6}),
    Case("local+conv", "local", _local, {"block_size": 5, "conv_kernel_size": 3}),
    Case("local-alone", "local", _local, {"block_size": 8, "neighbours": 0}),
    Case("sparse", "sparse", _sparse, {"stride": 6}),
    Case("sparse+conv", "sparse", _sparse, {"stride": 5, "heads": "separate", "conv_kernel_size": 3}),
    Case("sparse-fixed", "sparse", _sparse, {"pattern": "fixed", "stride": 7, "summary": 2}),
    Case(
        "sparse-fixed-separate",
        "sparse",
        _sparse,
        {"pattern": "fixed", "stride": 6, "summary": 3, "heads": "separate"},
    ),
    Case("bigbird", "bigbird", bigbird, {"block_size": 4, "num_random_blocks": 2}),
    Case(
        "bigbird+conv",
        "bigbird",
        bigbird,
        {
            "block_size": 3,
            "num_window_blocks": 5,
            "num_random_blocks": 1,
            "num_global_blocks": 0,
            "conv_kernel_size": 3,
        },
    ),
    Case(
        "bigbird-extra",
        "bigbird",
        bigbird,
        {"block_size": 4, "num_window_blocks": 1, "num_global_blocks": 1, "extra_global_tokens": 3},
    ),
    Case("longformer", "longformer", _longformer, {"window": 6, "num_global_tokens": 2}),
    Case(
        "longformer+conv",
        "longformer",
        _longformer,
        {"window": 24, "global_projections": True, "conv_kernel_size": 3},
    ),
    Case(
        "longformer-dilated",
        "longformer",
        _longformer,
        {"window": 4, "dilation": [1, 3], "num_global_tokens": 3, "global_projections": True},
    ),
    Case("longformer-windows", "longformer", _longformer, {"window": 8, "dilation": 2, "num_global_tokens": 0}),
    Case("nystrom", "nystrom", _nystrom, {"num_landmarks": 8}),
    Case("nystrom+conv", "nystrom", _nystrom, {"num_landmarks": 8, "conv_kernel_size": 5}),
    Case("nystrom-3-iterations", "nystrom", _nystrom, {"num_landmarks": 5, "pinv_iterations": 3}),
]


def qkv(batch: int, length: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.5) -> list[Tensor]:
    """Queries, keys and values with gradients, in the layout in which projections give them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, length, HEADS, DIM)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) * scale for _ in range(3)]
    return [x.to(dtype).transpose(1, 2).requires_grad_() for x in tensors]


def suffix_mask(length: int, *lengths: int) -> Tensor:
    """Rows whose first tokens count."""
    return torch.arange(length)[None] < torch.tensor(lengths)[:, None]


def random_mask(batch: int, length: int, seed: int = 0, share: float = 0.7) -> Tensor:
    """Rows with holes anywhere."""
    return torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < share
