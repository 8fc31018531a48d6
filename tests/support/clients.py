"""Clients' events for tests."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small import run_here

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


def draw(folder: Path, clients: int) -> Path:
    """Tables of clients with some 14 events each, of whom those with label 1 pay more."""
    random = np.random.default_rng(0)
    labels, lengths = (random.random(clients) < 0.3).astype(int), random.integers(4, 24, clients)
    names, dates = [f"c{number:07d}" for number in range(clients)], random.integers(19_700, 20_000, clients)
    own, count = np.repeat(np.arange(clients), lengths), int(lengths.sum())
    seconds = 86_400 * dates[own] - random.integers(0, 100 * 86_400, count)
    events = {
        "client": np.array(names)[own],
        "time": pd.to_datetime(seconds, unit="s"),
        "kind": random.choice(["purchase", "cash", "salary"], count),
        "merchant": random.choice([f"m{number}" for number in range(40)], count),
        "amount": random.lognormal(3 + labels[own]).round(2),
        "instalments": random.integers(1, 4, count).astype(float),
        "points": random.integers(0, 30, count).astype(float),
    }
    (folder / "events").mkdir(parents=True)
    table = pd.DataFrame(events).sort_values(["client", "time"], kind="stable", ignore_index=True)
    table.to_parquet(folder / "events" / "part.parquet")
    clients_table = {"client": names, "date": pd.to_datetime(dates, unit="D"), "default": labels}
    pd.DataFrame(clients_table).to_csv(folder / "clients.csv", index=False)
    return folder


def flags_of(drawn: Path) -> list[str]:
    """Of `prepare.py long`."""
    named = ["--client", "client", "--time", "time", "--target", "default", "--date", "date"]
    return ["long", "--events", str(drawn / "events"), "--clients", str(drawn / "clients.csv"), *named]


def run(script: str, *flags: object) -> int:
    """A command's exit status."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run_here(monkeypatch, script, *flags)


def prepare_drawn(drawn: Path, out: Path, *flags: str) -> None:
    """Prepare them."""
    assert run(PREPARE, *flags_of(drawn), "--out", out, *flags) == 0
