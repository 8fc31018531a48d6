"""What is compared: attentions by their settings, softmax written out, public implementations, and a control.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import Attention, create_attention
from nystromformer.benchmark.peers import Peer, WrittenOutSoftmax, nystrom_peers
from nystromformer.config import ATTENTIONS, AttentionConfig, NystromConfig, attention_config
from nystromformer.config.attention_text import parse_attention

SDPA, WRITTEN_OUT, CONTROL = "softmax (SDPA)", "softmax, written out", "elementwise control"
MASKED = ", padding mask"
"""Behind a method's name where the last tenth of the tokens is padding."""
EQUAL_KEYS = (
    *("near_far,num_landmarks=16,num_blocks=2", "local,block_size=64", "longformer,window=192"),
    *("bigbird,block_size=32,num_random_blocks=1", "nystrom", "nystrom,num_landmarks=N/8"),
)
"""Attentions of 192 keys per query, and Nyström's beside them."""
_PAPERS = ("nystrom,num_landmarks=32", "longformer,window=256")
"""Further ones of the paper's Table 1."""


def expand(texts: Iterable[str]) -> list[str]:
    """`local,block_size=4/8` is `local,block_size=4` and `local,block_size=8`; `N/8` stays."""
    found = []
    for text in texts:
        if text.startswith("{"):
            found.append(text)
            continue
        parts = []
        for part in text.split(","):
            key, sign, values = part.partition("=")
            parts.append([f"{key}={value}" for value in re.split("(?<!N)/", values)] if sign else [part])
        found += [",".join(chosen) for chosen in itertools.product(*parts)]
    return found


def parse_at(text: str, length: int) -> tuple[AttentionConfig, Mapping[str, Any], str]:
    """An attention as `--attention` names it, at a length, of which `N/8` is an eighth; what the text tells of its
    parameters; and its name in a table.
    """
    share = r"(\w+)=N/([1-9]\d*)"
    config, parameters = parse_attention(
        re.sub(share, lambda found: f"{found[1]}={max(1, length // int(found[2]))}", text)
    )
    shown = {**parameters, **{key: f"N/{divisor}" for key, divisor in re.findall(share, text)}}
    return config, parameters, label_attention(config.name, shown)


def label_attention(name: str, parameters: Mapping[str, object]) -> str:
    """Such as `local (block_size 4)`."""
    shown = ", ".join(f"{key} {value}" for key, value in parameters.items())
    return f"{name} ({shown})" if shown else name


@dataclass(frozen=True)
class Method:
    """A row of the comparison."""

    name: str
    build: Callable[[int, int, int], Peer]
    """An attention of so many heads, of their width, for rows of so many tokens."""
    why_not: str | None = None
    """Why it cannot be measured at the length; None where it can."""


def choose_methods(attentions: Sequence[str], peers: bool, length: int) -> list[Method]:
    """The methods that `--attention` asks for, all where it does not, behind the two softmaxes; the control is last.

    Args:
        peers: behind Nyström attention its public implementations; softmax and Nyström also with padding.
    """
    softmax = attention_config("softmax")
    found = [*_ours(SDPA, softmax, peers, length), Method(WRITTEN_OUT, lambda *shape: WrittenOutSoftmax())]
    for text in dict.fromkeys(expand(attentions or sorted({*ATTENTIONS, *EQUAL_KEYS, *_PAPERS}))):
        config, _, name = parse_at(text, length)
        if config == softmax:
            continue
        found += _ours(name, config, peers and isinstance(config, NystromConfig), length)
        if peers and isinstance(config, NystromConfig):
            landmarks = config.num_landmarks
            fits = length > landmarks and not length % landmarks
            why_not = None if fits else f"expected a multiple of {landmarks} landmarks, larger than it"
            for peer, build in nystrom_peers().items():
                if peer != "transformers" or config.conv_kernel_size is not None:  # it always has a convolution
                    found.append(Method(f"{peer}, {landmarks}", partial(build, config), why_not))
    return [*found, Method(CONTROL, lambda *shape: lambda q, k, v: q * k + v)]


def _ours(name: str, config: AttentionConfig, padded: bool, length: int) -> list[Method]:
    """An attention, and perhaps the same with padding."""

    def build(masked: bool, heads: int, head_dim: int, length: int) -> Peer:
        return Attending(create_attention(config, num_heads=heads, head_dim=head_dim, max_length=length), masked)

    why_not = next((text for _, text in config.impossible_at(length)), None)
    plain = Method(name, partial(build, False), why_not)
    return [plain, Method(f"{name}{MASKED}", partial(build, True), why_not)] if padded else [plain]


class Attending(nn.Module):
    """An attention behind a peer's call.

    Args:
        padded: whether the last tenth of the rows is padding; each call makes the mask, as in an encoder of one layer.
    """

    def __init__(self, core: Attention, padded: bool) -> None:
        super().__init__()
        self.core, self._padded = core, padded

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, _, N, _ = q.shape
        keep_BN = (torch.arange(N, device=q.device) < N - N // 10).expand(B, -1) if self._padded else None
        out: Tensor = self.core(q, q if self.core.needs.shared_query_key else k, v, keep_BN)
        return out
