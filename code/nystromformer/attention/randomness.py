"""Random numbers of attentions: functions of a key, so that no state is kept and a run that goes on draws the same."""

import hashlib

import torch


def generator_of(*key: int) -> torch.Generator:
    """A generator on the CPU that the key alone decides; keys that differ anywhere give unrelated numbers."""
    digest = hashlib.sha256(" ".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def own_seed() -> int:
    """A module's own seed, drawn from the default generator as its initial weights are: the run's seed decides it, and
    layers differ.
    """
    return int(torch.randint(2**62, (), device="cpu"))
