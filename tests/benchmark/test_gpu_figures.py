"""What the GPU benchmark makes of measured times: shares, ratios, goals, and a report that hides nothing."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nystromformer.benchmark.gpu.attention import CUDNN, FLASH, OURS, TRANSFORMERS, AttentionRow, LaunchRow
from nystromformer.benchmark.gpu.bandwidth import COPY, MATMUL, CeilingRow, KernelRow
from nystromformer.benchmark.gpu.check import CheckRow
from nystromformer.benchmark.gpu.figures import MET, MISSED, UNITS, UNKNOWN, Figures, Goal, worst
from nystromformer.benchmark.gpu.report import draw, report, summary
from nystromformer.benchmark.gpu.run import as_data
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.gpu.training import TrainingRow
from nystromformer.benchmark.pieces import FAILED, LEFT_OUT, MEASURED, NoFigure, Outcome
from nystromformer.benchmark.timing import Timing

SETTINGS = GpuBenchmark()
UNIT = 131072 * 12 * 64 * 2
"""Bytes of Q."""
TERABYTE = 1e12


def took(milliseconds: float) -> Timing:
    return Timing(milliseconds, 0.9 * milliseconds, 1.1 * milliseconds)


def attention(length: int, method: str, forward: float, both: float, memory: float = 100.0) -> AttentionRow:
    return AttentionRow(length, 131072 // length, method, took(forward), took(both), memory / 2, memory)


def check(dtype: str = "bfloat16", ours: float = 1e-3, plain: float = 1e-3, **changes: Any) -> CheckRow:
    facts: dict[str, Any] = {"repeats": True, "gives_zeros": True} | changes
    return CheckRow(dtype, 64, 64, 6, 24, 1000, 33, True, 5, {"out": ours}, {"out": plain}, **facts)


def figures(*rows: object, more: Sequence[Outcome] = ()) -> Figures:
    return Figures(SETTINGS, [Outcome("attention", "an item", MEASURED, rows=rows), *more])


def ceilings(copy: float = 4 * TERABYTE, matmul: float = 800e12) -> list[CeilingRow]:
    return [CeilingRow(COPY, copy, took(2.0)), CeilingRow(MATMUL, matmul, took(1.4))]


def test_shares_of_the_copy() -> None:
    four, six, both = UNITS
    milliseconds = 1e3 * 4 * UNIT / (2 * TERABYTE)  # half of the copy's 4 TB/s
    row = attention(4096, OURS, milliseconds, 10 * milliseconds)
    run = figures(row, *ceilings())
    rates = [run.rate(row, count) for count in (four, six, both)]
    assert rates == pytest.approx([2e12, 3e12, 0.8e12])
    assert [run.of_copy(rate) for rate in rates] == pytest.approx([0.5, 0.75, 0.5 * 4 / 10])
    assert figures(row).of_copy(rates[0]) is None


def test_ratios_are_of_medians_at_one_length() -> None:
    rows = (
        attention(4096, OURS, 0.5, 2.0, memory=100),
        attention(4096, FLASH, 4.0, 15.0, memory=90),
        attention(8192, FLASH, 8.0, 30.0),
        NoFigure(TRANSFORMERS, "RuntimeError", failed=True),
    )
    run = figures(*rows)
    assert run.over_ours("forward", 4096, FLASH) == 8
    assert run.over_ours("both", 4096, FLASH) == 7.5
    assert run.over_ours("both_memory", 4096, FLASH) == pytest.approx(0.9)
    assert run.over_ours("both", 8192, FLASH) is None
    assert run.over_ours("both", 4096, TRANSFORMERS) is None


def test_goals_are_met_missed_or_not_measured() -> None:
    assert [Goal("", 2.0, value, at_most=True).state for value in (2.0, 2.1, math.nan, None)] == [
        *(MET, MISSED, MISSED, UNKNOWN),
    ]
    assert [Goal("", 6.0, value).state for value in (6.0, 5.9, math.nan, None)] == [MET, MISSED, MISSED, UNKNOWN]
    rows = [attention(4096, OURS, 0.5, 2.0), attention(4096, FLASH, 4.0, 11.0), *ceilings(), check(), check("float16")]
    states = {goal.text: goal.state for goal in figures(*rows).goals()}
    assert states["share of the copy's bandwidth, forward, 4 N·D, 4096 tokens"] == MET  # 805 MB in 0.5 ms
    assert states["times faster than flash softmax, forward, 4096 tokens"] == MET
    assert states["times faster than flash softmax, forward and backward, 4096 tokens"] == MISSED
    assert states["times faster than flash softmax, forward, 8192 tokens"] == UNKNOWN
    assert states["errors in bfloat16 over those of tensor operations, the largest of 1"] == MET
    assert states["errors in float32 over those of tensor operations, the largest of 0"] == UNKNOWN


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (check(ours=1.9e-3), None),
        (check(ours=2.1e-3), "error 2.10e-03, tensor operations 1.00e-03"),
        (check(ours=math.nan), "error nan"),
        (check(ours=math.inf), "error inf"),
        (check("float32", ours=9e-6, plain=1e-7), None),
        (check("float32", ours=2e-5, plain=1e-7), "error 2.00e-05"),
        (check("float16", ours=9e-6, plain=1e-7), "error 9.00e-06"),
        (check(repeats=False), "other bits"),
        (check(gives_zeros=False), "other values than zero"),
    ],
)
def test_what_is_wrong(row: CheckRow, words: str | None) -> None:
    assert bool(row.wrong) == (words is not None)
    assert words is None or words in row.wrong[0]
    assert len(figures(row).failures()) == len(row.wrong)


def test_the_worst_is_no_number_where_there_is_one_that_is_none() -> None:
    assert worst([1.0, 3.0, 2.0]) == 3
    assert math.isnan(worst([1.0, math.nan, 3.0]))
    assert check(ours=0.0, plain=0.0).ratios == {"out": 1.0}
    assert check(ours=1.0, plain=0.0).ratios == {"out": math.inf}


def test_speed_use_and_hours_of_training() -> None:
    row = TrainingRow(512, 64, "nystrom", False, 110_000_000, took(100.0), 20000.0, flops=20e12)
    assert row.tokens_per_second == pytest.approx(327_680)
    assert figures(row, *ceilings(matmul=800e12)).use_of_device(row) == pytest.approx(0.25)
    assert figures(row).use_of_device(row) is None
    assert row.hours_of_the_paper == pytest.approx(0.5e6 * 256 * 512 / 327_680 / 3600)


def test_other_batches_of_a_length_are_compared_with_themselves() -> None:
    alone = [
        AttentionRow(4096, 1, OURS, took(0.1), took(0.4), 1, 1),
        AttentionRow(4096, 1, FLASH, took(0.3), took(0.6), 1, 1),
    ]
    run = figures(*alone, attention(4096, OURS, 0.5, 2.0), attention(4096, FLASH, 4.0, 15.0))
    assert run.over_ours("forward", 4096, FLASH) == 8
    assert run.over_ours("forward", 4096, FLASH, rows=1) == pytest.approx(3)
    assert run.lengths() == [4096]
    assert figures(*alone).lengths() == []
    assert "| 4096 | 1 | softmax, flash | 0.300 (0.270-0.330) | 3.00 |" in report(run, {})


def test_the_longest_sequence_must_fit_the_device() -> None:
    row = AttentionRow(1 << 20, 1, OURS, took(4.0), took(16.0), 2000.0, 8000.0)
    inputs = 4 * 12 * 64 * 2  # MiB: Q, K, V and a gradient, of 12 heads of 64 two-byte numbers
    found = Figures(SETTINGS, [Outcome("attention", "", MEASURED, rows=(row,))], 14144.0).goals()
    goal = list(found)[-3]
    assert goal.text.startswith("share of the device's memory, forward and backward, one sequence of 1048576 tokens")
    assert goal.reached == pytest.approx((8000 + inputs) / 14144) == 1
    assert goal.state == MET
    assert list(Figures(SETTINGS, [], 14144.0).goals())[-3].state == UNKNOWN


def test_training_is_compared_each_at_its_faster() -> None:
    times = {("nystrom", False): 100.0, ("nystrom", True): 80.0, ("softmax", False): 150.0, ("softmax", True): 120.0}
    rows = [TrainingRow(4096, 8, name, compiled, 1, took(value), 1, 1) for (name, compiled), value in times.items()]
    run = figures(*rows, TrainingRow(512, 64, "softmax", True, 1, took(1), 1, 1))
    assert run.training_faster(4096, compiled=True) == pytest.approx(1.5)
    assert run.training_faster(4096) == pytest.approx(1.5)
    assert figures(*rows[:1], *rows[2:]).training_faster(4096) == pytest.approx(1.2)
    assert run.training_faster(512) is None
    states = {goal.text[-40:]: goal.state for goal in run.goals() if "pretraining" in goal.text}
    assert list(states.values()) == [UNKNOWN, MISSED]


def everything() -> Figures:
    """Of each kind of row, with things that failed and that were left out."""
    timing = took(0.5)
    return figures(
        *(check(), check("float32", ours=1.0), *ceilings()),
        KernelRow(4096, 32, "keys_kernel", timing, 400_000_000),
        KernelRow(4096, 32, "forward and backward", timing, None),
        *(attention(4096, OURS, 0.5, 2.0), attention(4096, FLASH, 4.0, 13.0)),
        *(attention(8192, OURS, 0.5, 2.0), attention(1 << 20, OURS, 4.0, 16.0)),
        NoFigure(TRANSFORMERS, "OutOfMemoryError: 3 | 4 GiB", failed=True),
        NoFigure(CUDNN, "No available kernel", failed=False),
        LaunchRow(512, OURS, timing, timing, timing),
        LaunchRow(512, FLASH, timing, timing, None),
        NoFigure(f"CUDA graph of {FLASH}", "capturing failed", failed=False),
        TrainingRow(512, 64, "nystrom", False, 110_000_000, took(100.0), 20000.0, flops=20e12),
        NoFigure("softmax", "found no C++ compiler", failed=False),
        more=[
            Outcome("kernels", "512 tokens", FAILED, "its process ended with status -11"),
            Outcome("training", "2 x 16384 tokens", LEFT_OUT, "the time limit: it is over"),
        ],
    )


def test_failures_and_omissions_are_named() -> None:
    run = everything()
    assert run.failures() == [
        "kernels, 512 tokens: its process ended with status -11",
        "check, an item: out: error 1.00e+00, tensor operations 1.00e-03",
        "attention, an item, transformers: OutOfMemoryError: 3 | 4 GiB",
    ]
    assert run.omissions() == [
        "training, 2 x 16384 tokens: the time limit: it is over",
        "attention, an item, softmax, cuDNN: No available kernel",
        "attention, an item, CUDA graph of softmax, flash: capturing failed",
        "attention, an item, softmax: found no C++ compiler",
    ]


def test_report_summary_data_and_pictures(tmp_path: Path) -> None:
    run = everything()
    text = report(run, {"device": "a GPU", "commit": "abc"})
    for title in ("Goals", "Correctness", "Ceilings", "Kernels", "Attention", "Launches", "Pretraining steps"):
        assert f"\n## {title}\n" in text
    assert "dry run" not in text
    assert "| keys | 0.500 (0.450-0.550) | 400.0 | 800 | 20.0 % |" in text
    assert "| 4096 | 32 | softmax, flash | 4.000 (3.600-4.400) | 8.00 |" in text
    assert "| times faster than flash softmax, forward, 4096 tokens | ≥ 6 | 8 | met |" in text
    for line in (*run.failures(), *run.omissions()):
        assert f"- {line}\n" in text
    lines = summary(run).splitlines()
    assert len(lines) < 50
    assert "copy: 4,000 GB/s, read and written" in lines
    assert lines[-3:] == [f"FAILED: {line}" for line in run.failures()]
    data = json.loads(json.dumps(as_data(run, {"device": "a GPU"})))
    assert data["failed"] == run.failures()
    assert data["left out"] == run.omissions()
    assert {goal["state"] for goal in data["goals"]} == {MET, MISSED, UNKNOWN}
    draw(run, tmp_path, "a GPU")
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-time.png", "gpu-bandwidth.png"}


def test_a_report_of_nothing_says_so(tmp_path: Path) -> None:
    nothing = Figures(SETTINGS, [])
    draw(nothing, tmp_path, "")
    assert not list(tmp_path.iterdir())
    assert "## Goals" in report(nothing, {})
    assert "goals: 0 met, 0 missed" in summary(nothing)
    assert "times faster" not in summary(nothing)
