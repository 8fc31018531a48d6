"""How the kernels' work is cut."""

import itertools

import pytest
import torch

from nystromformer.attention.kernels import plan

ROOMS = (plan.SMALL_ROOM, plan.LARGE_ROOM, plan.HOPPER_ROOM)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("size", [2, 4])
def test_every_size_is_cut_into_what_matrix_units_take(size: int, room: int) -> None:
    for M, D, heads in itertools.product(plan.LANDMARKS, plan.HEAD_DIMS, (1, 12, 5000)):
        if room < plan.LEAST_ROOM[size] or plan.LARGEST_AREA[size] < M * D:
            continue
        cut = plan.make_plan(heads, 1000, M, D, 33, size, room)
        assert min(cut.block, cut.chunk, cut.output_block, cut.gradient_block, cut.taps_block) >= 16
        assert cut.output_tokens % cut.output_block == 0
        assert cut.parts * cut.segments == M
        assert cut.segments <= 16
        assert cut.tokens_of_split % cut.gradient_block == 0
        assert (cut.splits - 1) * cut.tokens_of_split < 1000 <= cut.splits * cut.tokens_of_split


@pytest.mark.parametrize("taps", [1, 3, 33, 65, 129])
def test_a_block_for_the_filter_sees_all_its_neighbours(taps: int) -> None:
    cut = plan.make_plan(12, 1000, 64, 64, taps, 2, plan.HOPPER_ROOM)
    assert cut.taps_block >= 16
    assert cut.taps_block + taps - 1 <= cut.taps_window < 2 * (cut.taps_block + taps - 1)


def test_the_mark_of_a_constant_is_the_compilers_own() -> None:
    def ours() -> int:
        return 3

    def theirs() -> int:
        return 3

    assert plan.constant_when_compiled(ours) is ours
    assert vars(ours) == vars(torch.compiler.assume_constant_result(theirs)) != {}
