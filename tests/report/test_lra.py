"""The table and pictures of runs on the Long Range Arena."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from small import ROOT, run_here

from nystromformer.errors import UserError
from nystromformer.report.lra import LECTURE, collect, write_lra
from nystromformer.report.paper import LRA_TASKS, PAPER_TABLE_3, tables_of
from nystromformer.tasks.finetuning.measured import BASELINES, Measured, keep_baselines
from nystromformer.tasks.finetuning.results import EpochMetrics, RunResult
from nystromformer.tasks.finetuning.settings import RunSettings
from nystromformer.tasks.finetuning.spread import Spread

SCRIPT = "code/run_report.py"
SOFTMAX = {"name": "softmax", "conv_kernel_size": None}


def experiment(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "lra" / "listops" / "config.json", folder / "config.json")
    return folder


def write_run(
    folder: Path,
    attention: str,
    seed: int,
    test: float,
    task: str = "lra/listops",
    steps: int = 40,
    seconds: float = 2.0,
    memory: float = 600.0,
) -> Path:
    """A finished run of two validations, whose steps took so many seconds each."""
    every = steps // 2
    settings = RunSettings(32, 1e-4, 2, seed, 0.2, 50, None, every)
    result = RunResult(
        task=task,
        experiment=folder.name,
        checkpoint="",
        checkpoint_step=0,
        checkpoint_sha256="",
        attention=[SOFTMAX | {"name": attention}] * 2,
        settings=settings.as_data(),
        length=2000,
        family=f"{attention}-{task}-{steps}",
        main_metric="accuracy",
        epochs=[
            EpochMetrics(0, {"loss": 2.0, "accuracy": test}),
            EpochMetrics(1, {"loss": 2.1, "accuracy": test - 0.1}),
        ],
        rows={"train": 100, "validation": 50},
        exact_share={"train": 1.0, "validation": 1.0},
        warnings=["drawn here"],
        command=f"python code/run_lra.py --attention {attention} --seed {seed}",
        version="0",
        device="cpu, float32",
        processes=1,
        data="d" * 64,
        predicted="p" * 64,
        test_metrics={"accuracy": test},
        test_rows={"test": 400},
    )
    place = folder / "model" / task / f"scratch-{attention}-{steps}-{seed}"
    place.mkdir(parents=True)
    result.write(place)
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
    write_run(folder, "softmax", 0, 0.60, task="lra/text")
    arena = collect([folder])
    assert list(arena.columns) == ["ListOps a", "ListOps b", "Text"]
    assert arena.columns["ListOps a"].startswith("listops: 80 steps of 32"), "the longest first"
    found = {(cell.column, cell.attention): cell for cell in arena.cells}
    assert set(found) == {
        ("ListOps a", "linear"),
        ("ListOps b", "softmax"),
        ("ListOps b", "linear"),
        ("Text", "softmax"),
    }
    both = found["ListOps b", "softmax"]
    assert both.seeds == [0, 1]
    assert both.test.mean == pytest.approx(0.32)
    assert both.best_steps == [20, 20]
    assert both.examples_per_second == pytest.approx(32 / 2.0)
    assert both.memory_mib == 600
    assert both.hours.mean == pytest.approx(80 / 3600)


def test_the_majority_class_stands_beside_and_marks_what_is_within_noise(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    write_run(folder, "softmax", 0, 0.40)
    place = write_run(folder, "linear", 0, 0.17)
    figures = {"majority class": {"accuracy": Spread(0.16, None), "accuracy_test": Spread(0.165, None)}}
    measured = Measured("d" * 64, "p" * 64, {"train": 100}, [0], figures, "python", {})
    keep_baselines(place.parent / BASELINES, measured)
    out = tmp_path / "lra.md"
    write_lra([folder], out)
    (table, *_) = tables_of(out)
    assert table.header == ["attention", "ListOps"]
    assert [list(row) for row in table.rows] == [["majority class", "16.5"], ["linear", "17.0 ≈"], ["softmax", "40.0"]]
    assert out.with_name("lra-listops.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads(out.with_suffix(".json").read_text())
    assert {cell["attention"]: cell["test"]["mean"] for cell in data["cells"]} == {"softmax": 0.40, "linear": 0.17}
    text = out.read_text()
    assert "drawn here" in text
    assert "python code/run_lra.py --attention linear --seed 0" in text


def test_a_run_on_other_data_is_no_column_of_the_same(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "e")
    write_run(folder, "softmax", 0, 0.4)
    place = write_run(folder, "linear", 0, 0.3)
    data = json.loads((place / "result.json").read_text())
    shutil.rmtree(place)
    place.mkdir()
    result = RunResult(**{key: value for key, value in data.items() if key in RunResult.__dataclass_fields__})
    replace(result, epochs=[EpochMetrics(**one) for one in data["epochs"]], data="e" * 64).write(place)
    (place / "log.jsonl").write_text("")
    assert len(collect([folder]).columns) == 2


def test_what_was_reported_elsewhere_is_whole() -> None:
    for figures in (*PAPER_TABLE_3.values(), *LECTURE.values()):
        assert len(figures) == len(LRA_TASKS)
        assert sum(figures[:-1]) / 5 == pytest.approx(figures[-1], abs=0.1)


def test_nothing_finished_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = experiment(tmp_path / "e")
    begun = folder / "model" / "lra" / "listops" / "scratch-x"
    begun.mkdir(parents=True)
    (begun / "log.jsonl").write_text("")
    with pytest.raises(
        UserError, match=r"expected finished runs, found none \(not finished: e/lra/listops/scratch-x\)"
    ):
        write_lra([folder], tmp_path / "lra.md")
    with pytest.raises(UserError, match=r"expected a name that ends in \.md"):
        write_lra([folder], tmp_path / "lra.txt")
    assert not list(tmp_path.glob("lra*"))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = experiment(tmp_path / "e")
    write_run(folder, "softmax", 0, 0.4)
    assert run_here(monkeypatch, SCRIPT, "lra", folder, "--out", tmp_path / "t.md") == 0
    assert "| softmax | 40.0 |" in capsys.readouterr().out
    (tmp_path / "span.md").write_text("| model | span |\n|---|---|\n| e | 12.5 |\n")
    assert run_here(monkeypatch, SCRIPT, "lra", folder, "--out", tmp_path / "t.md", "--span", tmp_path) == 0
    assert "| e | 12.5 |" in (tmp_path / "t.md").read_text()
    assert run_here(monkeypatch, SCRIPT, "lra", folder, "--out", tmp_path / "t.md", "--span", folder) == 2
    assert "with span.md" in capsys.readouterr().err
    assert run_here(monkeypatch, SCRIPT, "lra", tmp_path / "nowhere", "--out", tmp_path / "t.md") == 2
