"""What the attention is measured against computes the same, and time and memory are counted."""

import pytest
import torch
from torch import Tensor

from nystromformer.attention import create_attention, reference
from nystromformer.benchmark.peers import WrittenOutSoftmax, installed_peers
from nystromformer.benchmark.timing import peak_memory, time_side_by_side
from nystromformer.config import ATTENTIONS, attention_config

SMALL = {
    "nystrom": {"num_landmarks": 8, "conv_kernel_size": 5, "pinv_start": "batch"},
    "linformer": {"projected_length": 8, "sharing": "layer"},
    "reformer": {"chunk_length": 16},
}
"""Settings for 64 tokens."""
INSTALLED = [(name, one) for name in ATTENTIONS for one in installed_peers(name)]


def qkv() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 64, 4, 16, dtype=torch.float64).transpose(1, 2) for _ in range(3)]


def test_what_every_environment_has() -> None:
    assert {"authors' formulation", "transformers"} <= installed_peers("nystrom").keys()


@torch.no_grad()
@pytest.mark.parametrize(("name", "peer"), INSTALLED, ids=[one for _, one in INSTALLED])
def test_an_implementation_takes_what_ours_takes(name: str, peer: str) -> None:
    config = attention_config(name, **SMALL.get(name, {}))
    is_exact = name == "nystrom"
    x = qkv() if is_exact else [each.float() for each in qkv()]
    built = installed_peers(name)[peer](config, 4, 16, 64)
    built = built.double() if is_exact else built  # type: ignore[attr-defined]
    out = built(*x)
    assert out.shape in ((2, 4, 64, 16), (2, 64, 64))
    if not is_exact:  # what learns or draws something else
        return
    ours = create_attention(config, num_heads=4, head_dim=16)
    if ours.skip is not None:
        ours.skip.weight.copy_(next(p for p in built.parameters() if p.ndim == 4))  # type: ignore[attr-defined]
    out = out if out.ndim == 4 else out.unflatten(2, (4, 16)).transpose(1, 2)
    # nystrom-attention divides by the largest row sum too, which is one up to rounding.
    torch.testing.assert_close(out, ours.double()(*x), rtol=1e-5, atol=1e-5)


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
    assert all(0 <= t["low"] <= t["median"] <= t["high"] for t in timings.values())
