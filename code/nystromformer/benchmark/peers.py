"""What attentions are measured against, each behind `peer(q_BHND, k_BHND, v_BHND) -> output`: softmax written out, and
the public implementations of Nyström attention that can be installed.

They get projected tensors, as ours do. Each is built for what our config says, as near as its own settings come.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, K taps.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Peer = Callable[[Tensor, Tensor, Tensor], Tensor]


class WrittenOutSoftmax(nn.Module):
    """softmax(QKᵀ/√D) V with the N x N matrix in memory (eq. 2)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


class MaterialisedNystrom(nn.Module):
    """The paper's formulas as they stand, as the authors' code evaluates them: three stored factors, left to right.

    Fixed segments, the inverse by eq. 14 from one start value for the whole batch, the skip by conv2d.
    """

    def __init__(self, config: Any, heads: int, head_dim: int, length: int) -> None:
        super().__init__()
        self.num_landmarks, K = config.num_landmarks, config.conv_kernel_size
        conv = None if K is None else nn.Conv2d(heads, heads, (K, 1), padding=(K // 2, 0), groups=heads, bias=False)
        self.skip = conv

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
        for _ in range(6):
            az = a @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return z


class _Given(nn.Module):
    """Stands where a peer's module has a projection and returns what it was given."""

    value: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class _Transformers(nn.Module):
    """transformers' attention without its projections."""

    def __init__(self, config: Any, heads: int, head_dim: int, length: int) -> None:
        from transformers import NystromformerConfig
        from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

        super().__init__()
        settings = NystromformerConfig(
            hidden_size=heads * head_dim,
            num_attention_heads=heads,
            num_landmarks=config.num_landmarks,
            segment_means_seq_len=length,
            conv_kernel_size=config.conv_kernel_size,
            attention_probs_dropout_prob=0.0,
        )
        attention: Any = NystromformerSelfAttention
        self.core = attention(settings)
        self.core.query, self.core.key, self.core.value = _Given(), _Given(), _Given()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for given, x in zip((self.core.query, self.core.key, self.core.value), (q, k, v), strict=True):
            given.value = x.transpose(1, 2).flatten(2)
        out: Tensor = self.core(self.core.query.value)[0]
        return out


class _NystromAttentionPackage(nn.Module):
    """The attention of the `nystrom-attention` package without its projections."""

    def __init__(self, config: Any, heads: int, head_dim: int, length: int) -> None:
        super().__init__()
        self.core: Any = importlib.import_module("nystrom_attention").NystromAttention(
            dim=heads * head_dim,
            dim_head=head_dim,
            heads=heads,
            num_landmarks=config.num_landmarks,
            residual=config.conv_kernel_size is not None,
            residual_conv_kernel=config.conv_kernel_size or 1,
        )
        self.core.to_qkv, self.core.to_out = nn.Identity(), nn.Identity()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self.core(torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], dim=-1))
        return out


def nystrom_peers() -> dict[str, Callable[[Any, int, int, int], Peer]]:
    """What builds each implementation that can be imported, of a Nyström attention's config, the number of heads, their
    width and the length.
    """
    known = {
        "authors' formulation": ("torch", MaterialisedNystrom),
        "transformers": ("transformers", _Transformers),
        "nystrom-attention": ("nystrom_attention", _NystromAttentionPackage),
    }
    return {name: build for name, (package, build) in known.items() if importlib.util.find_spec(package) is not None}
