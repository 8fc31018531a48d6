"""The benchmark of steps of training: its rows, models and batches."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from nystromformer.benchmark.questions import step
from nystromformer.benchmark.questions.step import Step, made_up_batch, our_config, peer_model, table
from nystromformer.data.masking import IGNORED_LABEL
from nystromformer.model import PretrainingModel, count_parameters

SMALL = Step(vocab_size=500, width=64, num_layers=2)
OURS = "nystrom (num_landmarks 64, conv_kernel_size 33)"
FEW = ("--width", 64, "--layers", 1, "--vocab_size", 500, "--repeats", 1, "--threads", 1)


def test_steps_beside_transformers(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    shown = run_benchmark("step", "--lengths", 128, "--tokens", 256, *FEW, "--out", tmp_path)
    assert "| pretraining | 2 x 128 | transformers |" in shown
    records = {r["method"]: r for r in json.loads((tmp_path / "step.json").read_text())["records"]}
    assert list(records) == [OURS, "softmax", step.PEER]
    assert records[OURS]["memory"] < records[step.PEER]["memory"]


def test_the_models_that_are_compared_are_of_one_size() -> None:
    ours, softmax = (PretrainingModel(our_config(SMALL, 128, text), ["mlm"]) for text in (step.NYSTROM, "softmax"))
    # transformers has two sentence types at least, and a bias that its decoder shares.
    assert count_parameters(peer_model(SMALL, 128)) - count_parameters(ours) in range(2 * 64 + 1)
    assert count_parameters(ours) - count_parameters(softmax) == 2 * 33, "the convolution of each layer's one head"


def test_made_up_rows_are_as_in_pretraining() -> None:
    batch = made_up_batch(500, 512, 8, torch.device("cpu"))
    assert batch["positions_BK"].shape == (8, int(0.15 * 512 + 0.5))
    assert torch.equal(batch["tokens_BN"].gather(1, batch["positions_BK"]), batch["labels_BK"])
    assert (batch["labels_BN"] != IGNORED_LABEL).sum() == batch["labels_BK"].numel()


def test_ratios_are_of_the_same_rows() -> None:
    def record(tokens: int, method: str, milliseconds: float) -> dict[str, object]:
        time = dict.fromkeys(("median", "low", "high"), milliseconds)
        facts = {"task": "pretraining", "rows": 8, "tokens": tokens, "method": method}
        return {**facts, "time": time, "memory": 10 * milliseconds}

    found = [record(n, name, ms * n) for n in (512, 1024) for name, ms in ((OURS, 1), (step.PEER, 5))]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(found).splitlines()[2:]]
    assert [line[4] for line in lines] == ["0.20", "1.00", "0.20", "1.00"]
    assert lines[0] == ["pretraining", "8 x 512", OURS, "512.0 (512.0-512.0)", "0.20", "5120", "0.20"]
