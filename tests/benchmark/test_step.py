"""The benchmark of steps of training: its rows, models and batches."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from nystromformer.benchmark import step
from nystromformer.benchmark.questions.shipped import Step
from nystromformer.benchmark.step import SparseHead, finetuning_ways, made_up_batch, our_config, peer_model, table
from nystromformer.data.masking import IGNORED_LABEL
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.training.device import Device

SMALL = Step(vocab_size=500, width=64, num_layers=2, batch=4, pad_to=128)
CPU = torch.device("cpu")
OURS = "nystrom (num_landmarks 64, conv_kernel_size 33)"
FEW = ("--width", 64, "--layers", 1, "--vocab_size", 500, "--repeats", 1, "--threads", 1)


def test_steps_beside_transformers(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    flags = ("--lengths", 128, "--tokens", 256, "--pad_to", 128, "--batch", 4)
    shown = run_benchmark("step", *flags, *FEW, "--out", tmp_path)
    assert "| pretraining | 2 x 128 | transformers, our head |" in shown
    records = {(r["task"], r["method"]): r for r in json.loads((tmp_path / "step.json").read_text())["records"]}
    assert list(records) == [
        *((step.PRETRAINING, name) for name in (OURS, "softmax", step.PEER, step.SPARSE)),
        *((step.FINETUNING, name) for name in (step.BY_LENGTH, step.PADDED, step.PADDED_PEER)),
    ]
    memory = [records[step.PRETRAINING, name]["memory"] for name in (OURS, step.SPARSE, step.PEER)]
    assert memory == sorted(memory)
    tokens = [records[step.FINETUNING, name]["tokens"] for name in (step.BY_LENGTH, step.PADDED, step.PADDED_PEER)]
    assert 8 <= tokens[0] <= 14 < 128 == tokens[1] == tokens[2]


def test_the_models_that_are_compared_are_of_one_size() -> None:
    peer = peer_model(SMALL, 128, "NystromformerForMaskedLM")
    ours = PretrainingModel(our_config(SMALL, 128), ["mlm"])
    # transformers has two sentence types at least, and a bias that its decoder shares.
    assert count_parameters(peer) - count_parameters(ours) in range(2 * 64 + 1)
    assert count_parameters(SparseHead(peer, our_config(SMALL, 128))) == count_parameters(peer)
    softmax = PretrainingModel(our_config(SMALL, 128, "softmax"), ["mlm"])
    assert count_parameters(ours) - count_parameters(softmax) == 2 * 33, "the convolution of each layer's one head"
    by_length, padded, peer_padded = (
        count_parameters(w.model) for w in finetuning_ways(SMALL, Device(CPU, None)).values()
    )
    assert by_length == padded
    assert peer_padded - padded in range(2 * 64 + 1)


def test_their_encoder_under_our_head_has_their_loss() -> None:
    torch.manual_seed(0)
    peer = peer_model(SMALL, 128, "NystromformerForMaskedLM").eval()
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


def test_made_up_rows_are_as_in_pretraining() -> None:
    batch = made_up_batch(500, 512, 8, CPU)
    assert batch["positions_BK"].shape == (8, int(0.15 * 512 + 0.5))
    assert torch.equal(batch["tokens_BN"].gather(1, batch["positions_BK"]), batch["labels_BK"])
    assert (batch["labels_BN"] != IGNORED_LABEL).sum() == batch["labels_BK"].numel()


def test_ratios_are_of_the_same_rows() -> None:
    def record(task: str, tokens: float, method: str, milliseconds: float) -> dict[str, object]:
        time = dict.fromkeys(("median", "low", "high"), milliseconds)
        return {"task": task, "rows": 8, "tokens": tokens, "method": method, "time": time, "memory": 10 * milliseconds}

    found = [record(step.PRETRAINING, n, name, ms * n) for n in (512, 1024) for name, ms in ((OURS, 1), (step.PEER, 5))]
    found += [record(step.FINETUNING, 12.3, step.BY_LENGTH, 2), record(step.FINETUNING, 512, step.PADDED_PEER, 40)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(found).splitlines()[2:]]
    assert [line[4] for line in lines] == ["0.20", "1.00", "0.20", "1.00", "0.05", "1.00"]
    assert lines[4] == ["fine-tuning", "8 x 12.3", step.BY_LENGTH, "2.0 (2.0-2.0)", "0.05", "20", "0.05"]
