"""An attention beside its public implementations: what is written, and what its ratios are of."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nystromformer.benchmark import attention
from nystromformer.benchmark.attention import AttentionRow, method_table, table, to_paste
from nystromformer.benchmark.timing import Timing

METHODS = {
    attention.OURS: (10.0, 30.0, 40.0),
    attention.MASKED: (12.0, 36.0, 60.0),
    attention.BASE: (20.0, 60.0, 80.0),
    attention.SOFTMAX: (5.0, 15.0, 20.0),
    attention.MASKED_SOFTMAX: (6.0, 12.0, 30.0),
    attention.CONTROL: (1.0, 2.0, 4.0),
}
"""Milliseconds forward, and with backward, and MiB."""


def rows(*lengths: int) -> list[AttentionRow]:
    """As measured: softmax up to its limit, times and memory in proportion to the length."""

    def timing(median: float) -> Timing:
        return Timing(median, 0.9 * median, 1.2 * median)

    return [
        AttentionRow(length, name, *(timing(length / 512 * value) for value in (forward, both)), length / 512 * memory)
        for length in lengths
        for name, (forward, both, memory) in METHODS.items()
        if length <= attention.FUSED_LIMIT or "softmax" not in name
    ]


def cells(text: str) -> dict[tuple[str, str], list[str]]:
    """The Markdown table's cells by (tokens, method)."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    head, rule, *body = lines
    assert len(head) == len(rule) == 11
    return {(line[0], line[1]): line[2:] for line in body}


def test_the_table_to_paste_has_every_spread_and_both_ratios() -> None:
    settings = {"batch": 1, "num_heads": 12, "head_dim": 64, "num_landmarks": 64}
    text = to_paste(settings, rows(512, 8192), {"date": "2026-01-01", "commit": "abc"}, "python x.py")
    shown = cells(text)
    forward, softmax, base, both, *_, memory, of_softmax, of_base = shown["512", attention.OURS]
    assert (forward, softmax, base) == ("10.00 (9.00-12.00)", "2.00", "0.50")
    assert both == "30.00 (27.00-36.00)"
    assert (memory, of_softmax, of_base) == ("40.0", "2.00", "0.50")
    # With a mask beside with a mask.
    assert shown["512", attention.MASKED][1::3] == ["2.00", "3.00", "2.00"]
    assert shown["512", attention.MASKED_SOFTMAX][1::3] == ["1.00", "1.00", "1.00"]
    # Past the limit there is no softmax to compare with.
    assert shown["8192", attention.MASKED][1::3] == ["", "", ""]
    assert shown["8192", attention.MASKED][2::3] == ["0.60", "0.60", "0.75"]
    assert all("(" in line[0] and "(" in line[3] for line in shown.values())
    assert not [method for _, method in shown if method == attention.CONTROL]
    for part in (
        "date 2026-01-01, commit abc",
        "12 heads of 64",
        "convolution 33",
        "past 4096 tokens",
        "`python x.py`",
    ):
        assert part in text


def test_the_text_says_the_same() -> None:
    lines = table(rows(512, 4096, 8192)).splitlines()
    (ours,) = [line for line in lines if line.split()[:2] == ["512", "nystrom"] and "mask" not in line]
    figures = ("10.00 (9.00-12.00)", "30.00 (27.00-36.00)", "40.0")
    assert ours.split()[2:] == " ".join(f"{figure} 2.00 0.50" for figure in figures).split()
    masked = [line for line in lines if attention.MASKED in line]
    assert len(masked) == 4, "a row for each length, and its growth"
    assert masked[-1].endswith("forward 1.00, forward and backward 1.00")


@pytest.mark.slow
def test_the_command_writes_its_results(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    flags = ["--attention", "nystrom,num_landmarks=16", "--lengths", "32,48", "--repeats", 1, "--threads", 1]
    shown = run_benchmark("efficiency", "--peers", *flags, "--out", tmp_path)
    assert "authors' formulation" in shown
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((tmp_path / "attention.json").read_text())
    assert "commit" in data["machine"]
    methods = {row["method"] for row in data["rows"]}
    assert {attention.MASKED, attention.MASKED_SOFTMAX} < methods
    text = (tmp_path / "attention.md").read_text()
    assert {method for _, method in cells(text)} == methods - {attention.CONTROL}
    assert f"num_landmarks=16 --lengths 32,48 --repeats 1 --threads 1 --out {tmp_path} --peers`" in text


def test_ratios_are_ours_over_theirs_and_growth_is_per_token() -> None:
    figures = [(4096, "linear", 10, 30, 8), (4096, "another's", 20, 40, 16), (4096, attention.CONTROL, 1, 2, 4)]
    figures += [(16384, "linear", 44, 132, 32), (16384, attention.CONTROL, 4, 8, 16)]
    measured = [
        AttentionRow(length, method, Timing(*[forward] * 3), Timing(*[both] * 3), memory)
        for length, method, forward, both, memory in figures
    ]
    table, _, growth = method_table("linear", measured).partition("per token")
    [theirs] = [line for line in table.splitlines() if "another's" in line]
    numbers = [part for part in theirs.split()[2:] if not part.startswith("(")]
    assert numbers == ["20.00", "0.50", "40.00", "0.75", "16.0", "0.50"]
    ours, control = growth.splitlines()[1:]
    assert ours.split(maxsplit=1) == ["linear", "forward 1.10, forward and backward 1.10, memory 1.00"]
    assert control.endswith("forward 1.00, forward and backward 1.00, memory 1.00")


@pytest.mark.slow
def test_the_command_measures_any_attention(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    flags = ("--lengths", "16,32", "--repeats", 1, "--threads", 1, "--out", tmp_path)
    local = ("--peers", "--attention", "local,block_size=4")
    said = run_benchmark("efficiency", *local, *flags)
    assert "local" in said
    written = json.loads((tmp_path / "attention-local.json").read_text())
    assert written["settings"]["attention"]["block_size"] == 4
    assert {row["length"] for row in written["rows"]} == {16, 32}
    assert (tmp_path / "attention-local.txt").read_text().count(attention.CONTROL) == 2
