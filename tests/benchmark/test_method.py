"""The benchmark of any attention: what it measures beside, says and refuses."""

import json
from pathlib import Path

import pytest
import torch
from small import run_here

from nystromformer.attention import create_attention
from nystromformer.benchmark import attention
from nystromformer.benchmark.attention import AttentionRow, PeersBenchmark
from nystromformer.benchmark.attention_report import method_table
from nystromformer.benchmark.implementations import IMPLEMENTATIONS, Implementation, Sizes
from nystromformer.benchmark.timing import Timing
from nystromformer.config import ATTENTIONS, attention_config


def row(length: int, method: str, forward: float, both: float, memory: float) -> AttentionRow:
    return AttentionRow(length, method, Timing(forward, forward, forward), Timing(both, both, both), memory)


def test_ratios_are_ours_over_theirs_and_growth_is_per_token() -> None:
    rows = [
        row(4096, "linear", 10, 30, 8),
        row(4096, "another's", 20, 40, 16),
        row(4096, attention.CONTROL, 1, 2, 4),
        row(16384, "linear", 44, 132, 32),
        row(16384, attention.CONTROL, 4, 8, 16),
    ]
    settings = PeersBenchmark(attention_config("linear"), lengths=(4096, 16384))
    table, _, growth = method_table(settings, rows).partition("per token")
    [theirs] = [line for line in table.splitlines() if "another's" in line]
    numbers = [part for part in theirs.split()[2:] if not part.startswith("(")]
    assert numbers == ["20.00", "0.50", "40.00", "0.75", "16.0", "0.50"]
    ours, control = growth.splitlines()[1:]
    assert ours.split(maxsplit=1) == ["linear", "forward 1.10, forward and backward 1.10, memory 1.00"]
    assert control.endswith("forward 1.00, forward and backward 1.00, memory 1.00")


def test_the_implementations_are_of_attentions_that_there_are() -> None:
    assert set(IMPLEMENTATIONS) <= set(ATTENTIONS)
    names = [one.name for ones in IMPLEMENTATIONS.values() for one in ones]
    assert len({*names, *ATTENTIONS}) == len(names) + len(ATTENTIONS), "each row has a name of its own"


INSTALLED = [(name, one) for name, ones in IMPLEMENTATIONS.items() for one in ones if one.is_installed]
SMALL = {
    "local": {"block_size": 8},
    "linformer": {"projected_length": 8, "sharing": "layer"},
    "longformer": {"window": 16, "num_global_tokens": 0},
    "bigbird": {"block_size": 4},
    "reformer": {"chunk_length": 16},
    "sinkhorn": {"block_size": 16},
}
"""Settings for 64 tokens."""
SAME = ("linear", "local", "longformer")
"""What learns nothing and draws nothing: there the public implementation computes the same."""


@pytest.mark.parametrize(("name", "implementation"), INSTALLED, ids=[one.name for _, one in INSTALLED])
def test_a_implementation_takes_what_ours_takes(name: str, implementation: Implementation) -> None:
    config = attention_config(name, **SMALL.get(name, {}))
    x = [torch.randn(2, 64, 4, 16).transpose(1, 2) for _ in range(3)]
    out = implementation.build(config, Sizes(4, 16, 64))(*x)
    assert out.shape in ((2, 4, 64, 16), (2, 64, 64))
    if name in SAME:
        out = out if out.ndim == 4 else out.unflatten(2, (4, 16)).transpose(1, 2)
        torch.testing.assert_close(out, create_attention(config, num_heads=4, head_dim=16)(*x), rtol=1e-4, atol=1e-4)


def test_the_command_measures_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--lengths", "16,32", "--repeats", 1, "--threads", 1, "--out", tmp_path)
    local = ("--peers", "--attention", "local,block_size=4")
    assert run_here(monkeypatch, "code/run_benchmark.py", "efficiency", *local, *flags) == 0
    said = capsys.readouterr().out
    assert "local" in said
    written = json.loads((tmp_path / "attention-local.json").read_text())
    assert written["settings"]["attention"]["block_size"] == 4
    assert {row["length"] for row in written["rows"]} == {16, 32}
    assert (tmp_path / "attention-local.txt").read_text().count(attention.CONTROL) == 2
