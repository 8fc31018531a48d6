"""Dropout's seeds, in the 32 bits that a CPU's generator reads of them."""

import itertools

import torch

from nystromformer.training.state import dropout_seed

LOW = 2**32


def test_a_cpu_reads_32_bits_of_a_seed() -> None:
    seed = dropout_seed(0, 1, 2)
    assert LOW < seed < 2**64
    draws = [torch.rand(100, generator=torch.Generator().manual_seed(each)) for each in (seed, seed % LOW, seed ^ 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_seeds_collide_no_more_than_random_ones() -> None:
    """Nor those of steps that powers of two part: by these, numbers packed side by side lose their upper bits."""
    apart = {step + distance for step in range(2000) for distance in (0, *(2**k for k in range(11, 63)))}
    keys = set(itertools.product((0, 1, 2, 2**40), range(10_000), range(6)))
    keys |= {(0, step, 0) for step in apart} | {(0, 0, batch) for batch in (2**k for k in range(1, 63))}
    expected = len(keys) ** 2 / (2 * LOW)
    collisions = len(keys) - len({dropout_seed(*key) % LOW for key in keys})
    assert collisions < expected + 6 * expected**0.5, "six standard deviations"
