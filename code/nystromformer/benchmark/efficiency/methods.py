"""What is compared: attentions by their settings, softmax written out, public implementations, and a control.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.peers import (
    IMPLEMENTATIONS,
    MaterialisedNystrom,
    NystromAttentionPackage,
    Peer,
    Shape,
    SharedQueryKey,
    WrittenOutSoftmax,
    elementwise,
    is_installed,
    transformers_nystrom,
)
from nystromformer.config import ATTENTIONS, AttentionConfig, NystromConfig, attention_config
from nystromformer.config.attention_text import parse_attention

SDPA, WRITTEN_OUT, CONTROL = "softmax (SDPA)", "softmax, written out", "elementwise control"
BASELINES = (SDPA, WRITTEN_OUT)
"""What times and memory are divided by."""
MASKED = ", padding mask"
"""Behind a method's name where the last tenth of the tokens is padding."""
AUTHORS = "authors' formulation"
_PAPERS = {"nystrom": ("nystrom,num_landmarks=32",), "longformer": ("longformer,window=256",)}
"""Behind an attention with its defaults, others of the paper's Table 1."""

Build = Callable[[int, int, int], Peer]
"""An attention of so many heads, of their width, for rows of so many tokens."""


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    config: AttentionConfig | None
    """None: one that no config.json names."""
    build: Build
    multiple_of: int = 1
    """What the length has to be."""

    def why_not(self, length: int) -> str | None:
        """Why it cannot be measured at a length; None where it can."""
        if self.config is None:
            wrong = self.multiple_of > 1 and (length % self.multiple_of or length == self.multiple_of)
            return f"expected a multiple of {self.multiple_of} landmarks, larger than it" if wrong else None
        if reason := self.config.why_not_length(length):
            return reason
        return next((text for _, text in self.config.impossible_at(length)), None)


def choose_methods(attentions: Sequence[str], peers: bool = False) -> list[Method]:
    """The methods that `--attention` asks for, all where it does not, behind the two softmaxes; the control is last.

    Args:
        peers: behind each attention its public implementations, and the same with padding.

    Raises:
        UserError: an unknown attention, or parameters that it does not take.
    """
    softmax = _method(SDPA, attention_config("softmax"))
    found = [softmax, Method(WRITTEN_OUT, None, lambda heads, head_dim, length: WrittenOutSoftmax())]
    found += [_padded(softmax)] if peers else []
    for text in attentions or [text for name in ATTENTIONS for text in (name, *_PAPERS.get(name, ()))]:
        method = parse_method(text)
        if method.config not in [other.config for other in found]:
            found += [method, *(_peers_of(method) if peers else ())]
    return [*found, Method(CONTROL, None, lambda heads, head_dim, length: elementwise)]


def parse_method(text: str) -> Method:
    """An attention and its parameters, as `parse_attention` takes them.

    Raises:
        UserError: as `choose_methods`.
    """
    config, parameters = parse_attention(text)
    return _method(label_attention(config.name, parameters), config)


def label_attention(name: str, parameters: Mapping[str, object]) -> str:
    """Such as `local (block_size 4)`."""
    shown = ", ".join(f"{key} {value}" for key, value in parameters.items())
    return f"{name} ({shown})" if shown else name


def _method(name: str, config: AttentionConfig) -> Method:
    def build(heads: int, head_dim: int, length: int) -> Peer:
        module = create_attention(config, num_heads=heads, head_dim=head_dim, max_length=length)
        return SharedQueryKey(module) if module.needs.shared_query_key else module

    return Method(name, config, build)


def _padded(method: Method) -> Method:
    """The attention alone, with padding, whose mask is made in each call, as in an encoder of one layer."""
    return replace(
        method, name=f"{method.name}{MASKED}", config=None, build=lambda *shape: Padded(method.build(*shape))
    )


class Padded(nn.Module):
    """An attention to rows whose last tenth is padding."""

    def __init__(self, core: Callable[..., Tensor]) -> None:
        super().__init__()
        self.core = core

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, _, N, _ = q.shape
        keep_BN = (torch.arange(N, device=q.device) < N - N // 10).expand(B, -1)
        return self.core(q, k, v, AttentionMask(keep_BN))


def _peers_of(method: Method) -> Iterator[Method]:
    config = method.config
    assert config is not None
    if not isinstance(config, NystromConfig):
        for one in IMPLEMENTATIONS.get(config.name, ()):
            if one.is_installed:
                yield Method(one.name, None, partial(one.build, config))
        return
    yield _padded(method)
    names: dict[str, Callable[[Shape], Peer]] = {AUTHORS: MaterialisedNystrom}
    if config.conv_kernel_size is not None:  # that of transformers always has a convolution
        names["transformers"] = transformers_nystrom
    if is_installed("nystrom_attention"):
        names["nystrom-attention"] = NystromAttentionPackage
    for name, peer in names.items():
        yield Method(f"{name}, {config.num_landmarks}", None, _nystrom_peer(peer, config), config.num_landmarks)


def _nystrom_peer(peer: Callable[[Shape], Peer], config: NystromConfig) -> Build:
    return lambda heads, head_dim, length: peer(
        Shape(heads, head_dim, config.num_landmarks, config.conv_kernel_size, length)
    )
