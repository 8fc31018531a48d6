"""The comparison of all attentions: what it measures, leaves out, and computes of the figures."""

import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.benchmark.findings import Findings
from nystromformer.benchmark.methods import CONTROL, EQUAL_KEYS, MASKED, SDPA, WRITTEN_OUT, choose_methods, expand
from nystromformer.benchmark.questions import efficiency
from nystromformer.benchmark.questions.efficiency import Efficiency, crossing, exponent, measure_at
from nystromformer.config import ATTENTIONS
from nystromformer.config.attention_text import parse_attention

lengths = st.lists(st.integers(2048, 10**6), min_size=2, max_size=6, unique=True)


@given(lengths, st.floats(0.1, 3), st.floats(1e-3, 1e3))
def test_the_exponent_of_a_power_is_found(lengths: list[int], power: float, scale: float) -> None:
    costs = {512: 900.0, **{length: scale * length**power for length in sorted(lengths)}}
    assert exponent(pd.Series(costs)) == pytest.approx(power, rel=1e-4, abs=1e-4)
    assert exponent(pd.Series({512: 1.0, 4096: 4.0})) is None, "short lengths have no part in it"


@given(st.floats(600, 8000), st.floats(1.2, 3))
def test_lines_cross_where_they_are_equal(at: float, power: float) -> None:
    ratios = {length: (length / at) / (length / at) ** power for length in (512, 1024, 2048, 4096, 8192)}
    assert crossing(pd.Series(ratios)) == f"from {at:,.0f}"


@pytest.mark.parametrize(
    ("ratios", "words"),
    [((0.5, 0.5, 0.5), "from 512 or less"), ((2, 2, 2), "not up to 2048"), ((0.5, 2, 0.5), "from 1,448"), ((), "-")],
)
def test_what_stays_below_or_above_does_not_cross(ratios: tuple[float, ...], words: str) -> None:
    assert crossing(pd.Series(dict(zip((512, 1024, 2048), ratios, strict=False)), dtype=float)) == words


def test_all_attentions_are_compared_unless_some_are_asked_for() -> None:
    names = [method.name for method in choose_methods((), peers=False, length=2048)]
    assert names[:2] == [SDPA, WRITTEN_OUT]
    assert set(ATTENTIONS) - {"softmax"} < set(names)
    assert {"nystrom (num_landmarks 32)", "nystrom (num_landmarks N/8)", "local (block_size 64)"} < set(names)
    texts = ["softmax", "linear", "linear", "nystrom,num_landmarks=8/N/16"]
    chosen = choose_methods(texts, peers=False, length=512)
    assert [method.name for method in chosen[2:]] == [
        *("linear", "nystrom (num_landmarks 8)", "nystrom (num_landmarks N/16)", CONTROL)
    ]
    assert expand(["local,block_size=4/8,neighbours=1/2", '{"name":"a/b"}'])[1:] == [
        *(f"local,block_size={each}" for each in ("4,neighbours=2", "8,neighbours=1", "8,neighbours=2")),
        '{"name":"a/b"}',
    ]


def test_rows_of_equal_keys_are_equal() -> None:
    near_far, local, longformer, bigbird = (parse_attention(text)[0].model_dump() for text in EQUAL_KEYS[:4])
    near = near_far["block_size"] * (1 + 2 * near_far["neighbours"] + near_far["num_blocks"])
    assert near + near_far["num_selected"] + near_far["num_landmarks"] == 192
    assert local["block_size"] * (1 + 2 * local["neighbours"]) == longformer["window"] == 192
    blocks = ("num_window_blocks", "num_random_blocks", "num_global_blocks")
    assert bigbird["block_size"] * sum(bigbird[name] for name in blocks) == 192


def test_what_the_budget_and_the_memory_do_not_allow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def took(methods: dict[str, object], inputs: list[torch.Tensor], repeats: int) -> list[dict[str, object]]:
        quick = dict.fromkeys(("median", "low", "high"), float(inputs[0].shape[2]))
        return [{"method": name, "both": quick, "forward": quick, "memory": 1.0} for name in methods]

    monkeypatch.setattr(efficiency, "side_by_side", took)
    settings, found = Efficiency(heads=1, head_dim=1, repeats=3), Findings("efficiency", {}, [])
    every = {SDPA, WRITTEN_OUT, "linear", CONTROL}
    for length, seconds in ((1000, 150), (2000, 150), (4000, 70), (100_000, 150)):
        measure_at(settings, choose_methods(["linear"], False, length), length, time.monotonic() + seconds, found)
    measured = {(each["length"], each["method"]) for each in found.records}
    assert measured == {(n, m) for n in (1000, 2000) for m in every} | {(4000, SDPA)}, "a short budget keeps SDPA"
    assert {line.partition(", 100000 tokens: ")[0] for line in found.left_out[3:]} == every
    assert next(line for line in found.left_out if line.startswith(CONTROL)).endswith("were left")
    measure_at(settings, choose_methods(["linear"], False, 10**7)[1:2], 10**7, time.monotonic(), found)
    assert "10000000 tokens: memory: its N x N matrices take 1,117,587.1 GiB" in found.left_out[-1]


def record(length: int, method: str, cost: float) -> dict[str, object]:
    timing = dict.fromkeys(("median", "low", "high"), cost)
    return {"length": length, "method": method, "forward": timing, "both": timing, "memory": cost}


def test_tables_say_the_ratios_the_growth_and_what_is_missing() -> None:
    records = [record(n, SDPA, n**2 / 1e4) for n in (512, 2048, 4096)]
    records += [record(n, "linear", n / 10) for n in (512, 2048, 4096)] + [record(512, WRITTEN_OUT, 52.4288)]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in efficiency.tables(records)[2].splitlines()
        if line.startswith(("| linear", "| softmax, w"))
    ]
    assert rows[1] == ["linear", "51.2 (1.95, 0.98)", "205 (0.49, –)", "410 (0.24, –)", "1.00", "from 1,000"]
    assert rows[0][2:4] == ["left out"] * 2


def test_the_command_measures_writes_and_draws_again(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    chosen = ("--attention", "linear", "--attention", "nystrom,num_landmarks=8,conv_kernel_size=5", "--repeats", 1)
    sizes = ("--threads", 1, "--heads", 2, "--head_dim", 8, "--lengths", "16,24", "--out", tmp_path)
    shown = run_benchmark("efficiency", *chosen, *sizes)
    found = Findings.read(tmp_path / "efficiency.json")
    label = "nystrom (num_landmarks 8, conv_kernel_size 5)"
    names = {SDPA, WRITTEN_OUT, "linear", label, CONTROL}
    assert {(n, name) for n in (16, 24) for name in names} == {(r["length"], r["method"]) for r in found.records}
    assert "commit" in found.machine
    assert "run_benchmark.py efficiency --attention linear" in found.commands[0]
    page = (tmp_path / "efficiency.md").read_text()
    picture = tmp_path / "efficiency.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    picture.unlink()
    (tmp_path / "efficiency.md").unlink()
    assert run_benchmark("again", tmp_path / "efficiency.json") == shown
    assert (tmp_path / "efficiency.md").read_text() == page
    assert picture.exists()


def test_all_methods_compute_the_same_shapes() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 16, 8).unbind()
    nystrom = "nystrom,num_landmarks=8,conv_kernel_size=5"
    texts = ["linear", "reformer,chunk_length=8", nystrom]
    out = {each.name: each.build(2, 8, 16)(q, k, v) for each in choose_methods(texts, peers=True, length=16)}
    assert {each.shape for each in out.values()} <= {(2, 2, 16, 8), (2, 16, 16)}
    torch.testing.assert_close(out[SDPA], out[WRITTEN_OUT])
    assert not out[f"nystrom (num_landmarks 8, conv_kernel_size 5){MASKED}"][:, :, 15:].any()
    assert {f"{SDPA}{MASKED}", "authors' formulation, 8", "transformers, 8"} < out.keys()
