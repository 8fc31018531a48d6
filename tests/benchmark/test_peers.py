"""What the attention is measured against computes the same, and time and memory are counted."""

import pytest
import torch
from torch import Tensor

from nystromformer.attention import create_attention, reference
from nystromformer.benchmark.peers import (
    IMPLEMENTATIONS,
    Implementation,
    MaterialisedNystrom,
    NystromAttentionPackage,
    Shape,
    WrittenOutSoftmax,
    is_installed,
    transformers_nystrom,
)
from nystromformer.benchmark.timing import peak_memory, time_side_by_side
from nystromformer.config import attention_config

SHAPE = Shape(num_heads=2, head_dim=8, num_landmarks=8, conv_kernel_size=5, length=64)


def qkv() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 64, 2, 8, dtype=torch.float64).transpose(1, 2) for _ in range(3)]


@pytest.mark.parametrize("name", ["authors", "transformers", "nystrom_attention"])
def test_peers_are_the_same_attention(name: str) -> None:
    if name == "nystrom_attention" and not is_installed(name):
        pytest.skip("nystrom-attention is not installed")
    build = {
        "authors": MaterialisedNystrom,
        "transformers": transformers_nystrom,
        "nystrom_attention": NystromAttentionPackage,
    }
    peer = build[name](SHAPE).double()
    ours = create_attention("nystrom", num_heads=2, head_dim=8, num_landmarks=8, conv_kernel_size=5, pinv_start="batch")
    assert ours.skip is not None
    with torch.no_grad():
        ours.skip.weight.copy_(next(p for p in peer.parameters() if p.ndim == 4))
    x = qkv()
    out = peer(*x)
    if out.ndim == 3:
        out = out.unflatten(2, (2, 8)).transpose(1, 2)
    # nystrom-attention divides by the largest row sum too, which is one up to rounding.
    torch.testing.assert_close(out, ours.double()(*x), rtol=1e-5, atol=1e-6)


INSTALLED = [(name, one) for name, ones in IMPLEMENTATIONS.items() for one in ones if is_installed(one.package)]
SMALL = {
    "local": {"block_size": 8},
    "linformer": {"projected_length": 8, "sharing": "layer"},
    "longformer": {"window": 16, "num_global_tokens": 0},
    "bigbird": {"block_size": 4},
    "reformer": {"chunk_length": 16},
    "sinkhorn": {"block_size": 16},
}
"""Settings for 64 tokens."""
SAME = ("linear", "local", "longformer")
"""What learns nothing and draws nothing: there the public implementation computes the same."""


@pytest.mark.parametrize(("name", "implementation"), INSTALLED, ids=[one.name for _, one in INSTALLED])
def test_an_implementation_takes_what_ours_takes(name: str, implementation: Implementation) -> None:
    config = attention_config(name, **SMALL.get(name, {}))
    x = [torch.randn(2, 64, 4, 16).transpose(1, 2) for _ in range(3)]
    out = implementation.build(config, 4, 16, 64)(*x)
    assert out.shape in ((2, 4, 64, 16), (2, 64, 64))
    if name in SAME:
        out = out if out.ndim == 4 else out.unflatten(2, (4, 16)).transpose(1, 2)
        torch.testing.assert_close(out, create_attention(config, num_heads=4, head_dim=16)(*x), rtol=1e-4, atol=1e-4)


def test_softmax_written_out_is_softmax() -> None:
    torch.testing.assert_close(WrittenOutSoftmax()(*qkv()), reference.softmax_attention(*qkv()))


def test_peak_memory_counts_what_lives_together() -> None:
    def work() -> None:
        first = torch.ones(2**20)  # 4 MiB
        second = first + 1  # 8 MiB together
        del first
        third = second + 1  # 8 MiB again
        del second, third

    assert 7.9 < peak_memory(work) < 8.5


def test_timings_are_of_every_work() -> None:
    calls: list[str] = []
    timings = time_side_by_side({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=9, warmup=1)
    pairs = ["".join(calls[place : place + 2]) for place in range(0, len(calls), 2)]
    # Neither is always the one that finds what the other left in the caches.
    assert len(pairs) == 10
    assert set(pairs) == {"ab", "ba"}
    assert all(0 <= t.low <= t.median <= t.high for t in timings.values())
