"""Clients' events for tests."""

from pathlib import Path

import pytest
from small import run_here

from nystromformer.tasks.transactions.generator import World, draw_clients

PREPARE = "experiments/transactions/prepare.py"
SCRIPT = "code/run_transactions.py"
TINY = (
    "model.mixed_precision=false",
    "model.embedding_dim=16",
    "model.transformer_dim=16",
    "model.transformer_hidden_dim=32",
    "model.num_head=2",
    "model.head_dim=8",
    "pretraining_setting.batches_per_report=1",
)


def draw(folder: Path, clients: int, seed: int = 0) -> Path:
    """Tables of clients with some 14 events each."""
    draw_clients(World(mean_length=14, most_events=40, events_per_day=0.5, intercept=-1.0), clients, seed, folder)
    return folder


def flags_of(drawn: Path) -> list[str]:
    """Of `prepare.py long`."""
    named = ["--client", "client", "--time", "time", "--target", "default", "--date", "date", "--truth", "truth"]
    return ["long", "--events", str(drawn / "events"), "--clients", str(drawn / "clients.csv"), *named]


def run(script: str, *flags: object) -> int:
    """A command's exit status."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run_here(monkeypatch, script, *flags)


def prepare_drawn(drawn: Path, out: Path, *flags: str) -> None:
    """Prepare them."""
    assert run(PREPARE, *flags_of(drawn), "--out", out, *flags) == 0
