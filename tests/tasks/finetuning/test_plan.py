"""Which examples a step sees, and how they are cut."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.tasks.finetuning.plan import epoch_batches, fit_to_budget, subset

lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int64))


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


def lengths_like(name: str, count: int) -> np.ndarray:
    """Tokens of made-up rows whose mean and spread are those of a task's training rows."""
    random = np.random.default_rng(1)
    made = {
        "SST-2": lambda: np.clip(np.exp(random.normal(2.45, 0.65, count)), 3, 66),
        "MRPC": lambda: np.clip(random.normal(53, 13, count), 16, 120),
        "RTE": lambda: np.clip(np.exp(random.normal(4.08, 0.55, count)), 12, 290),
    }
    return made[name]().astype(np.int64)


def shared_again(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Of the pairs of examples that share a batch in the first plan, how many share one in the second."""
    plans = ([batch.tolist() for batch in plan] for plan in (first, second))
    pairs = [{(a, b) for batch in plan for a in batch for b in batch if a < b} for plan in plans]
    return len(pairs[0] & pairs[1]) / len(pairs[0])


def padded_tokens(batches: list[np.ndarray], lengths: np.ndarray) -> int:
    return sum(len(batch) * int(lengths[batch].max()) for batch in batches)


@pytest.mark.parametrize("name", ["SST-2", "MRPC", "RTE"])
@pytest.mark.parametrize("pool", [50, 10**6])
def test_epochs_of_few_batches_mix_their_examples(name: str, pool: int) -> None:
    lengths = lengths_like(name, 635)
    plans = [epoch_batches(lengths, 32, 0, epoch, pool) for epoch in range(4)]
    shares = [shared_again(one, other) for one, other in pairwise(plans)]
    assert max(shares) < 0.2, "unsorted it would be 31 of 634, a twentieth"
    unsorted = padded_tokens(epoch_batches(lengths, 32, 0, 0, 1), lengths)
    assert max(padded_tokens(plan, lengths) for plan in plans) < 0.85 * unsorted, "and yet they are of similar length"


@given(
    st.data(),
    st.lists(st.integers(1, 5), min_size=1, max_size=30),
    st.integers(1, 200),
    st.integers(1, 4),
    st.booleans(),
)
def test_parts_within_the_budget_divide_a_batch(
    data: st.DataObject, rows_list: list[int], budget: int, processes: int, padded: bool
) -> None:
    rows = np.array(rows_list, dtype=np.int64)
    lengths = np.array(data.draw(st.lists(st.integers(1, 40), min_size=len(rows), max_size=len(rows))), dtype=np.int64)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))), dtype=np.int64)
    pad_to = 40 if padded else None
    parts = fit_to_budget(chosen, lengths, rows, budget, processes, pad_to)
    assert len(parts) % processes == 0
    assert sorted(np.concatenate(parts).tolist()) == chosen.tolist()
    full = [part for part in parts if len(part)]
    for part in full:
        assert len(part) == 1 or int(rows[part].sum()) * (pad_to or int(lengths[part].max())) <= budget
    assert len(full) == len(parts) or all(len(part) == 1 for part in full), "empty ones only where nothing is left"
    longest = [int(lengths[part].max()) for part in full]
    assert longest == sorted(longest)


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 60))
def test_a_larger_subset_contains_the_smaller(count: int, one: int, other: int) -> None:
    small, large = subset(count, min(one, other)), subset(count, max(one, other))
    assert len(small) == min(count, one, other)
    assert set(small.tolist()) <= set(large.tolist()) <= set(range(count))
    assert small.tolist() == sorted(set(small.tolist()))
