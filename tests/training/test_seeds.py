"""Dropout's seeds, in the 32 bits that a CPU's generator reads of them."""

import itertools

import torch

from nystromformer.training.seeds import dropout_seed

LOW = 2**32


def collisions(keys: set[tuple[int, int, int]]) -> int:
    return len(keys) - len({dropout_seed(*key) % LOW for key in keys})


def most_by_chance(count: int) -> float:
    """Six standard deviations above what random numbers of 32 bits would have."""
    expected = count**2 / (2 * LOW)
    return expected + 6 * expected**0.5


def test_a_cpu_reads_32_bits_of_a_seed() -> None:
    seed = dropout_seed(0, 1, 2)
    assert LOW < seed < 2**64
    draws = [torch.rand(100, generator=torch.Generator().manual_seed(each)) for each in (seed, seed % LOW, seed ^ 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_seeds_collide_no_more_than_random_ones() -> None:
    keys = set(itertools.product((0, 1, 2, 2**40), range(10_000), range(6)))
    assert collisions(keys) < most_by_chance(len(keys))


def test_no_number_of_steps_apart_repeats() -> None:
    """Powers of two above all, by which numbers that are packed side by side lose their upper bits."""
    apart = {step + distance for step in range(2000) for distance in (0, *(2**k for k in range(11, 63)))}
    keys = {(0, step, 0) for step in apart} | {(0, 0, batch) for batch in (2**k for k in range(1, 63))}
    assert collisions(keys) < most_by_chance(len(keys))


def test_every_bit_of_every_number_decides_on_half_of_the_bits() -> None:
    for which, bit in itertools.product(range(3), range(63)):
        flipped = 0
        for start in range(20):
            key = [start, 3 * start, 5 * start]
            before = dropout_seed(*key)
            key[which] ^= 1 << bit
            flipped += ((before ^ dropout_seed(*key)) % LOW).bit_count()
        # 640 fair coins: eight standard deviations.
        assert abs(flipped - 320) < 8 * 640**0.5 / 2
