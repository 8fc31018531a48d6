import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.data.counter import permute, random_bits, random_uniform
from nystromformer.data.sampler import rows_of_step


@given(size=st.integers(1, 3000), key=st.integers(0, 2**63 - 1))
def test_permute_is_a_permutation(size: int, key: int) -> None:
    assert sorted(permute(np.arange(size), size, key)) == list(range(size))


def test_permutations_differ_by_key_and_scatter() -> None:
    first, second = (permute(np.arange(1000), 1000, key) for key in (1, 2))
    assert (first == second).sum() < 20
    assert (np.abs(np.diff(first)) == 1).sum() < 20


def test_a_permuted_index_does_not_depend_on_the_others() -> None:
    whole = permute(np.arange(5000), 5000, 7)
    assert np.array_equal(permute(np.array([4321, 3]), 5000, 7), whole[[4321, 3]])


def test_random_numbers_are_a_pure_function_that_looks_uniform() -> None:
    u = random_uniform(3, np.arange(200_000))
    assert np.array_equal(u, random_uniform(3, np.arange(200_000)))
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(u.std() - 12**-0.5) < 0.005
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.01
    assert abs(np.corrcoef(u, random_uniform(4, np.arange(200_000)))[0, 1]) < 0.01
    assert len(np.unique(random_bits(np.arange(1000)[:, None], np.arange(1000)))) == 1_000_000
    assert random_bits(5, 6)[0] != random_bits(6, 5)[0]


@pytest.mark.parametrize(("batch", "rows"), [(8, 100), (7, 20), (30, 8), (1, 1)])
def test_every_row_is_seen_once_a_pass(batch: int, rows: int) -> None:
    seen = np.concatenate([rows_of_step(0, step, batch, rows) for step in range(5 * rows)])
    for number in range(len(seen) // rows):
        assert sorted(seen[number * rows : (number + 1) * rows]) == list(range(rows))
