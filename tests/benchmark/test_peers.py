"""What the attention is measured against computes the same, and time and memory are counted."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nystromformer.attention import create_attention
from nystromformer.benchmark.peers import nystrom_peers
from nystromformer.benchmark.timing import peak_memory, time_side_by_side
from nystromformer.config import attention_config


def qkv() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 64, 4, 16, dtype=torch.float64).transpose(1, 2) for _ in range(3)]


@torch.no_grad()
@pytest.mark.parametrize("peer", nystrom_peers())
def test_an_implementation_computes_what_ours_does(peer: str) -> None:
    config = attention_config("nystrom", num_landmarks=8, conv_kernel_size=5, pinv_start="batch")
    built: Any = nystrom_peers()[peer](config, 4, 16, 64)
    out = built.double()(*qkv())
    ours = create_attention(config, num_heads=4, head_dim=16)
    assert ours.skip is not None
    ours.skip.weight.copy_(next(p for p in built.parameters() if p.ndim == 4))
    out = out if out.ndim == 4 else out.unflatten(2, (4, 16)).transpose(1, 2)
    # nystrom-attention divides by the largest row sum too, which is one up to rounding.
    torch.testing.assert_close(out, ours.double()(*qkv()), rtol=1e-5, atol=1e-5)


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
    assert all(0 <= t["low"] <= t["median"] <= t["high"] for t in timings.values())
