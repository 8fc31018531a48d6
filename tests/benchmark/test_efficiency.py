"""The comparison of all attentions: what it measures, leaves out, computes of the figures, and refuses."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.benchmark.efficiency import measure as measuring
from nystromformer.benchmark.efficiency.measure import carry_on, measure_at
from nystromformer.benchmark.efficiency.methods import (
    CONTROL,
    MASKED,
    SDPA,
    WRITTEN_OUT,
    Method,
    choose_methods,
    parse_method,
)
from nystromformer.benchmark.efficiency.report import (
    Cell,
    Measurements,
    Omission,
    crossing_text,
    crossover,
    describe_omissions,
    exponent,
    to_read,
)
from nystromformer.benchmark.peers import elementwise
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.timing import Passes, Timing, passes_side_by_side
from nystromformer.config import ATTENTIONS

lengths = st.lists(st.integers(2048, 10**6), min_size=2, max_size=6, unique=True)


@given(lengths, st.floats(0.1, 3), st.floats(1e-3, 1e3))
def test_the_exponent_of_a_power_is_found(lengths: list[int], power: float, scale: float) -> None:
    found = exponent({length: scale * length**power for length in lengths})
    assert found == pytest.approx(power, rel=1e-6)


def test_short_lengths_have_no_part_in_the_exponent() -> None:
    assert exponent({512: 900.0, 2048: 2.0, 4096: 4.0}) == pytest.approx(1)
    assert exponent({512: 1.0, 4096: 4.0}) is None


@given(st.floats(600, 8000), st.floats(1.2, 3))
def test_lines_cross_where_they_are_equal(crossing: float, power: float) -> None:
    lengths = (512, 1024, 2048, 4096, 8192)
    others = {length: (length / crossing) ** power for length in lengths}
    assert crossover({length: length / crossing for length in lengths}, others) == pytest.approx(crossing, rel=1e-6)


def test_what_stays_below_or_above_does_not_cross() -> None:
    flat = {512: 1.0, 1024: 1.0, 2048: 1.0}
    below, above = (dict.fromkeys(flat, factor) for factor in (0.5, 2.0))
    assert crossover(below, flat) == 512
    assert crossover(above, flat) is None
    assert crossover({512: 0.5, 1024: 2.0, 2048: 0.5}, flat) == pytest.approx(math.sqrt(1024 * 2048))
    assert [crossing_text(each, flat) for each in (below, above)] == ["from 512 or less", "not up to 2048"]


def test_costs_are_carried_on() -> None:
    assert carry_on({512: 1.0}, 1024) == pytest.approx(4.0), "with the square, from one"
    assert carry_on({512: 1.0, 1024: 1.1}, 4096) == pytest.approx(4.4), "proportional at least"
    assert carry_on({512: 10.0, 1024: 30.0}, 4096) == pytest.approx(30 * 3**2), "as it grew"


def test_all_attentions_are_compared_unless_some_are_asked_for() -> None:
    names = [method.name for method in choose_methods(())]
    assert names[:2] == [SDPA, WRITTEN_OUT]
    assert set(ATTENTIONS) - {"softmax"} < set(names)
    assert "nystrom (num_landmarks 32)" in names
    chosen = choose_methods(["softmax", "linear", "linear"])
    assert [method.name for method in chosen] == [SDPA, WRITTEN_OUT, "linear", CONTROL]
    with_object = parse_method('{"name": "longformer", "window": 8, "dilation": [1, 2]}')
    assert with_object.config is not None
    assert with_object.config.model_dump()["window"] == 8


def shapes_of(methods: list[Method], length: int) -> dict[str, torch.Tensor]:
    calls = {method.name: method.build(2, 8, length) for method in methods}
    passes = passes_side_by_side(calls, (2, length, 2, 8), torch.device("cpu"))
    return {name: torch.as_tensor(each.forward()) for name, each in passes.items()}


def test_all_methods_compute_the_same_shapes() -> None:
    methods = choose_methods(["linear", "reformer,chunk_length=8", "linformer,projected_length=8"])
    out = shapes_of(methods, 16)
    assert {each.shape for each in out.values()} == {(2, 2, 16, 8)}
    torch.testing.assert_close(out[SDPA], out[WRITTEN_OUT])


SETTINGS = Efficiency(batch=1, heads=1, repeats=3)
METHODS = [Method(name, None, lambda heads, head_dim, length: elementwise) for name in ("one", "two")]
RAN: list[int] = []
"""Lengths of the works that have run."""


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass takes a millisecond a token, in a clock that does not run."""

    def passes(calls: dict[str, object], size: tuple[int, ...], device: torch.device) -> dict[str, Passes]:
        return {name: Passes(lambda: None, lambda: RAN.append(size[1])) for name in calls}

    def side_by_side(works: dict[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, Timing]:
        for work in works.values():
            work()
        return {name: Timing(*[float(RAN[-1] if RAN else 1)] * 3) for name in works}

    RAN.clear()
    monkeypatch.setattr(measuring, "passes_side_by_side", passes)
    monkeypatch.setattr(measuring, "time_side_by_side", side_by_side)
    monkeypatch.setattr(measuring, "peak_memory", lambda work: 1.0)


def measured(seconds: float) -> Measurements:
    found = Measurements()
    for length in (1000, 2000, 100_000):
        measure_at(SETTINGS, METHODS, length, time.monotonic() + seconds, found)
    return found


@pytest.mark.usefixtures("timings")
def test_what_the_budget_does_not_allow_is_left_out() -> None:
    found = measured(70)
    assert [(cell.length, cell.method) for cell in found.cells] == [
        (n, m) for n in (1000, 2000) for m in ("one", "two")
    ]
    assert {(one.length, one.method) for one in found.left_out} == {(100_000, "one"), (100_000, "two")}
    assert all(one.why.startswith("budget: some ") for one in found.left_out)
    # The shortest length tells what the others take.
    assert [cell.length for cell in measured(0).cells] == [1000, 1000]


@pytest.mark.usefixtures("timings")
def test_matrices_that_do_not_fit_are_never_made() -> None:
    written_out = replace(METHODS[0], name=WRITTEN_OUT)
    found = Measurements()
    measure_at(SETTINGS, [written_out], 10**7, time.monotonic() + 60, found)
    assert found.left_out[0].why.startswith("memory: its N x N matrices take 1,117,587.1 GiB of ")
    assert RAN == []


def cell(length: int, method: str, cost: float) -> Cell:
    return Cell(length, method, *[Timing(cost, cost, cost)] * 2, cost, cost)


FOUND = Measurements(
    [
        *(cell(length, SDPA, length**2 / 1e4) for length in (512, 2048, 4096)),
        *(cell(length, "linear", length / 10) for length in (512, 2048, 4096)),
        cell(512, WRITTEN_OUT, 52.4288),
    ],
    [Omission(2048, WRITTEN_OUT, "memory: about 9.0 GiB, of 1.0 that were free")],
)


def test_tables_say_the_ratios_the_growth_and_what_is_missing() -> None:
    text = to_read(FOUND, ["# Title"])
    (row, *_) = [line for line in text.splitlines() if line.startswith("| linear")]
    cells = [part.strip() for part in row.strip("|").split("|")]
    assert cells == ["linear", "51.2 (1.95, 0.98)", "205 (0.49, –)", "410 (0.24, –)", "1.00", "from 1,000"]
    (row, *_) = [line for line in text.splitlines() if line.startswith("| softmax, written out")]
    assert row.count("left out") == 2
    assert describe_omissions(FOUND)[1] == f"- {WRITTEN_OUT}: 2048 (memory: about 9.0 GiB, of 1.0 that were free)"


def test_peers_of_the_papers_nystrom_take_its_settings() -> None:
    chosen = choose_methods(["nystrom,num_landmarks=8,conv_kernel_size=5"], peers=True)
    methods = {method.name: method for method in chosen}
    label = "nystrom (num_landmarks 8, conv_kernel_size 5)"
    assert {f"{SDPA}{MASKED}", label, f"{label}{MASKED}", "authors' formulation, 8", "transformers, 8"} <= set(methods)
    assert methods["transformers, 8"].why_not(20) == "expected a multiple of 8 landmarks, larger than it"
    out = shapes_of(chosen, 40)
    assert {each.shape for each in out.values()} <= {(2, 2, 40, 8), (2, 40, 16)}
    assert not out[f"{label}{MASKED}"][:, :, 36:].any()


def test_the_command_measures_and_writes(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    chosen = ("--attention", "linear", "--attention", "nystrom,num_landmarks=8", "--repeats", 1, "--threads", 1)
    sizes = ("--heads", 2, "--head_dim", 8, "--lengths", "16,32", "--peers", "--out", tmp_path)
    assert "nystrom (num_landmarks 8)" in run_benchmark("efficiency", *chosen, *sizes)
    data = json.loads((tmp_path / "efficiency.json").read_text())
    measured = {(each["length"], each["method"]) for each in data["cells"]}
    names = {SDPA, WRITTEN_OUT, "linear", "nystrom (num_landmarks 8)", "authors' formulation, 8", CONTROL}
    assert {(length, name) for length in (16, 32) for name in names} <= measured
    assert "commit" in data["machine"]
    assert (tmp_path / "efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert "run_benchmark.py efficiency --attention linear" in (tmp_path / "efficiency.md").read_text()
