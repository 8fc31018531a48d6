"""What attentions are measured against, each behind `peer(q_BHND, k_BHND, v_BHND) -> output`.

They get projected tensors, as ours do: where a module has projections, it is given their results. Each is built for
what our config says, as near as its own settings come.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, K taps.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.config import AttentionConfig

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


class _Placeholder(nn.Module):
    """Stands where a peer's module has a projection and returns what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.value: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.value is not None
        return self.value


class Unprojected(nn.Module):
    """A module with projections of its own, whose place is taken by what they would give.

    Args:
        core: its attributes `names` are the projections of queries, keys and values; None: it has none of these.
        call: from the core and a (B, N, H·D) tensor in the place of its input, the output.
    """

    def __init__(self, core: Any, names: Sequence[str | None], call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.core, self._call, self._names = core, call, names
        for name in names:
            if name is not None:
                setattr(core, name, _Placeholder())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
        for name, x in zip(self._names, flat, strict=True):
            if name is not None:
                getattr(self.core, name).value = x
        return self._call(self.core, flat[0])


def _nystrom_of_transformers(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    settings = _transformers("NystromformerConfig")(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        num_landmarks=config.num_landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=config.conv_kernel_size,
        attention_probs_dropout_prob=0.0,
    )
    core = _transformers("NystromformerSelfAttention", "nystromformer")(settings)
    return Unprojected(core, ("query", "key", "value"), lambda core, x: core(x)[0])


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


def _transformers(name: str, model: str | None = None) -> Any:
    """A class of transformers, or of one of its models."""
    module = "transformers" if model is None else f"transformers.models.{model}.modeling_{model}"
    return getattr(importlib.import_module(module), name)


def _linear(config: AttentionConfig, heads: int, head_dim: int, length: int) -> Peer:
    attend = importlib.import_module("performer_pytorch.performer_pytorch").linear_attention
    return lambda q, k, v: attend(F.elu(q) + 1, F.elu(k) + 1, v)


def _performer(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    """It computes other numbers: its softmax kernel adds an epsilon of 1e-4 to each feature (docs/results/speed.md)."""
    module: Any = importlib.import_module("performer_pytorch.performer_pytorch")
    peer: Peer = module.FastAttention(head_dim, config.num_features, generalized_attention=config.kernel == "relu")
    return peer


def _linformer(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    core = importlib.import_module("linformer").LinformerSelfAttention(
        heads * head_dim, length, k=config.projected_length, heads=heads
    )
    core.to_out = nn.Identity()
    return Unprojected(core, ("to_q", "to_k", "to_v"), lambda core, x: core(x))


def _local(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    peer: Peer = importlib.import_module("local_attention").LocalAttention(
        config.block_size,
        look_backward=config.neighbours,
        look_forward=config.neighbours,
        use_rotary_pos_emb=False,
        autopad=True,
    )
    return peer


def _lsh_of_transformers(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    settings = _transformers("ReformerConfig")(
        num_attention_heads=heads,
        attention_head_size=head_dim,
        hidden_size=heads * head_dim,
        lsh_attn_chunk_length=config.chunk_length,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=config.num_hashes,
        num_buckets=config.num_buckets or 2 * -(-length // config.chunk_length),
        max_position_embeddings=length,
        is_decoder=False,
    )
    core = _transformers("LSHSelfAttention", "reformer")(settings, layer_idx=0)
    return Unprojected(core, ("query_key", None, "value"), lambda core, x: core(x).hidden_states)


def _lsh(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    core = importlib.import_module("reformer_pytorch").LSHAttention(
        bucket_size=config.chunk_length, n_hashes=config.num_hashes, attend_across_buckets=config.across_buckets
    )
    return lambda q, k, v: core(q.flatten(0, 1), v.flatten(0, 1))[0].view(q.shape)


def _longformer(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    settings = _transformers("LongformerConfig")(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        attention_window=[config.window],
        attention_probs_dropout_prob=0.0,
    )
    core = _transformers("LongformerSelfAttention", "longformer")(settings, layer_id=0)
    for unused in (core.query_global, core.key_global, core.value_global):
        unused.requires_grad_(False)

    def call(core: Any, x: Tensor) -> Tensor:
        # It projects with the tokens in front, and divides the queries in place.
        for given in (core.query, core.key, core.value):
            given.value = given.value.transpose(0, 1)
        core.query.value = core.query.value.clone()
        # No token is hidden, and none global: for these it has other projections.
        zeros_BN, none_BN = x.new_zeros(x.shape[:2]), torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        masks = {"attention_mask": zeros_BN, "is_index_masked": none_BN, "is_index_global_attn": none_BN}
        out: Tensor = core(x, **masks, is_global_attn=False)[0]
        return out

    return Unprojected(core, ("query", "key", "value"), call)


def _bigbird(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    settings = _transformers("BigBirdConfig")(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        block_size=config.block_size,
        num_random_blocks=config.num_random_blocks,
        max_position_embeddings=length,
    )
    core = _transformers("BigBirdBlockSparseAttention", "big_bird")(settings)

    def call(core: Any, x: Tensor) -> Tensor:
        ones_BN = x.new_ones(x.shape[:2])
        blocked_BCS = ones_BN.view(len(x), -1, config.block_size)
        around_BCK = torch.cat([blocked_BCS[:, first : first - 4 or None] for first in (1, 2, 3)], dim=2)
        masks = {
            "band_mask": (blocked_BCS[:, 2:-2, :, None] * around_BCK[:, :, None])[:, None],
            "from_mask": ones_BN[:, None, :, None],
            "to_mask": ones_BN[:, None, None],
            "from_blocked_mask": blocked_BCS,
            "to_blocked_mask": blocked_BCS,
        }
        out: Tensor = core(x, **masks)[0]
        return out

    return Unprojected(core, ("query", "key", "value"), call)


def _sinkhorn(config: Any, heads: int, head_dim: int, length: int) -> Peer:
    settings = {"temperature": config.temperature, "sinkhorn_iter": config.iterations, "non_permutative": False}
    module = importlib.import_module("sinkhorn_transformer.sinkhorn_transformer")
    peer: Peer = module.SinkhornAttention(config.block_size, heads * head_dim, head_dim, heads, length, **settings)
    return peer


_KNOWN: Mapping[str, Mapping[str, tuple[str, Callable[[Any, int, int, int], Peer]]]] = {
    "nystrom": {
        "authors' formulation": ("torch", MaterialisedNystrom),
        "transformers": ("transformers", _nystrom_of_transformers),
        "nystrom-attention": ("nystrom_attention", _NystromAttentionPackage),
    },
    "linear": {"performer-pytorch, linear_attention": ("performer_pytorch", _linear)},
    "performer": {"performer-pytorch, FastAttention": ("performer_pytorch", _performer)},
    "linformer": {"linformer, LinformerSelfAttention": ("linformer", _linformer)},
    "local": {"local-attention": ("local_attention", _local)},
    "longformer": {"transformers, LongformerSelfAttention": ("transformers", _longformer)},
    "bigbird": {"transformers, BigBird block sparse": ("transformers", _bigbird)},
    "sinkhorn": {"sinkhorn-transformer": ("sinkhorn_transformer", _sinkhorn)},
    "reformer": {
        "transformers, LSHSelfAttention": ("transformers", _lsh_of_transformers),
        "reformer-pytorch, LSHAttention": ("reformer_pytorch", _lsh),
    },
}
"""By attention and by name: the package, and what builds it of the attention's config, the number of heads, their width
and the length. Of those that are not named no public implementation that can be installed is known.
"""


def installed_peers(attention: str) -> dict[str, Callable[[Any, int, int, int], Peer]]:
    """The public implementations of an attention that can be imported."""
    known = _KNOWN.get(attention, {}).items()
    return {name: build for name, (package, build) in known if importlib.util.find_spec(package) is not None}
