"""Segment means in the form for devices whose additions into a table have no fixed order, against the other form."""

from typing import Any

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, random_mask
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nystromformer.attention import AttentionMask, create_attention, landmarks
from nystromformer.attention.landmarks import Segments, segment_means

LENGTHS = [1, 7, 8, 9, 61, 64, 100]


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landmarks, "_GATHERED_ON", ("cpu", "cuda"))


def rows(length: int) -> Tensor:
    """Holes, all, none, one token at the end."""
    keep = random_mask(4, length, seed=length)
    keep[1], keep[2:] = True, False
    keep[3, -1] = True
    return keep


def segments_of(length: int, masked: bool, device: str = "cpu") -> Segments:
    if masked:
        keep = rows(length).to(device)
        return Segments.of_mask(keep, keep.sum(1), 8)
    return Segments.of_length(4, length, 8, torch.device(device))


def means_and_gradient(x: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    means = segment_means(x, segments)
    upstream = torch.randn(means.shape, generator=torch.Generator().manual_seed(1)).to(means)
    (gradient,) = torch.autograd.grad(means, x, upstream)
    return means, gradient


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("length", LENGTHS)
def test_gathered_means_are_the_added_ones(monkeypatch: pytest.MonkeyPatch, length: int, masked: bool) -> None:
    if not masked and length <= 8:
        pytest.skip("rows that all count and are no longer than the landmarks have no segments")
    x = qkv(4, length, dtype=torch.float64)[0]
    added = segments_of(length, masked)
    monkeypatch.setattr(landmarks, "_GATHERED_ON", ("cpu",))
    gathered = segments_of(length, masked)
    assert added.tokens_BML is None
    assert gathered.tokens_BML is not None
    assert torch.equal(added.counts_BM, gathered.counts_BM)
    for mine, expected in zip(means_and_gradient(x, gathered), means_and_gradient(x, added), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("gathering")
def test_what_is_masked_is_in_no_gathered_mean() -> None:
    x = qkv(4, 61)[0].detach()
    segments = segments_of(61, masked=True)
    loud = torch.where(rows(61)[:, None, :, None], x, 1e30)
    assert torch.equal(segment_means(loud, segments), segment_means(x, segments))


@pytest.mark.usefixtures("gathering")
def test_gathered_means_of_bfloat16_are_of_float32() -> None:
    x = qkv(1, 4096, dtype=torch.bfloat16)[0].detach()
    means = segment_means(x, Segments.of_length(1, 4096, 8, x.device))
    assert means.dtype == torch.float32
    torch.testing.assert_close(means.double(), x.double().unflatten(2, (8, 512)).mean(3), rtol=0, atol=1e-6)


class Called(TorchDispatchMode):
    """The operators that run within the block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__.rstrip("_"))
        return func(*args, **(kwargs or {}))


ATOMIC = {"index_add", "scatter_add", "scatter_reduce", "index_put", "_index_put_impl", "index_select_backward"}


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_gathered_means_add_nothing_into_a_table(monkeypatch: pytest.MonkeyPatch, masked: bool) -> None:
    for places, expected in ((("cpu",), set()), ((), {"index_add"})):
        monkeypatch.setattr(landmarks, "_GATHERED_ON", places)
        with Called() as called:
            means_and_gradient(qkv(4, 61)[0], segments_of(61, masked))
        assert called.names & ATOMIC == expected


@pytest.mark.slow
@pytest.mark.usefixtures("gathering")
def test_attention_by_gathered_means_compiles_and_exports() -> None:
    module = create_attention("nystrom", num_heads=HEADS, head_dim=DIM, num_landmarks=8, pinv_iterations=1)
    q, k, v = qkv(4, 61)
    out = module(q, k, v, rows(61))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, rows(61)), out)
    gradients = [torch.autograd.grad(f(q, k, v, rows(61)).square().sum(), [q, k, v]) for f in (module, compiled)]
    torch.testing.assert_close(*gradients)
    example = [x.detach() for x in (q, k, v)]
    batch, tokens = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("tokens", min=2, max=8192)
    shape = {0: batch, 2: tokens}
    shapes = (shape, shape, shape, {0: batch, 1: tokens})
    program = torch.export.export(module, (*example, rows(61)), dynamic_shapes=shapes).module()
    for length in (2, 8, 9, 300):
        inputs = [x.detach() for x in qkv(4, length)]
        torch.testing.assert_close(program(*inputs, rows(length)), module(*inputs, rows(length)), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_on_a_gpu_segment_means_are_the_same_every_time(masked: bool) -> None:
    x = torch.randn(4, 12, 4093, 64, device="cuda", requires_grad=True)
    keep = rows(4093).to("cuda")
    mask = AttentionMask(keep)
    segments = mask.segments(64) if masked else Segments.of_length(4, 4093, 64, x.device)
    first, *others = (means_and_gradient(x, segments) for _ in range(5))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
