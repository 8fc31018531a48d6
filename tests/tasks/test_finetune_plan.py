"""Which examples a step sees, and how they are cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.tasks.finetune.plan import epoch_batches, micro_batches, subset

lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda found: np.array(found, dtype=np.int64))


@given(lengths_of, st.integers(1, 9), st.integers(0, 5), st.integers(0, 3), st.integers(1, 4))
def test_an_epoch_sees_every_example_once(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, pool: int
) -> None:
    batches = epoch_batches(lengths, batch_size, seed, epoch, pool)
    assert len(batches) == -(-len(lengths) // batch_size)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert sorted(map(len, batches))[1:] == [batch_size] * (len(batches) - 1), "one batch at most is smaller"
    again = epoch_batches(lengths, batch_size, seed, epoch, pool)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_epochs_and_seeds_differ_and_pools_save_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    plans = [epoch_batches(lengths, 10, seed, epoch, 50) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    flat = [np.concatenate(plan).tolist() for plan in plans]
    assert flat[0] != flat[1] != flat[2] != flat[0]

    def padding(pool: int) -> int:
        return sum(int(lengths[b].max()) * len(b) for b in epoch_batches(lengths, 10, 0, 0, pool)) - int(lengths.sum())

    assert padding(50) < 0.1 * padding(1)
    widths = [int(lengths[batch].max()) for batch in plans[0]]
    assert widths != sorted(widths), "the batches are shuffled again"


@given(
    st.data(),
    st.lists(st.integers(1, 5), min_size=1, max_size=30),
    st.integers(1, 200),
    st.integers(1, 4),
    st.booleans(),
)
def test_micro_batches_divide_a_batch(
    data: st.DataObject, rows_list: list[int], budget: int, processes: int, padded: bool
) -> None:
    rows = np.array(rows_list, dtype=np.int64)
    lengths = np.array(data.draw(st.lists(st.integers(1, 40), min_size=len(rows), max_size=len(rows))), dtype=np.int64)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))), dtype=np.int64)
    pad_to = 40 if padded else None
    parts = micro_batches(chosen, lengths, rows, budget, processes, pad_to)
    assert len(parts) % processes == 0
    assert sorted(np.concatenate(parts).tolist()) == chosen.tolist()
    full = [part for part in parts if len(part)]
    for part in full:
        assert len(part) == 1 or int(rows[part].sum()) * (pad_to or int(lengths[part].max())) <= budget
    assert len(full) == len(parts) or all(len(part) == 1 for part in full), "empty ones only where nothing is left"
    longest = [int(lengths[part].max()) for part in full]
    assert longest == sorted(longest)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_batch_that_fits_is_cut_for_the_processes_alone(processes: int) -> None:
    lengths, rows = np.full(16, 10), np.ones(16, dtype=np.int64)
    assert len(micro_batches(np.arange(16), lengths, rows, 10**6, processes)) == processes


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 60))
def test_a_larger_subset_contains_the_smaller(count: int, one: int, other: int) -> None:
    small, large = subset(count, min(one, other)), subset(count, max(one, other))
    assert len(small) == min(count, one, other)
    assert set(small.tolist()) <= set(large.tolist()) <= set(range(count))
    assert small.tolist() == sorted(set(small.tolist()))
