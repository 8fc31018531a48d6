"""The table and pictures of runs on the Long Range Arena."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from records import a_run
from small import ROOT

from nystromformer.errors import UserError
from nystromformer.report.lra import collect, write_lra
from nystromformer.runs.figures import Spread
from nystromformer.runs.record import Origin
from nystromformer.tables import markdown

SOFTMAX = {"name": "softmax", "conv_kernel_size": None}


def experiment(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "experiments" / "lra" / "listops" / "config.json", folder / "config.json")
    return folder


def write_run(
    folder: Path,
    attention: str,
    seed: int,
    test: float,
    task: str = "listops",
    steps: int = 40,
    seconds: float = 2.0,
    memory: float = 600.0,
    **changes: Any,
) -> Path:
    """A finished run of two validations, whose steps took so many seconds each."""
    name, _, track = task.partition("-")
    place = folder / "model" / "lra" / task / f"scratch-{attention}-{steps}-{seed}"
    place.mkdir(parents=True)
    settings: dict[str, Any] = {"learning_rate": 1e-4, "warmup": 0.2, "every": steps // 2, "steps": steps, "seed": seed}
    facts: dict[str, Any] = {
        "kind": "lra",
        "choices": {"task": name, "track": track or "paper"},
        "task": f"lra/{task}",
        "command": f"python code/run_lra.py --attention {attention} --seed {seed}",
        "origin": Origin(),
        "attention": (SOFTMAX | {"name": attention},) * 2,
        "length": 2000,
        "rows": {"train": 100, "validation": 50},
        "warnings": ("drawn here",),
        "test_metrics": {"accuracy": test},
        "test_rows": {"test": 400},
        "tested_data": "p" * 64,
    }
    a_run(place, (test, test - 0.1), **facts | settings | changes).write()
    records = [{"type": "start", "step": 0, "time": 1000.0}]
    for step in range(10, steps + 1, 10):
        time = 1000.0 + step * seconds
        records.append({"type": "train", "step": step, "epoch": 0, "loss": 2.0, "time": time, "memory_mib": memory})
    (place / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return place


def test_runs_stand_in_columns_where_the_attention_alone_differs(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    for seed, test in ((0, 0.30), (1, 0.34)):
        write_run(folder, "softmax", seed, test)
    write_run(folder, "linear", 0, 0.17)
    write_run(folder, "linear", 0, 0.40, steps=80)
    write_run(folder, "softmax", 0, 0.60, task="text")
    texts, columns = collect([folder])
    assert texts["ListOps a"].startswith("listops: 80 steps of 32"), "the longest first"
    found = {name: sorted(own) for name, own in columns.items()}
    assert found == {"ListOps a": ["linear"], "ListOps b": ["linear", "softmax"], "Text": ["softmax"]}
    both = columns["ListOps b"]["softmax"]
    assert both.seeds == [0, 1]
    assert both.shown["accuracy"].mean == pytest.approx(0.32)
    assert both.costs() == {"seconds": [80, 80], "examples_per_second": 32 / 2.0, "memory_mib": 600}
    assert "| ListOps b | softmax | 0, 1 | 32.0 ± 2.8 | 32.0 ± 2.8 | 20, 20 | 0.02 | 16.0 | 600 |" in write_lra(
        [folder], tmp_path / "lra.md"
    )


def test_guessers_stand_beside(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    write_run(folder, "softmax", 0, 0.60)
    write_run(folder, "local", 0, 0.346)
    reached = {"majority class": 0.17, "outermost operator": 0.3465, "operator and direct digits": 0.48}
    known = {name: {"accuracy_test": Spread(value, None)} for name, value in reached.items()}
    write_run(folder, "linear", 0, 0.47, baselines=known)
    out = tmp_path / "lra.md"
    text = write_lra([folder], out)
    models = [["linear", "47.0 †"], ["local", "34.6 †"], ["softmax", "60.0 †"]]
    rules = map(list, zip(reached, ["17.0", "34.6", "48.0"], strict=True))
    assert markdown(["attention", "ListOps"], [*rules, *models]) in text
    power = "could have been shown (two-sided test at 5 %, power 80 %, examples not paired): ListOps at least "
    assert power in text
    assert "drawn here" in text
    assert "python code/run_lra.py --attention linear --seed 0" in text


def test_another_model_or_other_data_stand_in_a_column_of_their_own(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    changes: dict[str, dict[str, object]] = {
        "softmax": {},
        "linear": {"attn_type": "linear", "compile": True},
        "local": {"transformer_hidden_dim": 64},
        "sparse": {"positions": "rotary", "transformer_hidden_dim": 64},
    }
    for name, changed in changes.items():
        write_run(folder, name, 0, 0.3, model={"transformer_hidden_dim": 32, "positions": "learned"} | changed)
    write_run(folder, "bigbird", 0, 0.3, data="e" * 64)
    texts, columns = collect([folder])
    assert [set(own) for own in columns.values()] == [{"linear", "softmax"}, {"local"}, {"sparse"}, {"bigbird"}]
    plain, shallow, rotary, _ = (text.partition("(data dddddddd)")[2] for text in texts.values())
    assert plain == '; transformer_hidden_dim 32, positions "learned"'
    assert shallow == '; transformer_hidden_dim 64, positions "learned"'
    assert rotary == '; transformer_hidden_dim 64, positions "rotary"'


def test_the_time_between_two_starts_is_no_time_of_the_run(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    place = write_run(folder, "softmax", 0, 0.3)
    with (place / "log.jsonl").open("a") as log:
        for kind, time in (("start", 9000.0), ("validation", 9020.0)):
            log.write(json.dumps({"type": kind, "step": 40, "time": time}) + "\n")
    _, columns = collect([folder])
    assert columns["ListOps"]["softmax"].costs()["seconds"] == [80 + 20]


def test_too_short_a_run_has_no_speed(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    for name in ("softmax", "linear"):
        place = write_run(folder, name, 0, 0.3)
        (place / "log.jsonl").write_text('{"type": "start", "step": 0, "time": 1.0}\n')
    write_lra([folder], tmp_path / "lra.md")
    assert json.loads((tmp_path / "lra.json").read_text())["cells"][0]["examples_per_second"] is None
    with pytest.raises(UserError, match=r"expected a name that ends in \.md"):
        write_lra([folder], tmp_path / "lra.txt")
