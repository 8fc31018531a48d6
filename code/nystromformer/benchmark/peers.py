"""What the attention is measured against, each behind `peer(q_BHND, k_BHND, v_BHND) -> anything`.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, K taps.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Peer = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """What every peer is built for."""

    num_heads: int
    head_dim: int
    num_landmarks: int
    conv_kernel_size: int | None
    length: int


class WrittenOutSoftmax(nn.Module):
    """softmax(QKᵀ/√D) V with the N x N matrix in memory (eq. 2)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


class MaterialisedNystrom(nn.Module):
    """The paper's formulas as they stand, as the authors' code evaluates them: three stored factors, left to right.

    Fixed segments, the inverse by eq. 14 from one start value for the whole batch, the skip by conv2d.
    """

    def __init__(self, shape: Shape, iterations: int = 6) -> None:
        super().__init__()
        self.num_landmarks = shape.num_landmarks
        self.iterations = iterations
        self.skip = _conv(shape)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = q.shape[-1] ** -0.25
        q, k = q * scale, k * scale
        B, H, N, D = q.shape
        ql, kl = (x.reshape(B, H, self.num_landmarks, N // self.num_landmarks, D).mean(3) for x in (q, k))
        queries = torch.softmax(q @ kl.mT, dim=-1)
        middle = torch.softmax(ql @ kl.mT, dim=-1)
        keys = torch.softmax(ql @ k.mT, dim=-1)
        out = (queries @ self._inverse(middle)) @ (keys @ v)
        return out if self.skip is None else out + self.skip(v)

    def _inverse(self, a: Tensor) -> Tensor:
        eye = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
        z = a.mT / a.sum(-2).amax()
        for _ in range(self.iterations):
            az = a @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return z


class SharedQueryKey(nn.Module):
    """An attention that makes its keys of the queries, given other ones."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self.core(q, q, v)
        return out


class Given(nn.Module):
    """Stands where a peer's module has a projection and returns what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.value: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.value is not None
        return self.value


class TransformersCore(nn.Module):
    """The attention of transformers' Nyströmformer without its projections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        module = importlib.import_module("transformers.models.nystromformer.modeling_nystromformer")
        config = importlib.import_module("transformers").NystromformerConfig(
            hidden_size=shape.num_heads * shape.head_dim,
            num_attention_heads=shape.num_heads,
            num_landmarks=shape.num_landmarks,
            segment_means_seq_len=shape.length,
            conv_kernel_size=shape.conv_kernel_size,
            attention_probs_dropout_prob=0.0,
        )
        self.core = module.NystromformerSelfAttention(config)
        self.core.query, self.core.key, self.core.value = Given(), Given(), Given()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
        self.core.query.value, self.core.key.value, self.core.value.value = flat
        out: Tensor = self.core(flat[0])[0]
        return out


class NystromAttentionPackage(nn.Module):
    """The attention of the `nystrom-attention` package without its projections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        package = importlib.import_module("nystrom_attention")
        self.core: Any = package.NystromAttention(
            dim=shape.num_heads * shape.head_dim,
            dim_head=shape.head_dim,
            heads=shape.num_heads,
            num_landmarks=shape.num_landmarks,
            residual=shape.conv_kernel_size is not None,
            residual_conv_kernel=shape.conv_kernel_size or 1,
        )
        self.core.to_qkv, self.core.to_out = nn.Identity(), nn.Identity()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.joined(torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], dim=-1))

    def joined(self, qkv: Tensor) -> Tensor:
        """On Q, K and V beside each other in one (B, N, 3·H·D) tensor, as its projection gives them."""
        out: Tensor = self.core(qkv)
        return out


def elementwise(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A control: it reads its input, writes as much, and is linear in the length beyond doubt."""
    return q * k + v


def fused_softmax(q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None) -> Tensor:
    """PyTorch's own kernel for eq. 2, with the padding as a mask of the keys."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None if keep_BN is None else keep_BN[:, None, None])


def installed(package: str) -> bool:
    """Whether a peer's package can be imported."""
    return importlib.util.find_spec(package) is not None


def _conv(shape: Shape) -> nn.Conv2d | None:
    if shape.conv_kernel_size is None:
        return None
    return nn.Conv2d(
        shape.num_heads,
        shape.num_heads,
        kernel_size=(shape.conv_kernel_size, 1),
        padding=(shape.conv_kernel_size // 2, 0),
        groups=shape.num_heads,
        bias=False,
    )
