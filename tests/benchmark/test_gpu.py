"""The GPU benchmark: a dry run of all of it, what it refuses, and a report that hides nothing."""

import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from interpreting import ON_GPU

from nystromformer.benchmark.apart import Work, run_works
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
def test_without_a_gpu(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    assert "no CUDA device was found; --dry_run" in run_benchmark("gpu", "--out", tmp_path / "out", status=2)
    assert not (tmp_path / "out").exists()


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


CODE = {
    "dies": "__import__('os')._exit(7)",
    "hangs": "__import__('time').sleep(600)",
    "raises": "exec('raise RuntimeError(\\'at 3:7:\\\\n  x = y\\\\n\\\\nout of registers\\\\n\\')')",
    "absent": "exec('from nystromformer.benchmark.apart import LeftOut; raise LeftOut(\\'not here\\')')",
}
"""What processes of their own can import."""


def works(*titles: str) -> dict[str, Work]:
    """Each does what its title says."""
    return {title: partial(eval, CODE.get(title, "[{'process': __import__('os').getpid()}]")) for title in titles}


def test_what_fails_or_has_no_time_is_told_and_the_rest_goes_on() -> None:
    found = dict(run_works(works("raises", "absent", "works"), 0, time.monotonic() + 9))
    assert found == {
        "raises": {"failed": "RuntimeError: at 3:7: ... out of registers"},
        "absent": {"left_out": "not here"},
        "works": {"records": [{"process": os.getpid()}]},
    }
    assert dict(run_works(works("works"), 0, time.monotonic())) == {
        "works": {"left_out": "it did not end within the time limit"}
    }


@pytest.mark.slow
def test_what_dies_or_never_ends_costs_itself_alone() -> None:
    found = dict(run_works(works("first", "dies", "second"), 2, time.monotonic() + 600))
    assert found.pop("dies") == {"failed": "its process ended with exit status 7"}
    assert len({found[name]["records"][0]["process"] for name in ("first", "second")} | {os.getpid()}) == 3
    assert dict(run_works(works("hangs"), 1, time.monotonic() + 1)) == {
        "hangs": {"left_out": "it did not end within the time limit"}
    }
    assert not multiprocessing.active_children()
