"""The benchmark of steps of training: its rows, models and batches."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nystromformer.benchmark import step
from nystromformer.benchmark.models import made_up_batch
from nystromformer.benchmark.questions.step import Step
from nystromformer.benchmark.step import SparseHead, StepRow, finetuning_ways, our_config, peer_model, table
from nystromformer.benchmark.timing import Timing
from nystromformer.data.masking import IGNORED_LABEL
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.training.device import Device

SMALL = Step(vocab_size=500, width=64, num_layers=2, batch=4, batches=3, pad_to=128)
CPU = torch.device("cpu")
OURS = "nystrom (num_landmarks 64, conv_kernel_size 33)"
FEW = ("--width", 64, "--layers", 1, "--vocab_size", 500, "--repeats", 1, "--threads", 1)


@pytest.fixture
def masked_lm() -> torch.nn.Module:
    return peer_model(SMALL, 128, "NystromformerForMaskedLM")


def test_steps_beside_transformers(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    flags = ("--sizes", "128x2", "--pad_to", 128, "--batch", 4, "--batches", 2)
    assert "| pretraining | 2 x 128 | transformers, our head |" in run_benchmark(
        "step", *flags, *FEW, "--out", tmp_path
    )
    data = json.loads((tmp_path / "step.json").read_text())
    rows = {(row["task"], row["method"]): row for row in data["rows"]}
    assert list(rows) == [
        *((step.PRETRAINING, name) for name in (OURS, "softmax", step.PEER, step.SPARSE)),
        *((step.FINETUNING, name) for name in (step.BY_LENGTH, step.PADDED, step.PADDED_PEER)),
    ]
    memory = [rows[step.PRETRAINING, name]["memory"] for name in (OURS, step.SPARSE, step.PEER)]
    assert memory == sorted(memory)
    tokens = [rows[step.FINETUNING, name]["tokens"] for name in (step.BY_LENGTH, step.PADDED, step.PADDED_PEER)]
    assert tokens[0] < 67 < 128 == tokens[1] == tokens[2]
    assert data["machine"]["commit"]


def test_the_models_that_are_compared_are_of_one_size(masked_lm: torch.nn.Module) -> None:
    ours = PretrainingModel(our_config(SMALL, 128), ["mlm"])
    # transformers has two sentence types at least, and a bias that its decoder shares.
    assert count_parameters(masked_lm) - count_parameters(ours) in range(2 * 64 + 1)
    assert count_parameters(SparseHead(masked_lm, our_config(SMALL, 128))) == count_parameters(masked_lm)
    softmax = PretrainingModel(our_config(SMALL, 128, "softmax"), ["mlm"])
    assert count_parameters(ours) - count_parameters(softmax) == 2 * 33, "the convolution of each layer's one head"
    ways = finetuning_ways(SMALL, Device(CPU, None))
    by_length, padded, peer = (count_parameters(way.model) for way in ways.values())
    assert by_length == padded
    assert peer - padded in range(2 * 64 + 1)


def test_their_encoder_under_our_head_has_their_loss(masked_lm: torch.nn.Module) -> None:
    torch.manual_seed(0)
    peer = masked_lm.eval()
    sparse = SparseHead(peer, our_config(SMALL, 128)).eval()
    head = peer.cls.predictions
    with torch.no_grad():
        sparse.mlm.transform.load_state_dict(head.transform.dense.state_dict())
        sparse.mlm.norm.load_state_dict(head.transform.LayerNorm.state_dict())
        sparse.mlm.bias.copy_(head.bias)
    batch = made_up_batch(500, 128, 3, CPU)
    expected = peer(batch["tokens_BN"], labels=batch["labels_BN"]).loss
    sums = sparse(batch["tokens_BN"], batch["positions_BK"], batch["labels_BK"])
    torch.testing.assert_close(sums[0] / sums[2], expected, rtol=1e-4, atol=1e-5)


def test_made_up_rows_are_as_in_pretraining_and_as_long_as_sst2s() -> None:
    batch = made_up_batch(500, 512, 8, CPU)
    assert batch["positions_BK"].shape == (8, int(0.15 * 512 + 0.5))
    assert torch.equal(batch["tokens_BN"].gather(1, batch["positions_BK"]), batch["labels_BK"])
    assert (batch["labels_BN"] != IGNORED_LABEL).sum() == batch["labels_BK"].numel()
    lengths = step.made_up_lengths(5000)
    assert 3 <= lengths.min() < lengths.max() <= 66
    assert 8 <= lengths.median() <= 13


def test_ratios_are_of_the_same_rows() -> None:
    def row(task: str, rows: int, tokens: float, method: str, milliseconds: float) -> StepRow:
        return StepRow(task, rows, tokens, method, Timing(*[milliseconds] * 3), 10 * milliseconds)

    found = [row(step.PRETRAINING, 8, n, name, ms * n / 512) for n in (512, 1024) for name, ms in SPEEDS.items()]
    found += [row(step.FINETUNING, 8, 12.3, step.BY_LENGTH, 2), row(step.FINETUNING, 8, 512, step.PADDED_PEER, 40)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(found).splitlines()[2:]]
    assert [line[4] for line in lines] == ["0.20", "1.00", "0.20", "1.00", "0.05", "1.00"]
    assert lines[4] == ["fine-tuning", "8 x 12.3", step.BY_LENGTH, "2.0 (2.0-2.0)", "0.05", "20", "0.05"]


SPEEDS = {OURS: 10.0, step.PEER: 50.0}
