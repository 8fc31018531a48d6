"""Tables and kernels of one size made to fit another."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nystromformer.interop.transfer import fit_kernel, fit_positions

WIDTH = 3
LENGTHS, OFFSETS = st.integers(1, 40), st.integers(0, 4)
ODD = st.integers(0, 12).map(lambda half: 2 * half + 1)


def randoms(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(LENGTHS, OFFSETS, LENGTHS, OFFSETS)
def test_positions_repeat(before: int, source_offset: int, now: int, offset: int) -> None:
    source, initial = randoms(source_offset + before, WIDTH), randoms(offset + now, WIDTH, seed=1)
    kept = source.clone(), initial.clone()
    table = fit_positions(source, source_offset, initial, offset)
    assert table.shape == initial.shape
    for n in range(now):
        assert torch.equal(table[offset + n], source[source_offset + n % before])
    for row in range(offset):
        assert torch.equal(table[row], source[row] if row < source_offset else initial[row])
    assert torch.equal(source, kept[0])
    assert torch.equal(initial, kept[1])


@given(LENGTHS, OFFSETS, LENGTHS, OFFSETS)
def test_positions_interpolate(before: int, source_offset: int, now: int, offset: int) -> None:
    source, initial = randoms(source_offset + before, WIDTH), randoms(offset + now, WIDTH, seed=1)
    table = fit_positions(source, source_offset, initial, offset, "interpolate")[offset:]
    if now <= before:
        assert torch.equal(table, source[source_offset : source_offset + now])
    else:
        places = torch.linspace(0, before - 1, now, dtype=torch.float64)
        below, share = places.floor().long(), (places - places.floor())[:, None]
        learned = source[source_offset:].double()
        expected = (1 - share) * learned[below] + share * learned[(below + 1).clamp(max=before - 1)]
        torch.testing.assert_close(table, expected.float(), rtol=0, atol=1e-6)
        assert torch.equal(table[0], source[source_offset])


@given(ODD, ODD, st.integers(1, 30))
def test_more_taps_are_the_same_convolution(one: int, other: int, length: int) -> None:
    before, now = sorted((one, other))
    weight, values = randoms(2, 1, before, 1).double(), randoms(3, 2, length, 4, seed=1).double()
    wider = fit_kernel(weight, now)
    assert wider.shape == (2, 1, now, 1)
    convolved = [F.conv2d(values, w, padding=(w.shape[2] // 2, 0), groups=2) for w in (weight, wider)]
    torch.testing.assert_close(convolved[1], convolved[0], rtol=0, atol=1e-12)
    # And back: the taps that are cut off are the zeros.
    assert torch.equal(fit_kernel(wider, before), weight)
