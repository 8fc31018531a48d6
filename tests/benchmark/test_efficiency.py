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
    Part,
    attention_part,
    choose_methods,
    encoder_part,
    parse_method,
)
from nystromformer.benchmark.efficiency.report import (
    Cell,
    Measurements,
    Omission,
    as_data,
    crossing_text,
    crossover,
    describe_omissions,
    exponent,
    to_read,
)
from nystromformer.benchmark.peers import elementwise, is_installed
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.timing import Passes, Timing
from nystromformer.config import ATTENTIONS
from nystromformer.training.device import choose_device

CPU = choose_device("cpu", mixed_precision=False)
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
    assert [crossing_text(each, sorted(flat)) for each in (512.0, None, 700.4)] == [
        "from 512 or less",
        "not up to 2048",
        "from 700",
    ]


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


def test_all_methods_of_a_part_compute_the_same_shapes() -> None:
    methods = choose_methods(["linear", "reformer,chunk_length=8", "linformer,projected_length=8"])
    sizes = {"encoder_batch": 2, "encoder_layers": 1, "encoder_heads": 2, "encoder_width": 16}
    settings = Efficiency(batch=2, heads=2, head_dim=8, **sizes)
    passes = attention_part(settings, CPU).passes(methods, 16)
    assert list(passes) == [method.name for method in methods]
    torch.testing.assert_close(passes[SDPA].forward(), passes[WRITTEN_OUT].forward())
    for each in passes.values():
        out = each.forward()
        assert isinstance(out, torch.Tensor)
        assert out.shape == (2, 2, 16, 8)
    part = encoder_part(settings, CPU)
    encoder = part.passes([method for method in methods if part.takes(method)], 16)
    assert CONTROL not in encoder
    torch.testing.assert_close(encoder[SDPA].forward(), encoder[WRITTEN_OUT].forward())
    before = encoder["linear"].forward()
    encoder["linear"].both()
    assert not torch.equal(torch.as_tensor(before), torch.as_tensor(encoder["linear"].forward())), "a step was taken"


RAN: list[tuple[str, int]] = []
"""Methods and lengths of the works of `slow` that have run."""


def slow_passes(methods: list[Method], length: int) -> dict[str, Passes]:
    """Of methods that take, in clocks that do not run, what `timings` says."""

    def work(name: str) -> Passes:
        return Passes(lambda: None, lambda: RAN.append((name, length)))

    return {method.name: work(method.name) for method in methods}


SLOW = Part("attention", (1000, 2000, 100_000), 12, slow_passes)
METHODS = [Method(name, None, lambda heads, head_dim, length: elementwise) for name in ("one", "two")]


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass takes a millisecond a token."""

    def side_by_side(works: dict[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, Timing]:
        for work in works.values():
            work()
        last = RAN[-1][1] if RAN else 1
        return {name: Timing(*[float(last)] * 3) for name in works}

    RAN.clear()
    monkeypatch.setattr(measuring, "time_side_by_side", side_by_side)
    monkeypatch.setattr(measuring, "peak_memory", lambda work: 1.0)


def measured(methods: list[Method], seconds: float) -> Measurements:
    found = Measurements()
    for length in SLOW.lengths:
        measure_at(SLOW, methods, length, 3, time.monotonic() + seconds, found)
    return found


@pytest.mark.usefixtures("timings")
def test_what_the_budget_does_not_allow_is_left_out() -> None:
    found = measured(METHODS, 70)
    assert [(cell.length, cell.method) for cell in found.cells] == [
        (n, m) for n in (1000, 2000) for m in ("one", "two")
    ]
    assert {(one.length, one.method) for one in found.left_out} == {(100_000, "one"), (100_000, "two")}
    assert all(one.why.startswith("budget: some ") for one in found.left_out)
    # The shortest length tells what the others take.
    assert [cell.length for cell in measured(METHODS, 0).cells] == [1000, 1000]


@pytest.mark.usefixtures("timings")
def test_matrices_that_do_not_fit_are_never_made() -> None:
    written_out = replace(METHODS[0], name=WRITTEN_OUT)
    found = Measurements()
    measure_at(SLOW, [written_out], 10**7, 3, time.monotonic() + 60, found)
    assert found.left_out[0].why.startswith("memory: its N x N matrices take 1,117,587.1 GiB of ")
    assert RAN == []


def cell(length: int, method: str, cost: float) -> Cell:
    return Cell("attention", length, method, *[Timing(cost, cost, cost)] * 2, cost, cost)


FOUND = Measurements(
    [
        *(cell(length, SDPA, length**2 / 1e4) for length in (512, 2048, 4096)),
        *(cell(length, "linear", length / 10) for length in (512, 2048, 4096)),
        cell(512, WRITTEN_OUT, 52.4288),
    ],
    [Omission("attention", 2048, WRITTEN_OUT, "memory: about 9.0 GiB, of 1.0 that were free")],
)


def test_tables_say_the_ratios_the_growth_and_what_is_missing() -> None:
    text = to_read(FOUND, ["# Title"])
    (row, *_) = [line for line in text.splitlines() if line.startswith("| linear")]
    cells = [part.strip() for part in row.strip("|").split("|")]
    assert cells == ["linear", "51.2 (1.95, 0.98)", "205 (0.49, –)", "410 (0.24, –)", "1.00", "from 1,000"]
    (row, *_) = [line for line in text.splitlines() if line.startswith("| softmax, written out")]
    assert row.count("left out") == 2
    assert (
        describe_omissions(FOUND)[1]
        == f"- attention, {WRITTEN_OUT}: 2048 (memory: about 9.0 GiB, of 1.0 that were free)"
    )
    (scaling,) = [each for each in as_data(FOUND)["scaling"] if each["method"] == "linear"]
    assert scaling["both_crossover"] == pytest.approx(1000)
    assert scaling["memory_exponent"] == pytest.approx(1)


def test_peers_of_the_papers_nystrom_take_its_settings() -> None:
    methods = {
        method.name: method for method in choose_methods(["nystrom,num_landmarks=8,conv_kernel_size=5"], peers=True)
    }
    label = "nystrom (num_landmarks 8, conv_kernel_size 5)"
    assert {f"{SDPA}{MASKED}", label, f"{label}{MASKED}", "authors' formulation, 8", "transformers, 8"} <= set(methods)
    assert methods["transformers, 8"].why_not(20) == "expected a multiple of 8 landmarks, larger than it"
    settings = Efficiency(batch=2, heads=2, head_dim=8)
    passes = attention_part(settings, CPU).passes(list(methods.values()), 40)
    shapes = {name: each.forward().shape for name, each in passes.items()}  # type: ignore[attr-defined]
    assert set(shapes.values()) <= {(2, 2, 40, 8), (2, 40, 16)}
    (padded,) = [passes[name].forward() for name in shapes if name == f"{label}{MASKED}"]
    assert not torch.as_tensor(padded)[:, :, 36:].any()
    assert "local-attention" in [method.name for method in choose_methods(["local"], peers=True)] or not is_installed(
        "local_attention"
    )


@pytest.mark.slow
def test_the_command_measures_and_writes(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    chosen = ("--attention", "linear", "--attention", "nystrom,num_landmarks=8", "--repeats", 1, "--threads", 1)
    sizes = ("--heads", 2, "--head_dim", 8, "--lengths", "16,32", "--encoder_lengths", "16", "--encoder_batch", 2)
    assert "nystrom (num_landmarks 8)" in run_benchmark("efficiency", *chosen, *sizes, "--out", tmp_path)
    data = json.loads((tmp_path / "efficiency.json").read_text())
    measured = {(each["part"], each["length"], each["method"]) for each in data["cells"]}
    names = {SDPA, WRITTEN_OUT, "linear", "nystrom (num_landmarks 8)"}
    assert measured == {
        *(("attention", length, name) for length in (16, 32) for name in (*names, CONTROL)),
        *(("encoder", 16, name) for name in names),
    }
    assert "commit" in data["machine"]
    for part in ("attention", "encoder"):
        assert (tmp_path / f"efficiency-{part}.png").read_bytes().startswith(b"\x89PNG")
    assert "run_benchmark.py efficiency --attention linear" in (tmp_path / "efficiency.md").read_text()
