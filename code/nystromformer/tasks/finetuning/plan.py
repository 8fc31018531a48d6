"""Which examples a step sees, and how they are cut for the devices: pure functions of lengths and numbers."""

import numpy as np

from nystromformer.data.counter import permute, random_uniform
from nystromformer.tasks.finetuning.examples import Ints, Labels

LEAST_POOLS = 5
"""Pools of an epoch of enough batches. With one alone, the same examples would meet in every epoch's batches."""
_JITTER = 0.1
"""Share of an example's length that is added to it at most, at random, before sorting."""
_EXAMPLE_STREAM, _BATCH_STREAM, _SUBSET_STREAM, _JITTER_STREAM, _SMALLER_STREAM = range(20, 25)


def epoch_batches(
    lengths: Ints, batch_size: int, seed: int, epoch: int, pool: int, labels: Labels | None = None
) -> list[Ints]:
    """The batches of an epoch: every example once, in batches of examples of similar length.

    The examples are shuffled, then sorted by length within pools, and the batches are shuffled again. So that epochs
    differ in which examples share a batch, there are at least `LEAST_POOLS` pools of at least two batches, or no
    sorting, and lengths count with a jitter; which batch is smaller than the others is random too.

    Args:
        lengths: tokens of each example.
        pool: batches to a pool, at most; 1: no sorting.
        labels: of each example, of which every batch gets its share; None: as chance has it.
    """
    order = permute(np.arange(len(lengths)), len(lengths), seed, _EXAMPLE_STREAM, epoch)
    count = -(-len(order) // batch_size)
    sizes = np.full(count, batch_size)
    pool = min(pool, count // LEAST_POOLS)
    # Unsorted, any examples are as good as others for the smaller batch.
    smaller = permute(np.arange(1), count, seed, _SMALLER_STREAM, epoch) if pool > 1 else count - 1
    sizes[smaller] -= count * batch_size - len(order)
    ends = np.cumsum(sizes)
    if labels is not None:
        order = order[_spread(labels[order])]
    if pool > 1:
        jittered = lengths * (1 + _JITTER * random_uniform(seed, _JITTER_STREAM, epoch, np.arange(len(lengths))))
        last = [part[-1] for part in np.array_split(ends, -(-count // pool))]
        for members in np.split(order, last[:-1]):
            members[:] = members[np.argsort(jittered[members], kind="stable")]
            if labels is not None:
                members[:] = members[_spread(labels[members])]
    batches = np.split(order, ends[:-1])
    return [batches[number] for number in permute(np.arange(count), count, seed, _BATCH_STREAM, epoch)]


def _spread(labels: Labels) -> Ints:
    """An order in which each label's examples, in the order that they have, stand evenly among the others."""
    places = np.empty(len(labels))
    for label in np.unique(labels):
        alike = np.flatnonzero(labels == label)
        places[alike] = (np.arange(len(alike)) + 0.5) / len(alike)
    return np.argsort(places, kind="stable")


def fit_to_budget(
    numbers: Ints, lengths: Ints, rows: Ints, budget: int, processes: int = 1, pad_to: int | None = None
) -> list[Ints]:
    """The examples of a batch cut into micro-batches of ascending length, as many for each process; the first ones are
    those of process 0. A part is empty where there are fewer examples than processes.

    Args:
        lengths, rows: tokens of each example's longest row, and rows of each, of the whole split.
        budget: tokens, padding included, that one device takes at a time. An example of more is a part of its own.
        pad_to: tokens of every row; None: each part is as long as its longest row.
    """
    order = numbers[np.lexsort((numbers, lengths[numbers]))]
    parts: list[list[int]] = []
    part_rows = 0
    for number in order.tolist():
        part_rows += int(rows[number])
        if not parts or part_rows * (pad_to or int(lengths[number])) > budget:
            parts.append([])
            part_rows = int(rows[number])
        parts[-1].append(number)
    while len(parts) % processes:
        costs = [len(part) > 1 and int(rows[part].sum()) * int(lengths[part].max()) for part in parts]
        widest = int(np.argmax(costs))
        half = (len(parts[widest]) + 1) // 2
        # Once every part has one example, an empty one is put at the end.
        widest = widest if costs[widest] else len(parts) - 1
        parts[widest : widest + 1] = [parts[widest][:half], parts[widest][half:]]
    return [np.asarray(part, dtype=np.int64) for part in parts]


def subset(count: int, wanted: int) -> Ints:
    """`wanted` of `count` numbers, ascending; a larger subset contains every smaller one."""
    return np.sort(permute(np.arange(min(wanted, count)), count, _SUBSET_STREAM))
