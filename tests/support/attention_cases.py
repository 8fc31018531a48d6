"""Which attentions the shared suite runs, each with its own oracle."""

import copy
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import Attention, AttentionMask, NystromAttention, create_attention, reference
from nystromformer.attention.base import Holds
from nystromformer.attention.bigbird import BigBirdAttention
from nystromformer.attention.local import LocalAttention
from nystromformer.attention.reformer import ReformerAttention
from nystromformer.attention.registry import register_from_file
from nystromformer.attention.sparse import SparseAttention
from nystromformer.config.attention_text import parse_attention

HEADS, DIM = 2, 8
LONGEST = 8192
"""Tokens of the longest input that a method is to learn something for."""


class SharedFromTwo(Attention):
    """An attention whose queries are its keys, as one of any three tensors: of their dimensions half are q's and half
    are k's, so that both matter."""

    def __init__(self, core: Attention) -> None:
        nn.Module.__init__(self)
        self.core, self.needs = core, core.needs  # type: ignore[misc]
        self.config, self.num_heads, self.head_dim = core.config, core.num_heads, core.head_dim

    @property
    def holds(self) -> Holds:
        return self.core.holds

    @property
    def skip(self) -> nn.Module | None:  # type: ignore[override]
        return self.core.skip

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
        shared = shared_of(q, k) if q.shape == k.shape else None
        out: Tensor = self.core(q if shared is None else shared, k if shared is None else shared, v, *rest, **options)
        return out

    def weights(self, q: Tensor, k: Tensor, *rest: Any, **options: Any) -> Tensor:
        shared = shared_of(q, k)
        return self.core.weights(shared, shared, *rest, **options)

    def mean_weights(self, q: Tensor, k: Tensor, *rest: Any) -> Tensor:
        shared = shared_of(q, k)
        return self.core.mean_weights(shared, shared, *rest)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        raise NotImplementedError


def shared_of(q: Tensor, k: Tensor) -> Tensor:
    return torch.where(torch.arange(q.shape[-1]) % 2 == 0, q, k)


Oracle = Callable[[Attention, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""From the module, whose learned and random numbers it reads, q, k, v and the mask; float64."""


@dataclass(frozen=True)
class Case:
    """An attention with settings, and its oracle; one that shares queries and keys is built as `SharedFromTwo`."""

    id: str
    name: str
    oracle: Oracle
    parameters: dict[str, Any] = field(default_factory=dict)

    def build(self, dtype: torch.dtype = torch.float32) -> Attention:
        torch.manual_seed(1)
        sizes = {"num_heads": HEADS, "head_dim": DIM, "max_length": LONGEST}
        module = create_attention(self.name, **sizes, **self.parameters).to(dtype)
        return SharedFromTwo(module) if module.needs.shared_query_key else module

    def expected(self, module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """The oracle's output in float64, with the module's own convolution where it has one."""
        keep = None if module.config.ignore_mask else keep
        out = self.oracle(module, q, k, v, keep)
        if module.skip is not None:
            out = out + reference.depthwise_convolution(v, module.skip.weight, keep)
        return out


def oracle_of(function: Callable[..., Tensor], *names: str, **own_names: str) -> Oracle:
    """A function of `reference`, which is given these of the module's parameters or numbers, some under names of its
    own."""

    def oracle(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        known = {**vars(module.config), **dict(module.named_parameters()), **dict(module.named_buffers())}
        settings = {name: known[its] for name, its in ({name: name for name in names} | own_names).items()}
        return function(q, k, v, keep, **settings)

    return oracle


_softmax = oracle_of(reference.softmax_attention)
_linear = oracle_of(reference.linear_attention)
_performer = oracle_of(reference.performer_attention, features="features_MD")
_linformer = oracle_of(reference.linformer_attention, keys_GKL="key_projection_GKL", values_GKL="value_projection_GKL")
_piecewise = oracle_of(reference.piecewise_attention, keys_HSD="key_weight_HSD", values_HSD="value_weight_HSD")
_synthesizer = oracle_of(reference.synthesizer_attention, "weight_HLD")
_sinkhorn = oracle_of(reference.sinkhorn_attention, "block_size", "iterations", "temperature")
_longformer = oracle_of(reference.longformer_attention, "window", num_first="num_global_tokens")
_near_far = oracle_of(
    reference.near_far_attention, "block_size", "neighbours", "num_landmarks", "num_selected", "num_blocks"
)
_mra = oracle_of(reference.mra_attention, "block_size", "num_blocks", "neighbours")


def _local(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, LocalAttention)
    size, neighbours = module.config.block_size, module.config.neighbours

    def allowed(count: int, head: int) -> Tensor:
        blocks = torch.arange(count) // size
        return (blocks[:, None] - blocks).abs() <= neighbours

    return reference.pattern_attention(q, k, v, keep, allowed=allowed)


def _sparse(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, SparseAttention)
    stride = module.config.stride

    def allowed(count: int, head: int) -> Tensor:
        i, j = torch.arange(count)[:, None], torch.arange(count)
        return ((i - j).abs() <= stride) | ((i - j) % stride == 0)

    return reference.pattern_attention(q, k, v, keep, allowed=allowed)


def bigbird(
    module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, is_global: Tensor | None = None
) -> Tensor:
    """The oracle of BigBird; `is_global`: tokens of the rows that are marked, all of equally many valid ones, (n,)."""
    assert isinstance(module, BigBirdAttention)
    sizes = module.config.block_size, module.config.num_window_blocks, module.config.num_global_blocks

    def allowed(count: int, head: int) -> Tensor:
        return reference.bigbird_pattern(count, module.salts_HR[head].tolist(), *sizes, is_global)

    return reference.pattern_attention(q, k, v, keep, allowed=allowed)


def _reformer(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, SharedFromTwo)
    core = module.core
    assert isinstance(core, ReformerAttention)
    sizes = core.config.model_dump(include={"chunk_length", "across_buckets"})
    return reference.reformer_attention(shared_of(q, k), v, keep, rotations=core.rotations_RDK, **sizes)


def _nystrom(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    assert isinstance(module, NystromAttention)
    config = module.config
    rule = reference.strided_tokens if config.landmarks == "strided" else reference.segment_means
    sizes = {"num_landmarks": config.num_landmarks, "iterations": config.pinv_iterations}
    return reference.nystrom_attention(q, k, v, keep, **sizes, landmarks=rule)


def _case(id: str, oracle: Oracle, **parameters: Any) -> Case:
    """A case of the attention that its id begins with."""
    return Case(id, re.split("[+-]", id)[0], oracle, parameters)


CASES = [
    _case("softmax", _softmax),
    _case("softmax+conv", _softmax, conv_kernel_size=3),
    _case("softmax+conv-unmasked", _softmax, conv_kernel_size=3, ignore_mask=True),
    _case("linear", _linear),
    _case("linear+conv", _linear, conv_kernel_size=3),
    _case("performer", _performer, num_features=12),
    _case("performer+conv", _performer, num_features=8, conv_kernel_size=3),
    _case("linformer", _linformer, projected_length=6),
    _case("linformer+conv", _linformer, projected_length=6, conv_kernel_size=3),
    _case("conv_linformer", _piecewise, stride=4),
    _case("conv_linformer+conv", _piecewise, stride=5, conv_kernel_size=3),
    _case("local", _local, block_size=6),
    _case("local+conv", _local, block_size=5, conv_kernel_size=3),
    _case("local-alone", _local, block_size=8, neighbours=0),
    _case("sparse", _sparse, stride=6),
    _case("sparse+conv", _sparse, stride=5, conv_kernel_size=3),
    _case("bigbird", bigbird, block_size=4, num_random_blocks=2),
    _case(
        "bigbird+conv",
        bigbird,
        block_size=3,
        num_window_blocks=5,
        num_random_blocks=1,
        num_global_blocks=0,
        conv_kernel_size=3,
    ),
    _case("longformer", _longformer, window=6, num_global_tokens=2),
    _case("longformer+conv", _longformer, window=24, conv_kernel_size=3),
    _case("longformer-windows", _longformer, window=8, num_global_tokens=0),
    _case("reformer", _reformer, chunk_length=6),
    _case("reformer+conv", _reformer, chunk_length=5, num_hashes=3, conv_kernel_size=3),
    _case("reformer-across", _reformer, chunk_length=8, across_buckets=True),
    _case("reformer-one", _reformer, chunk_length=1, num_hashes=1),
    _case("sinkhorn", _sinkhorn, block_size=6),
    _case("sinkhorn+conv", _sinkhorn, block_size=5, iterations=3, conv_kernel_size=3),
    _case("sinkhorn-sharp", _sinkhorn, block_size=8, iterations=10, temperature=0.1),
    _case("synthesizer", _synthesizer),
    _case("synthesizer+conv", _synthesizer, conv_kernel_size=3),
    _case("mra", _mra, block_size=4, num_blocks=2),
    _case("mra+conv", _mra, block_size=3, num_blocks=5, neighbours=1, conv_kernel_size=3),
    _case("near_far", _near_far, block_size=4, num_landmarks=5, num_selected=3),
    _case("near_far+conv", _near_far, block_size=5, neighbours=0, num_landmarks=2, num_selected=0, conv_kernel_size=3),
    _case("near_far-blocks", _near_far, block_size=3, num_landmarks=6, num_selected=2, num_blocks=2),
    _case("nystrom", _nystrom, num_landmarks=8),
    _case("nystrom+conv", _nystrom, num_landmarks=8, conv_kernel_size=5),
    _case("nystrom-strided", _nystrom, num_landmarks=8, landmarks="strided"),
    _case("nystrom-3-iterations", _nystrom, num_landmarks=5, pinv_iterations=3),
]


def itself(module: Attention, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    """The oracle of an attention that has none: what it does with the valid tokens of each row alone, in float64."""
    method = copy.deepcopy(module).double()
    if isinstance(method, SharedFromTwo):
        q = k = shared_of(q, k)
        method = method.core
    out = torch.zeros(v.shape, dtype=torch.float64)
    for row in range(len(q)):
        kept = torch.arange(q.shape[2]) if keep is None else keep[row].nonzero()[:, 0]
        if len(kept):
            out[row][:, kept] = method.attend(*(x[row, :, kept][None].double() for x in (q, k, v)), None)[0]
    return out


if own := os.environ.get("NYSTROM_ATTENTION"):
    file, name, rest = re.fullmatch(r"(.+\.py):(\w+)(.*)", own).groups()
    config, parameters = parse_attention(register_from_file(Path(file), name) + rest)
    CASES = [Case(config.name, config.name, itself, parameters)]
FIRST = list({case.name: case for case in reversed(CASES)}.values())
"""Of each attention."""


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
