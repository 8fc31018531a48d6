"""The GPU benchmark: a dry run of all of it, what it refuses, and a report that hides nothing."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreting import ON_GPU

from nystromformer.attention.kernels import plan
from nystromformer.benchmark.efficiency.report import Cell
from nystromformer.benchmark.gpu import check as gpu_check
from nystromformer.benchmark.gpu import settings as gpu_settings
from nystromformer.benchmark.gpu.attention import COPY, FLASH, MATMUL, METHODS, OURS, CeilingRow, attention_pieces
from nystromformer.benchmark.gpu.check import CheckRow, Comparison, check_pieces, largest_ratio
from nystromformer.benchmark.gpu.report import failures, omissions, report
from nystromformer.benchmark.gpu.run import SHARES, compile_kernels, pieces_to_compile, share_out
from nystromformer.benchmark.gpu.settings import FULL, GpuBenchmark
from nystromformer.benchmark.gpu.training import NYSTROM, SOFTMAX, TrainingRow, training_config
from nystromformer.benchmark.peers import is_installed
from nystromformer.benchmark.pieces import FAILED, LEFT_OUT, MEASURED, Outcome
from nystromformer.benchmark.questions.gpu import SECTIONS
from nystromformer.benchmark.timing import Timing

UNIT = 131072 * 12 * 64 * 2
"""Bytes of Q."""


@pytest.mark.skipif(ON_GPU, reason="the interpreter takes tensors on a CPU")
@pytest.mark.slow
def test_a_dry_run_goes_through_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    # The interpreter's time goes by programs.
    monkeypatch.setattr(plan, "ENOUGH_PROGRAMS", 1)
    shown = run_benchmark("gpu", "--dry_run", "--seed", 7, "--out", tmp_path)
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert data["failed"] == []
    missing = [] if is_installed("nystrom_attention") else ["nystrom-attention is not installed"]
    assert [outcome["reason"] for outcome in data["outcomes"] if outcome["status"] != MEASURED] == missing
    assert data["machine"]["note"] == "dry run: figures mean nothing; ours: the kernels in Triton's interpreter"
    rows = {name: [r for o in data["outcomes"] if o["section"] == name for r in o["rows"]] for name in SECTIONS}
    assert [row["seed"] for row in rows["check"]] == [7, 8]
    assert [row["name"] for row in rows["ceilings"]] == ["copy", "matmul"]
    measured = {(row["length"], row["method"]): row for row in rows["attention"] if "method" in row}
    assert set(measured) == {*((64, name) for name in METHODS[: len(METHODS) - len(missing)]), (100, OURS)}
    assert all(row["both"]["median"] > 0 < row["memory"] for row in measured.values())
    assert [row["attention"] for row in rows["training"]] == ["nystrom", "softmax"]
    assert all(row["time"]["median"] > 0 < row["flops"] for row in rows["training"])
    assert "**dry run: figures mean nothing**" in shown
    assert shown.startswith((tmp_path / "gpu.md").read_text())
    assert (tmp_path / "gpu-time.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_what_is_wrong_ends_with_status_1_after_measuring(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    compare = gpu_check.compare

    def fail_once(settings: GpuBenchmark, case: Comparison, number: int) -> Any:
        if number == 1:
            raise RuntimeError("an illegal memory access")
        return compare(settings, case, number)

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(gpu_check, "compare", fail_once)
    flags = ["--dry_run", "--sections", "ceilings, check", "--out", tmp_path]
    shown = run_benchmark("gpu", *flags, status=1)
    assert (
        "check, float32, M 32, D 32, 6 x 1 heads of N 40, all tokens: RuntimeError: an illegal memory access" in shown
    )
    assert "| copy | " in shown
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert "tensor operations instead of kernels" in data["machine"]["note"]
    assert [outcome["section"] for outcome in data["outcomes"]] == ["check"] * 2 + ["ceilings"] * 2


def test_no_time_leaves_out_what_it_names(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    run_benchmark("gpu", "--dry_run", "--minutes", 0.001, "--out", tmp_path)
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert {outcome["status"] for outcome in data["outcomes"]} == {"left out"}
    assert all("the time limit" in line for line in data["left out"])


def test_a_section_ends_at_its_share_and_one_alone_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    left = share_out(1.0, ["check", "training"])
    assert left("check") == pytest.approx(60 * SHARES["check"] / (SHARES["check"] + SHARES["training"]))
    assert left("training") == pytest.approx(60)
    assert all(share_out(2.0, [name])(name) == pytest.approx(120) for name in ("compile", *SECTIONS))


@pytest.mark.skipif(ON_GPU, reason="there is one")
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    assert "no CUDA device was found; --dry_run" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "TRITON_INTERPRET=1 is set" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)
    monkeypatch.setattr(gpu_settings, "IS_INSTALLED", False)
    assert "the kernels need triton" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)


def test_pieces_of_a_full_run() -> None:
    settings = GpuBenchmark()
    checks = [piece.arguments[0] for piece in check_pieces(settings)]
    assert len(checks) == 3 + 3 * 12 * 2
    assert {(case.length, case.masked) for case in checks[3:]} == {
        (length, masked) for length in (1000, 4096, 333, 4097) for masked in (True, False)
    }
    assert all(case.length > case.num_landmarks for case in checks)
    # What is timed is compared.
    assert {(case.rows, case.heads, case.length) for case in checks[:3]} >= {(32, 12, 4096), (1, 12, 131072)}
    kernels = {piece.arguments for piece in pieces_to_compile(settings) if piece.work is compile_kernels}
    assert kernels >= {(256, 512, 33), (32, 4096, 33), (64, 512, 33), (8, 4096, 65)}
    assert not list(pieces_to_compile(GpuBenchmark(sections=("check",))))
    assert next(attention_pieces(settings)).title == f"32 x 4096 tokens, {OURS}"
    assert all(length % FULL.num_landmarks == 0 and FULL.tokens % length == 0 for length in FULL.lengths)


@pytest.mark.parametrize("attention", [NYSTROM, SOFTMAX])
def test_what_is_trained_is_what_is_shipped(attention: str) -> None:
    for size, taps in zip(FULL.training, (33, 65), strict=True):
        config = training_config(size, attention, "triton")
        assert (config.num_layers, config.transformer_dim, config.vocab_size) == (12, 768, 50265)
        assert config.max_seq_len == size.length
        layer = config.attentions[0]
        assert layer.conv_kernel_size == (taps if attention == NYSTROM else None)
        assert getattr(layer, "implementation", None) == ("triton" if attention == NYSTROM else None)
        assert not config.attention_grad_checkpointing
        assert not config.gelu_grad_checkpointing


def took(milliseconds: float) -> Timing:
    return Timing(milliseconds, 0.9 * milliseconds, 1.1 * milliseconds)


def check(dtype: str = "bfloat16", ours: float = 1e-3, plain: float = 1e-3, **changes: Any) -> CheckRow:
    facts: dict[str, Any] = {"repeats": True, "gives_zeros": True} | changes
    return CheckRow(dtype, 64, 64, 6, 24, 1000, 33, True, 5, {"out": ours}, {"out": plain}, **facts)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (check(ours=1.9e-3), None),
        (check(ours=2.1e-3), "error 2.10e-03, tensor operations 1.00e-03"),
        (check(ours=math.nan), "error nan"),
        (check("float32", ours=9e-6, plain=1e-7), None),
        (check("float16", ours=9e-6, plain=1e-7), "error 9.00e-06"),
        (check(repeats=False), "other bits"),
        (check(gives_zeros=False), "other values than zero"),
    ],
)
def test_what_is_wrong(row: CheckRow, words: str | None) -> None:
    found = failures([Outcome("check", "a case", MEASURED, rows=[row])])
    assert bool(found) == (words is not None)
    assert words is None or words in found[0]


def test_the_largest_ratio_is_no_number_where_there_is_one_that_is_none() -> None:
    assert largest_ratio([check(ours=3e-3), check()], "out") == pytest.approx(3)
    assert math.isnan(largest_ratio([check(), check(ours=math.nan), check()], "out"))
    assert largest_ratio([check(ours=0.0, plain=0.0)], "out") == 1.0
    assert largest_ratio([check(ours=1.0, plain=0.0)], "out") == math.inf


def test_the_report_has_shares_ratios_failures_and_omissions() -> None:
    milliseconds = 1e3 * 6 * UNIT / 2e12  # half of the copy's 4 TB/s
    rows = [
        *(check(), check("float32", ours=1.0), CeilingRow(COPY, 4e12, took(2.0)), CeilingRow(MATMUL, 800e12, took(1))),
        Cell(4096, OURS, took(milliseconds), took(4 * milliseconds), 100.0, 50.0),
        Cell(4096, FLASH, took(8 * milliseconds), took(30 * milliseconds), 90.0, 50.0),
        TrainingRow(512, 64, "nystrom", False, took(100.0), 20000.0, flops=20e12),
        TrainingRow(512, 64, "softmax", False, took(150.0), 20000.0, flops=20e12),
    ]
    outcomes = [
        Outcome("attention", "all", MEASURED, rows=rows),
        Outcome("training", "512 tokens", FAILED, "its process ended with status -11"),
        Outcome("training", "4096 tokens", LEFT_OUT, "the time limit: it is over"),
    ]
    text = report(outcomes, GpuBenchmark(), {"device": "a GPU"})
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    (ours,) = [line for line in lines if OURS in line]
    assert (ours[4:6], ours[7:9]) == (["1.00", "50.0 %"], ["1.00", "33.3 %"])
    (flash,) = [line for line in lines if FLASH in line]
    assert flash[4:] == ["8.00", "-", f"{took(30 * milliseconds):.3f}", "7.50", "-", "90.0", "0.90"]
    (nystrom, softmax) = [line for line in lines if "64 x 512" in line]
    assert (nystrom[4:7], softmax[4:7]) == (["327,680", "1.50", "25.0 %"], ["218,453", "1.00", "16.7 %"])
    assert "| copy | 4,000.0 GB/s, read and written | 2.000 (1.800-2.200) |" in text
    for line in (*failures(outcomes), *omissions(outcomes)):
        assert f"- {line}\n" in text
    assert len(failures(outcomes)) == 2
    assert omissions(outcomes) == ["training, 4096 tokens: the time limit: it is over"]
    assert "dry run" not in text
