"""Which examples a step sees, and how they are cut for the devices: pure functions of lengths and numbers."""

import numpy as np

from nystromformer.data.counter import permute
from nystromformer.tasks.finetune.examples import Ints

_EXAMPLE_STREAM, _BATCH_STREAM, _SUBSET_STREAM = 20, 21, 22


def epoch_batches(lengths: Ints, batch_size: int, seed: int, epoch: int, pool: int) -> list[Ints]:
    """The batches of an epoch: every example once, in batches of examples of similar length.

    The examples are shuffled, then sorted by length within pools, and the batches are shuffled again.

    Args:
        lengths: tokens of each example.
        pool: batches to a pool; 1: no sorting.

    Returns:
        ceil(examples / batch_size) arrays of example numbers; one of them may be smaller.
    """
    order = permute(np.arange(len(lengths)), len(lengths), seed, _EXAMPLE_STREAM, epoch)
    batches = []
    for start in range(0, len(order), pool * batch_size):
        members = order[start : start + pool * batch_size]
        if pool > 1:
            members = members[np.argsort(lengths[members], kind="stable")]
        batches += [members[at : at + batch_size] for at in range(0, len(members), batch_size)]
    return [batches[number] for number in permute(np.arange(len(batches)), len(batches), seed, _BATCH_STREAM, epoch)]


def micro_batches(
    numbers: Ints, lengths: Ints, rows: Ints, budget: int, processes: int = 1, pad_to: int | None = None
) -> list[Ints]:
    """The examples cut into micro-batches, as many for each process.

    Args:
        numbers: of the examples of the batch.
        lengths, rows: tokens of each example's longest row, and rows of each, of the whole split.
        budget: tokens, padding included, that one device takes at a time. An example of more is a part of its own.
        pad_to: tokens of every row; None: each part is as long as its longest row.

    Returns:
        Parts of ascending length, a multiple of `processes`; the first ones are those of process 0. A part is empty
        where there are fewer examples than processes.
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
