"""Time of a row of 512 tokens in the tiny encoders: softmax, and Nyström with 8 to 128 landmarks, each with the
convolution and without; writes speed.json beside this file. `python results/tiny/speed.py`, with nothing beside it.
"""

from dataclasses import asdict
from pathlib import Path

import torch

from nystromformer.benchmark.timing import Timing, peak_memory, time_side_by_side
from nystromformer.files import write_json
from nystromformer.machine import machine_facts
from nystromformer.model import ClassificationModel
from nystromformer.paths import EXPERIMENTS
from nystromformer.tasks.experiment.folder import open_experiment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LANDMARKS = (8, 16, 32, 64, 128)
LENGTHS = (512, 1024, 2048)
BATCH = 4
REPEATS = 5


class Way:
    """One encoder with a classification head, and a batch for it; B rows of N tokens without padding."""

    def __init__(self, end: str, landmarks: int | None, length: int) -> None:
        kind = "softmax" if landmarks is None else "nystrom"
        counted = [] if landmarks is None else [f"model.num_landmarks={landmarks}"]
        config = open_experiment(
            EXPERIMENTS / f"{kind}-tiny-{end}", [*counted, f"model.max_seq_len={length}"]
        ).config.model
        torch.manual_seed(0)
        self.model = ClassificationModel(config, 2)
        self.tokens_BN = torch.randint(5, config.vocab_size, (BATCH, length))
        self.mask_BN = torch.ones(BATCH, length, dtype=torch.bool)

    def test(self) -> None:
        with torch.no_grad():
            self.model.eval()(self.tokens_BN, self.mask_BN)

    def train(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.model.train()(self.tokens_BN, self.mask_BN).sum().backward()


def per_row(timing: Timing) -> dict[str, float]:
    return {name: value / BATCH for name, value in asdict(timing).items()}


def main() -> None:
    rows = []
    for length in LENGTHS:
        # All at one length in turn; the numbers of landmarks are compared at 512, where accuracy was measured.
        counts = (None, *LANDMARKS) if length == LENGTHS[0] else (None, 64)
        ways = {(end, count): Way(end, count, length) for end in ("conv", "noconv") for count in counts}
        names = {f"{end} {count}": key for key in ways for end, count in [key]}
        test = time_side_by_side({name: ways[key].test for name, key in names.items()}, REPEATS)
        train = time_side_by_side({name: ways[key].train for name, key in names.items()}, REPEATS)
        for name, (end, count) in names.items():
            way = ways[end, count]
            way.model.zero_grad(set_to_none=True)
            rows.append({
                "convolution": end == "conv",
                "landmarks": count,
                "tokens": length,
                "test_ms": per_row(test[name]),
                "train_ms": per_row(train[name]),
                "train_mib": peak_memory(way.train),
            })  # fmt: skip
    settings = {"batch": BATCH, "repeats": REPEATS, "landmarks": "null: softmax (SDPA)"}
    write_json(HERE / "speed.json", {"machine": machine_facts(), "settings": settings, "rows": rows})


if __name__ == "__main__":
    main()
