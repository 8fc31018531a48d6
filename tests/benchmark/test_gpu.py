"""The GPU benchmark: a dry run of all of it, what it refuses, and a report that hides nothing."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreting import ON_GPU

from nystromformer.benchmark.findings import Findings
from nystromformer.benchmark.methods import SDPA
from nystromformer.benchmark.questions import gpu
from nystromformer.benchmark.questions.efficiency import HEADINGS
from nystromformer.benchmark.questions.gpu import Sizes, blocks, judge


def test_a_dry_run_goes_through_everything_and_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    compare = gpu.compare

    def fail_once(sizes: Sizes, case: Any, seed: int) -> Any:
        if seed == 8:
            raise RuntimeError("an illegal memory access")
        return compare(sizes, case, seed)

    monkeypatch.setattr(gpu, "compare", fail_once)
    shown = run_benchmark("gpu", "--dry_run", "--seed", 7, "--out", tmp_path, status=1)
    data = json.loads((tmp_path / "gpu.json").read_text())
    (failed,) = data["failed"]
    assert "'length': 40" in failed
    assert failed.endswith(": RuntimeError: an illegal memory access")
    assert data["left_out"] == []
    assert data["settings"]["dry_run"]
    check, *rest = data["records"]
    assert (check["section"], check["seed"], check["wrong"]) == ("check", 7, [])
    assert set(check["ratios"]) == {"out", "q", "k", "v", "filter"}
    speed = {record["method"] for record in rest if record["section"] == "speed"}
    assert speed == {gpu.KERNELS, SDPA, "nystrom", "near_far", "mra"}
    assert any(record["method"] == "transformers" for record in rest if record["section"] == "training")
    assert f"- {failed}" in shown
    assert f"**{HEADINGS['both.median']}**" in shown
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(ON_GPU, reason="there is one")
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    assert "no CUDA device was found; --dry_run" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "TRITON_INTERPRET=1 is set" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)
    monkeypatch.setattr(gpu, "IS_INSTALLED", False)
    assert "the kernels need triton" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)


@pytest.mark.parametrize(
    ("dtype", "ours", "plain", "words"),
    [
        ("bfloat16", 1.9e-3, 1e-3, None),
        ("bfloat16", 2.1e-3, 1e-3, "out: error 2.10e-03, tensor operations 1.00e-03"),
        ("bfloat16", math.nan, 1e-3, "out: error nan, tensor operations 1.00e-03"),
        ("float32", 9e-6, 1e-7, None),
        ("float16", 9e-6, 1e-7, "out: error 9.00e-06, tensor operations 1.00e-07"),
    ],
)
def test_what_is_wrong(dtype: str, ours: float, plain: float, words: str | None) -> None:
    ratios, wrong = judge(dtype, {"out": ours}, {"out": plain})
    assert wrong == ([words] if words else [])
    assert ratios["out"] == (None if math.isnan(ours) else ours / plain)


def test_the_table_of_errors_counts_cases_and_shows_the_largest_ratio() -> None:
    def check(ratio: float | None, wrong: list[str]) -> dict[str, Any]:
        size = {"dtype": "bfloat16", "num_landmarks": 64, "head_dim": 64}
        return {"section": "check", **size, "ratios": {"out": ratio, "q": 0.5}, "wrong": wrong}

    found = Findings("gpu", {"seed": 3}, [], records=[check(1.25, []), check(3.0, ["q: error"]), check(None, ["out"])])
    assert "| bfloat16 | 64 | 64 | 3 | 2 | 3.00 | 0.50 |" in blocks(found)[-1]
