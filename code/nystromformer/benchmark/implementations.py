"""Public implementations of the attentions that are no Nyström attention, each behind `peer(q_BHND, k_BHND, v_BHND)`.

They get projected tensors, as ours do: where a module has projections, it is given their results. Each is built for
what our config says, as near as its own settings come.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.benchmark.peers import Given, installed
from nystromformer.config import AttentionConfig

Call = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """What every implementation is built for."""

    num_heads: int
    head_dim: int
    length: int

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class Implementation:
    """A public implementation of a method."""

    name: str
    """The package, and what of it."""
    package: str
    build: Callable[[AttentionConfig, Sizes], nn.Module]

    @property
    def is_installed(self) -> bool:
        return installed(self.package)


class _Function(nn.Module):
    """A function of Q, K and V."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._call(q, k, v)


class _Flat(nn.Module):
    """A module with projections of its own, whose place is taken by what they would give.

    Args:
        core: its attributes `names` are the projections of queries, keys and values.
        call: from the core and a (B, N, H·D) tensor in the place of its input, the output.
    """

    def __init__(self, core: nn.Module, names: tuple[str, str, str], call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.core, self._call = core, call
        self._given = [Given() for _ in names]
        for name, given in zip(names, self._given, strict=True):
            setattr(core, name, given)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
        for given, x in zip(self._given, flat, strict=True):
            given.value = x
        return self._call(self.core, flat[0])


def _linear(config: AttentionConfig, sizes: Sizes) -> nn.Module:
    attend = importlib.import_module("performer_pytorch.performer_pytorch").linear_attention
    return _Function(lambda q, k, v: attend(F.elu(q) + 1, F.elu(k) + 1, v))


def _performer(config: Any, sizes: Sizes) -> nn.Module:
    """It computes other numbers: its softmax kernel adds an epsilon of 1e-4 to each feature (docs/results.md)."""
    module = importlib.import_module("performer_pytorch.performer_pytorch")
    return module.FastAttention(sizes.head_dim, config.num_features, generalized_attention=config.kernel == "relu")  # type: ignore[no-any-return]


def _linformer(config: Any, sizes: Sizes) -> nn.Module:
    core = importlib.import_module("linformer").LinformerSelfAttention(
        sizes.width, sizes.length, k=config.projected_length, heads=sizes.num_heads
    )
    core.to_out = nn.Identity()
    return _Flat(core, ("to_q", "to_k", "to_v"), lambda core, x: core(x))


def _local(config: Any, sizes: Sizes) -> nn.Module:
    return importlib.import_module("local_attention").LocalAttention(  # type: ignore[no-any-return]
        config.block_size,
        look_backward=config.neighbours,
        look_forward=config.neighbours,
        use_rotary_pos_emb=False,
        autopad=True,
    )


def _lsh_of_transformers(config: Any, sizes: Sizes) -> nn.Module:
    module = importlib.import_module("transformers.models.reformer.modeling_reformer")
    core = module.LSHSelfAttention(
        importlib.import_module("transformers").ReformerConfig(
            num_attention_heads=sizes.num_heads,
            attention_head_size=sizes.head_dim,
            hidden_size=sizes.width,
            lsh_attn_chunk_length=config.chunk_length,
            lsh_attention_probs_dropout_prob=0.0,
            num_hashes=config.num_hashes,
            num_buckets=config.num_buckets or 2 * -(-sizes.length // config.chunk_length),
            max_position_embeddings=sizes.length,
            is_decoder=False,
        ),
        layer_idx=0,
    )
    return _SharedFlat(core)


class _SharedFlat(nn.Module):
    """transformers' LSHSelfAttention, given what its projections would give."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        self._shared, self._values = Given(), Given()
        core.query_key, core.value = self._shared, self._values

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._shared.value, self._values.value = (x.transpose(1, 2).flatten(2) for x in (q, v))
        out: Tensor = self.core(self._shared.value).hidden_states
        return out


def _lsh(config: Any, sizes: Sizes) -> nn.Module:
    core = importlib.import_module("reformer_pytorch").LSHAttention(
        bucket_size=config.chunk_length, n_hashes=config.num_hashes, attend_across_buckets=config.across_buckets
    )
    return _Function(lambda q, k, v: core(q.flatten(0, 1), v.flatten(0, 1))[0].view(q.shape))


def _longformer(config: Any, sizes: Sizes) -> nn.Module:
    module = importlib.import_module("transformers.models.longformer.modeling_longformer")
    core = module.LongformerSelfAttention(
        importlib.import_module("transformers").LongformerConfig(
            hidden_size=sizes.width,
            num_attention_heads=sizes.num_heads,
            attention_window=[config.window],
            attention_probs_dropout_prob=0.0,
        ),
        layer_id=0,
    )
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

    return _Flat(core, ("query", "key", "value"), call)


def _bigbird(config: Any, sizes: Sizes) -> nn.Module:
    module = importlib.import_module("transformers.models.big_bird.modeling_big_bird")
    core = module.BigBirdBlockSparseAttention(
        importlib.import_module("transformers").BigBirdConfig(
            hidden_size=sizes.width,
            num_attention_heads=sizes.num_heads,
            block_size=config.block_size,
            num_random_blocks=config.num_random_blocks,
            max_position_embeddings=sizes.length,
        )
    )

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

    return _Flat(core, ("query", "key", "value"), call)


def _sinkhorn(config: Any, sizes: Sizes) -> nn.Module:
    module = importlib.import_module("sinkhorn_transformer.sinkhorn_transformer")
    settings = {
        "temperature": config.temperature,
        "sinkhorn_iter": config.iterations,
        "non_permutative": False,
    }
    return module.SinkhornAttention(  # type: ignore[no-any-return]
        config.block_size, sizes.width, sizes.head_dim, sizes.num_heads, sizes.length, **settings
    )


IMPLEMENTATIONS: Mapping[str, tuple[Implementation, ...]] = {
    "linear": (Implementation("performer-pytorch, linear_attention", "performer_pytorch", _linear),),
    "performer": (Implementation("performer-pytorch, FastAttention", "performer_pytorch", _performer),),
    "linformer": (Implementation("linformer, LinformerSelfAttention", "linformer", _linformer),),
    "local": (Implementation("local-attention", "local_attention", _local),),
    "longformer": (Implementation("transformers, LongformerSelfAttention", "transformers", _longformer),),
    "bigbird": (Implementation("transformers, BigBird block sparse", "transformers", _bigbird),),
    "sinkhorn": (Implementation("sinkhorn-transformer", "sinkhorn_transformer", _sinkhorn),),
    "reformer": (
        Implementation("transformers, LSHSelfAttention", "transformers", _lsh_of_transformers),
        Implementation("reformer-pytorch, LSHAttention", "reformer_pytorch", _lsh),
    ),
}
"""By attention. Of those that are not named no public implementation that can be installed is known."""
