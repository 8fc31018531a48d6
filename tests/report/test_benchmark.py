"""The benchmark runs, its peers compute the same attention, and memory is counted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small import run_here
from torch import Tensor

from nystromformer.attention import create_attention, reference
from nystromformer.benchmark import finetune as finetune_benchmark
from nystromformer.benchmark.finetune import FinetuneBenchmark
from nystromformer.benchmark.peers import (
    MaterialisedNystrom,
    NystromAttentionPackage,
    Shape,
    TransformersCore,
    WrittenOutSoftmax,
    fused_softmax,
    installed,
)
from nystromformer.benchmark.timing import peak_memory, time_side_by_side
from nystromformer.model import ClassificationModel, count_parameters

SHAPE = Shape(num_heads=2, head_dim=8, num_landmarks=8, conv_kernel_size=5, length=64)


def qkv() -> list[Tensor]:
    return [torch.randn(1, 64, 2, 8, dtype=torch.float64).transpose(1, 2) for _ in range(3)]


@pytest.mark.parametrize("name", ["authors", "transformers", "nystrom_attention"])
def test_peers_are_the_same_attention(name: str) -> None:
    if name == "nystrom_attention" and not installed(name):
        pytest.skip("nystrom-attention is not installed")
    build = {
        "authors": MaterialisedNystrom,
        "transformers": TransformersCore,
        "nystrom_attention": NystromAttentionPackage,
    }
    peer = build[name](SHAPE).double()
    ours = create_attention("nystrom", num_heads=2, head_dim=8, num_landmarks=8, conv_kernel_size=5, pinv_start="batch")
    assert ours.skip is not None
    with torch.no_grad():
        ours.skip.weight.copy_(next(p for p in peer.parameters() if p.ndim == 4))
    x = qkv()
    out = peer(*x)
    if out.ndim == 3:
        out = out.unflatten(2, (2, 8)).transpose(1, 2)
    # nystrom-attention divides by the largest row sum too, which is one up to rounding.
    torch.testing.assert_close(out, ours.double()(*x), rtol=1e-5, atol=1e-6)


def test_softmax_peers() -> None:
    x = qkv()
    for peer in (WrittenOutSoftmax(), fused_softmax):
        torch.testing.assert_close(peer(*x), reference.softmax_attention(*x))
    keep = torch.arange(64)[None] < 50
    torch.testing.assert_close(fused_softmax(*x, keep)[:, :, :50], reference.softmax_attention(*x, keep)[:, :, :50])


def test_peak_memory_counts_what_lives_together() -> None:
    def work() -> None:
        first = torch.ones(2**20)  # 4 MiB
        second = first + 1  # 8 MiB together
        del first
        third = second + 1  # 8 MiB again
        del second, third

    assert 7.9 < peak_memory(work) < 8.5


def test_timings_are_of_every_work() -> None:
    calls: list[str] = []
    timings = time_side_by_side({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=1)
    assert calls == ["a", "b", "a", "b", "a", "b", "a", "b"]
    assert all(0 <= t.low <= t.median <= t.high for t in timings.values())


def test_fine_tuning_steps_beside_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = ["--width", 64, "--layers", 1, "--vocab_size", 500, "--repeats", 1, "--threads", 1, "--pad_to", 128]
    small += ["--batch", 4, "--batches", 2]
    assert run_here(monkeypatch, "code/run_benchmark.py", "finetune", *small, "--out", tmp_path) == 0
    assert "transformers, padded" in capsys.readouterr().out
    rows = json.loads((tmp_path / "finetune.json").read_text())["rows"]
    assert [row["rows"] for row in rows] == [8, 4, 4]
    assert rows[0]["tokens"] < 66 < 128 == rows[1]["tokens"] == rows[2]["tokens"]
    for flags, words in (
        (["--pad_to", 200], "multiple of the 64"),
        (["--width", 100], "multiple of the heads"),
        (["--glue", tmp_path], "both or none"),
        (["--precision", "int8"], "found 'int8'"),
    ):
        assert run_here(monkeypatch, "code/run_benchmark.py", "finetune", *flags) == 2
        assert words in capsys.readouterr().err


def test_classifiers_that_are_compared_are_of_one_size() -> None:
    settings = FinetuneBenchmark(vocab_size=500, width=64, num_layers=2)
    ours, theirs = ClassificationModel(settings.config(settings.pad_to), 2), finetune_benchmark._peer(settings)
    assert count_parameters(theirs) - count_parameters(ours) in range(2 * 64 + 1)


def test_made_up_rows_are_as_long_as_sst2s() -> None:
    rows = finetune_benchmark.MadeUpRows(5000, 500)
    assert 3 <= rows.lengths.min() < rows.lengths.max() <= 66
    assert 8 <= np.median(rows.lengths) <= 13
    batch = rows.batch(np.arange(4), 70)
    assert batch["mask_BN"].sum(1).tolist() == rows.lengths[:4].tolist()
    assert (batch["tokens_BN"][~batch["mask_BN"]] == 1).all()
