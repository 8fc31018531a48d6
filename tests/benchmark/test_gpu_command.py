"""The GPU benchmark's command: a dry run of all of it, and what it refuses."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreting import ON_GPU

from nystromformer.benchmark.gpu import check as gpu_check
from nystromformer.benchmark.gpu import settings as gpu_settings
from nystromformer.benchmark.gpu import training as gpu_training
from nystromformer.benchmark.gpu.attention import attention_pieces
from nystromformer.benchmark.gpu.bandwidth import kernel_pieces
from nystromformer.benchmark.gpu.check import Comparison, check_pieces
from nystromformer.benchmark.gpu.run import compile_kernels, compile_layers, pieces_to_compile
from nystromformer.benchmark.gpu.settings import TINY, GpuBenchmark
from nystromformer.benchmark.gpu.training import measure_training, training_pieces
from nystromformer.benchmark.peers import is_installed
from nystromformer.training.compile import missing_compiler

SCRIPT = "code/run_benchmark.py"
CAN_COMPILE = missing_compiler(torch.device("cuda" if ON_GPU else "cpu")) is None


def rows(data: dict[str, Any], section: str) -> list[dict[str, Any]]:
    return [row for outcome in data["outcomes"] if outcome["section"] == section for row in outcome["rows"]]


@pytest.mark.skipif(ON_GPU, reason="the interpreter takes tensors on a CPU")
@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--sections", "kernels,ceilings"), ()], ids=str)
def test_a_dry_run_goes_through_everything(
    flags: tuple[str, ...], tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    shown = run_benchmark("gpu", "--dry_run", *flags, "--seed", 7, "--out", tmp_path)
    assert shown.startswith("dry run: figures mean nothing")
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert {outcome["status"] for outcome in data["outcomes"]} == {"measured"}
    assert data["failed"] == []
    assert data["machine"]["note"] == "dry run: figures mean nothing; ours: the kernels in Triton's interpreter"
    script, *words = shlex.split(data["machine"]["command"])[1:]
    assert script.endswith("code/run_benchmark.py")
    assert sorted(words) == sorted(["gpu", "--dry_run", *flags, "--seed", "7", "--out", str(tmp_path)])
    assert [row["name"] for row in rows(data, "ceilings")] == ["copy", "matmul"]
    kernels = [row for row in rows(data, "kernels") if "nbytes" in row]
    assert len(kernels) >= 9 + 1
    assert [row["kernel"] for row in kernels if row["nbytes"] is None] == ["forward and backward"]
    assert "**dry run: figures mean nothing**" in (tmp_path / "gpu.md").read_text()
    if flags:
        return
    assert "3 comparisons, 0 wrong" in shown
    assert [row["seed"] for row in rows(data, "check")] == [7, 8, 9]
    measured = [row for row in rows(data, "attention") if "rows" in row]
    attention = {(row["length"], row["method"]): row for row in measured if row["rows"] == 1}
    peers = ["nystrom, kernels", "nystrom, kernels, padding", "nystrom, torch", "softmax, flash", "transformers"]
    if is_installed("nystrom_attention"):
        peers.append("nystrom-attention")
    assert len(measured) == 2 * len(peers) + 1 + 3
    assert all(attention[64, name]["both"]["median"] > 0 < attention[64, name]["both_memory"] for name in peers)
    assert "attention, 1 x 64 tokens, softmax, cuDNN: cuDNN computes on CUDA devices alone" in data["left out"]
    trained = rows(data, "training")
    assert [(row["length"], row["attention"]) for row in trained] == [
        *((64, "nystrom"), (64, "softmax"), (40, "nystrom"), (40, "softmax")),
    ]
    assert all(row["time"]["median"] > 0 < row["flops"] for row in trained)
    for name in ("gpu-time.png", "gpu-bandwidth.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_without_the_interpreter_tensor_operations_stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    flags = ["--dry_run", "--sections", "kernels, check", "--out", tmp_path]
    run_benchmark("gpu", *flags)
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert "tensor operations instead of kernels" in data["machine"]["note"]
    assert [outcome["section"] for outcome in data["outcomes"]] == ["check"] * 3 + ["kernels"] * 2
    assert data["left out"][0].startswith("kernels, 64 tokens: no kernel runs here")


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
    flags = ["--dry_run", "--sections", "check,ceilings", "--out", tmp_path]
    shown = run_benchmark("gpu", *flags, status=1)
    assert (
        "FAILED: check, float32, M 32, D 32, 6 x 1 heads of N 40, masked: RuntimeError: an illegal memory access"
        in shown
    )
    assert "copy: " in shown


def test_no_time_leaves_out_what_it_names(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    flags = ["--dry_run", "--minutes", 0.001, "--out", tmp_path]
    run_benchmark("gpu", *flags)
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert {outcome["status"] for outcome in data["outcomes"]} == {"left out"}
    assert len(data["left out"]) == len(data["outcomes"])
    assert all("the time limit" in line for line in data["left out"])


@pytest.mark.skipif(ON_GPU, reason="there is one")
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    assert "found no CUDA device; --dry_run" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "TRITON_INTERPRET=1 is set" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)
    monkeypatch.setattr(gpu_settings, "IS_INSTALLED", False)
    assert "the kernels need triton" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)


def test_pieces_of_a_full_run() -> None:
    settings = GpuBenchmark()
    pieces = list(check_pieces(settings))
    checks: list[Comparison] = [piece.arguments[0] for piece in pieces]
    assert len({piece.arguments[1] for piece in pieces}) == len(checks) == 3 + 4 * 3 * 2 + 11 * 3 * 2
    lengths = {(case.length, case.masked) for case in checks[27:]}
    assert lengths == {(length, masked) for length in (1000, 4096, 333, 4097) for masked in (True, False)}
    assert all(case.length > case.num_landmarks for case in checks)
    # What is timed is compared, and work of many heads is cut otherwise than that of few.
    assert {(case.rows, case.heads, case.length) for case in checks[:3]} >= {(32, 12, 4096), (1, 12, 131072)}
    assert {case.rows * case.heads for case in checks[3:]} == {6 * 24, 6 * 2}
    first = list(pieces_to_compile(settings))
    kernels = {piece.arguments[:2] for piece in first if piece.work is compile_kernels}
    assert kernels >= {(256, 512), (1, 131072), (1, 512), (64, 512), (8, 4096), (128, 4096)}
    assert len([piece for piece in first if piece.work is compile_layers]) == (6 if CAN_COMPILE else 0)
    titles = [piece.title for piece in attention_pieces(settings)]
    assert titles[0] == "32 x 4096 tokens"
    assert len(titles) == len(set(titles)) == 9 + 1 + 2 + 6
    assert [piece.title for piece in training_pieces(settings)][:4] == [
        "64 x 512 tokens, eager",
        "8 x 4096 tokens, eager",
        "2 x 16384 tokens, eager",
        "64 x 512 tokens, compiled layers",
    ]
    assert next(piece.title for piece in kernel_pieces(settings)) == "4096 tokens"
    assert not list(pieces_to_compile(GpuBenchmark(sections=("check",))))


def test_layers_that_are_compiled_first_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(gpu_training, "compile_units", lambda layers, device: compiled.append(len(layers)))
    settings = GpuBenchmark(dry_run=True, implementation="torch", sizes=TINY)
    assert compile_layers(settings, TINY.training[1], "softmax") == []
    rows = measure_training(settings, TINY.training[1], compiled=True)
    assert [row.compiled for row in rows] == [True, True]
    assert compiled == [2, 1, 1]


@pytest.mark.slow
def test_sigterm_leaves_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "gpu", "--dry_run", "--sections", "ceilings,training", "--out", tmp_path]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "ceilings, matmul: measured" in line:
            process.terminate()
            break
    assert process.wait(60) == 143
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["name"] for row in rows(data, "ceilings")] == ["copy", "matmul"]
    assert "| copy | " in (tmp_path / "gpu.md").read_text()
