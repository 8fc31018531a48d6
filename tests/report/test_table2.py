"""Fine-tuning runs beside the paper's figures."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import NYSTROM, a_run
from small import run_here, write_experiment

from nystromformer.errors import UserError
from nystromformer.report.table2 import write_table2
from nystromformer.runs import record
from nystromformer.runs.figures import Spread
from nystromformer.runs.objective import ObjectiveSettings
from nystromformer.runs.record import EpochMetrics, Origin
from nystromformer.tables import markdown

REDUCED = "trained on 1,600 of the 67,349 rows of SST-2 train (--train_rows)"


def of_task(task: str) -> dict[str, Any]:
    """What a record says of its task, by where its runs lie."""
    kind, _, name = task.partition("/")
    choices = {"task": name} if kind == "glue" else {}
    flags = f" --task {name} --seed 0" if kind == "glue" else ""
    return {"kind": kind, "choices": choices, "task": task, "command": f"python code/run_{kind}.py{flags}"}


def write_run(experiment: Path, task: str = "glue/SST-2", values: tuple[float, ...] = (0.9,), **changes: Any) -> Path:
    """A finished run, see `a_run`."""
    if not (experiment / "config.json").is_file():
        write_experiment(experiment)
    place = experiment / "model" / task
    folder = place / f"cp-0002-run{len(list(place.glob('*'))):03d}"
    folder.mkdir(parents=True)
    a_run(folder, values, **of_task(task) | changes).write()
    return folder


class TableFile:
    """The table of some experiments, as its files have it.

    models, guessers, details: rows as their cells by their column, in `models` and `guessers` with "model".
    """

    def __init__(self, out: Path, *folders: Path) -> None:
        write_table2(folders, out / "table2.md")
        self.text = (out / "table2.md").read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.data = json.loads((out / "table2.json").read_text())
        header, rows = self.data["table"]["header"], self.data["table"]["rows"]
        assert markdown(header, rows) in self.text
        main = [dict(zip(header, row, strict=True)) for row in rows]
        self.guessers = {row["model"]: row for row in main if row["model"] in ("majority class", "tf-idf")}
        self.models = [row for row in main if row["model"] not in self.guessers]
        if self.models[0]["model"].endswith("(paper)"):
            self.paper, self.models = self.models[:2], self.models[2:]
        *_, last = (number for number, line in enumerate(self.lines) if line.startswith("## How each"))
        cells = [line[2:-2].split(" | ") for line in self.lines[last:] if line.startswith("| ")]
        self.details = [dict(zip(cells[0], row, strict=True)) for row in cells if row != cells[0]]


def test_the_paper_stands_first(tmp_path: Path) -> None:
    for task in ("glue/SST-2", "glue/MRPC", "glue/QNLI", "glue/QQP", "glue/MNLI", "imdb"):
        write_run(tmp_path / "e", task)
    write_run(tmp_path / "e", "imdb", length=1024)
    table = TableFile(tmp_path, tmp_path / "e")
    columns = ["SST-2", "MRPC (F1 / accuracy)", "QNLI", "QQP (F1 / accuracy)", "MNLI m / mm", "IMDB", "IMDB, n=1024"]
    assert [list(row.items()) for row in table.paper] == [
        list(zip(["model", *columns], row, strict=True))
        for row in (
            ["BERT-base (paper)", "90.0", "88.4 / –", "90.3", "87.3 / –", "82.4 / 82.4", "93.3", ""],
            ["Nyströmformer (paper)", "91.4", "88.1 / –", "88.7", "86.3 / –", "80.9 / 82.2", "93.2", "93.0"],
        )
    ]
    assert [row["model"] for row in table.models] == ["e"]


def test_an_objectives_metric_does_not_stand_beside_the_papers(tmp_path: Path) -> None:
    write_run(tmp_path / "e", objective=ObjectiveSettings("auroc", "eban"), main_metric="auroc", values=(0.93,))
    table = TableFile(tmp_path, tmp_path / "e")
    assert table.data["table"]["header"] == ["model", "SST-2, auroc by eban"]
    assert "(paper)" not in table.text


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    # Best epochs 0.80, 0.84, 0.88; last ones 0.70, 0.84, 0.80.
    for seed, values in enumerate([(0.8, 0.7), (0.5, 0.84), (0.88, 0.8)]):
        write_run(tmp_path / "e", values=values, seed=seed)
    table = TableFile(tmp_path, tmp_path / "e")
    assert table.models[0]["SST-2"] == "84.0 ± 4.0"
    deviation = 100 * math.sqrt(((0.70 - 0.78) ** 2 + (0.84 - 0.78) ** 2 + (0.80 - 0.78) ** 2) / 2)
    (detail,) = table.details
    assert (detail["from"], detail["attention"]) == (
        "cp-0002.model (8d6a49d1), step 1500",
        "nystrom (num_landmarks=64)",
    )
    assert detail["best"] == "84.0 ± 4.0"
    assert detail["last"] == f"78.0 ± {deviation:.1f}"
    assert (detail["seeds"], detail["epochs"], detail["exact"]) == ("0,1,2", "2", "99 %")
    assert (detail["task"], detail["training rows"], detail["length"]) == ("SST-2", "67,349", "512")
    (figure,) = table.data["figures"]
    assert figure["best"]["accuracy"] == {"mean": pytest.approx(0.84), "deviation": pytest.approx(0.04)}
    assert (figure["best_epochs"], figure["seeds"]) == ([0, 1, 0], [0, 1, 2])
    assert (figure["column"], figure["origin"]["sha256"]) == ("SST-2", "8d6a49d1" * 8)
    assert figure["commands"] == ["python code/run_glue.py --task SST-2 --seed 0"]


OTHER_SETTINGS: tuple[dict[str, Any], ...] = (
    *({"batch_size": 16}, {"epochs": 3}, {"warmup": 0.0}, {"pad_to": 64}),
    {"origin": Origin("cp-0002.model", 2, 1500, "8d6a49d1" * 8, "u" * 64)},
)
RATES = {1e-5: (0.95, 0.5), 2e-5: (0.8, 0.82), 3e-5: (0.7, 0.7)}
OF_FEW = record.Tested(0, "t" * 64, "", (), warnings=("test has 30 rows",))
SHOWN: dict[str, tuple[list[dict[str, Any]], str]] = {
    "the best mean of several settings": (
        [{"values": (x,), "learning_rate": r, "seed": n} for r, values in RATES.items() for n, x in enumerate(values)],
        "81.0 ± 1.4",
    ),
    "several seeds before a lucky one": (
        [{"values": (0.7,)}, {"values": (0.7,), "seed": 1}, {"values": (0.9,), "warmup": 0.0}],
        "70.0 ± 0.0",
    ),
    "a test of few rows, which only the best has, is no partial data": (
        [{"values": (0.9,), "tested": OF_FEW}, {"values": (0.6,), "warmup": 0.0}],
        "90.0 †",
    ),
    **{f"not averaged: {change}": ([{}, {"values": (0.5,), "seed": 1} | change], "90.0") for change in OTHER_SETTINGS},
    "averaged": ([{}, {"values": (0.8,), "seed": 1, "command": "python run_glue.py --device cuda"}], "85.0 ± 7.1"),
}


@pytest.mark.parametrize(("runs", "cell"), SHOWN.values(), ids=SHOWN)
def test_which_runs_are_shown(tmp_path: Path, runs: list[dict[str, Any]], cell: str) -> None:
    for changes in runs:
        write_run(tmp_path / "e", **changes)
    table = TableFile(tmp_path, tmp_path / "e")
    assert [row["SST-2"] for row in table.models] == [cell]
    assert len(table.details) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"origin": Origin("cp-0003.model", 3, 2000, "0" * 64)},
        {"attention": (NYSTROM | {"num_landmarks": 32},) * 4},
        {"attention": ({"name": "softmax", "conv_kernel_size": None},) * 4},
    ],
    ids=["checkpoint", "landmarks", "softmax"],
)
def test_another_model_is_another_row(tmp_path: Path, change: dict[str, Any]) -> None:
    write_run(tmp_path / "e", values=(0.9,))
    write_run(tmp_path / "e", values=(0.5,), **{"seed": 1} | change)
    table = TableFile(tmp_path, tmp_path / "e")
    assert sorted(row["SST-2"] for row in table.models) == ["50.0", "90.0"]
    assert len(table.details) == len({row["model"] for row in table.models}) == 2
    assert [row["best"] for row in table.details] == [row["SST-2"] for row in table.models]


def test_it_is_said_which_columns_show_test_data(tmp_path: Path) -> None:
    for seed, tested in enumerate([0.8, 0.9, None]):
        best = {} if tested is None else {"accuracy": tested}
        write_run(tmp_path / "tested", "imdb", (0.99,), seed=seed, test_metrics=best)
    write_run(tmp_path / "both", "imdb", (0.99,))
    write_run(tmp_path / "validated", "glue/SST-2")
    assert "Columns show validation data." in TableFile(tmp_path, tmp_path / "validated").text
    table = TableFile(tmp_path, tmp_path / "tested", tmp_path / "both")
    assert "Test data, by which nothing was chosen: IMDB.\n" in table.text
    assert [row["IMDB"] for row in table.models] == ["85.0 ± 7.1 (2 of 3 seeds)", "not tested"]
    assert table.details[0]["best"] == "99.0 ± 0.0"
    write_run(tmp_path / "both", "glue/SST-2")
    found = TableFile(tmp_path, tmp_path / "tested", tmp_path / "both").text
    assert "Test data, by which nothing was chosen: IMDB; the other columns: validation data." in found


def test_the_smallest_difference_that_the_table_could_have_shown(tmp_path: Path) -> None:
    for name, value in (("a", 0.75), ("b", 0.78)):
        for seed, off in enumerate((-0.01, 0.0, 0.01)):
            write_run(tmp_path / name, values=(value + off,), seed=seed)
    table = TableFile(tmp_path, tmp_path / "a", tmp_path / "b")
    test = "could have been shown (two-sided test at 5 %, power 80 %, examples not paired)"
    assert f"{test}: SST-2 6.2 points (3 seeds, 872 examples)" in table.text
    assert "could have been shown" not in TableFile(tmp_path, tmp_path / "a").text


def test_runs_chosen_on_other_rows_have_a_column_of_their_own(tmp_path: Path) -> None:
    """WikiHop's with --validation choose by held-out instances of train and not by dev.json."""
    for share, value in ((None, 0.5), (0.1, 0.9)):
        choices = {"held_out": share}
        write_run(tmp_path / "e", "wikihop", (value,), choices=choices, data=str(share))
    table = TableFile(tmp_path, tmp_path / "e")
    assert table.models[0] == {"model": "e", "WikiHop": "50.0", "WikiHop, chosen on 10 % of train": "90.0"}


def test_experiments_of_one_name_are_told_apart(tmp_path: Path) -> None:
    a, b = tmp_path / "a" / "nystrom", tmp_path / "b" / "nystrom"
    write_run(a)
    write_run(b, values=(0.5,))
    table = TableFile(tmp_path, a, b, tmp_path / "b" / ".." / "a" / "nystrom")
    assert [(row["model"], row["SST-2"]) for row in table.models] == [(str(a), "90.0"), (str(b), "50.0")]


def test_a_folder_without_finished_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "e")
    write_experiment(tmp_path / "f")
    with pytest.raises(UserError, match=r"f: expected finished runs, found none; run one first, .*run_glue.*--model"):
        write_table2([tmp_path / "e", tmp_path / "f"], tmp_path / "table2.md")
    begun = a_run(tmp_path / "f/model/imdb/cp-0002-x")
    begun.folder.mkdir(parents=True)
    replace(begun, epochs=()).write()
    with pytest.raises(UserError, match="f: expected finished runs, found none"):
        write_table2([tmp_path / "f"], tmp_path / "table2.md")
    with pytest.raises(UserError, match=r"config\.json"):
        write_table2([tmp_path / "nowhere"], tmp_path / "table2.md")
    assert not list(tmp_path.glob("table2*"))


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "e")
    out = tmp_path / "new" / "figures.md"
    assert run_here(monkeypatch, "code/run_report.py", "table2", tmp_path / "e", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "| SST-2 |" in out.read_text(encoding="utf-8")
    assert printed.splitlines()[-1] == f"table, settings and commands: {out}, {out.with_suffix('.json')}"
    assert printed.splitlines()[0] in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("task", "column", "names"),
    [
        ("glue/MRPC", "MRPC (F1 / accuracy)", ("f1", "accuracy")),
        ("glue/MNLI", "MNLI m / mm", ("accuracy", "accuracy_mismatched")),
    ],
)
def test_some_tasks_have_two_figures(tmp_path: Path, task: str, column: str, names: tuple[str, str]) -> None:
    for seed, (main, other) in enumerate([(0.8, 0.7), (0.84, 0.6)]):
        # The best epoch is the first by the main metric, and the second by the other.
        figures = [dict(zip(names, pair, strict=True)) for pair in ((main, other), (main - 0.1, other + 0.1))]
        epochs = list(map(EpochMetrics, (0, 1), figures))
        guessed = {name: Spread(value, None) for name, value in zip(names, (0.812, 0.684), strict=True)}
        told = {"majority class": guessed}
        write_run(tmp_path / "e", task, seed=seed, main_metric=names[0], validated=epochs, baselines=told)
    table = TableFile(tmp_path, tmp_path / "e")
    assert table.models[0][column] == "82.0 ± 2.8 / 65.0 ± 7.1"
    assert table.details[0]["last"] == "72.0 ± 2.8 / 75.0 ± 7.1"
    assert table.guessers["majority class"][column] == "81.2 / 68.4"


GUESSERS = {"majority class": {"accuracy": Spread(0.509, None)}, "tf-idf": {"accuracy": Spread(0.786, 0.01)}}


def test_baselines_stand_below_of_whichever_run_they_are_known(tmp_path: Path) -> None:
    write_run(tmp_path / "one", values=(0.76,), baselines=GUESSERS)
    write_run(tmp_path / "two", values=(0.9,))
    table = TableFile(tmp_path, tmp_path / "one", tmp_path / "two")
    assert {row["model"]: row["SST-2"] for row in table.models} == {"one": "76.0", "two": "90.0"}
    shown = {"majority class": "50.9", "tf-idf": "78.6 ± 1.0"}
    assert {name: row["SST-2"] for name, row in table.guessers.items()} == shown
    assert "--baselines" not in table.text
    told = [figure["baselines"]["tf-idf"]["accuracy"] for figure in table.data["figures"]]
    assert told == [{"mean": 0.786, "deviation": 0.01}] * 2


def test_other_data_are_another_column_with_its_own_baselines(tmp_path: Path) -> None:
    others = {"tf-idf": {"accuracy": Spread(0.7, None)}}
    for name, value, data, known in (("e", 0.9, "d", GUESSERS), ("f", 0.7, "e", others), ("g", 0.6, "e", {})):
        write_run(tmp_path / name, values=(value,), data=data * 64, baselines=known)
    table = TableFile(tmp_path, *(tmp_path / name for name in "efg"))
    assert table.data["table"]["header"] == ["model", "SST-2, data dddddddd", "SST-2, data eeeeeeee"]
    rows = {row[0]: row[1:] for row in table.data["table"]["rows"]}
    assert [rows[name] for name in "efg"] == [["90.0", ""], ["", "70.0"], ["", "60.0"]]
    assert (rows["tf-idf"], rows["majority class"]) == (["78.6 ± 1.0", "70.0"], ["50.9", ""])


def test_what_is_not_measured_is_said_with_the_flag(tmp_path: Path) -> None:
    write_run(tmp_path / "e", values=(0.8,))
    write_run(tmp_path / "e", "wikihop", (0.5,))
    table = TableFile(tmp_path, tmp_path / "e")
    assert table.models[0]["SST-2"] == "80.0"
    assert not table.guessers
    (line,) = (line for line in table.lines if "--baselines" in line)
    assert line.startswith("No baselines of the same data for SST-2: ")


def test_imdbs_baselines_are_those_of_the_test_reviews(tmp_path: Path) -> None:
    tests: dict[str, Any] = {"test_metrics": {"accuracy": 0.8}, "test_rows": {"test": 25000}}
    known = {"tf-idf": {"accuracy": Spread(0.99, None), "accuracy_test": Spread(0.82, 0.001)}}
    write_run(tmp_path / "e", "imdb", (0.99,), **tests, tested_data="t")
    write_run(tmp_path / "f", "imdb", (0.99,), **tests, tested_data="another", baselines=known)
    assert not TableFile(tmp_path, tmp_path / "e").guessers
    table = TableFile(tmp_path, tmp_path / "f")
    assert (table.models[0]["IMDB"], table.guessers["tf-idf"]["IMDB"]) == ("80.0", "82.0 ± 0.1")


def test_a_note_stands_once(tmp_path: Path) -> None:
    for name in ("e", "f", "g"):
        write_run(tmp_path / name, warnings=(REDUCED,))
        write_run(tmp_path / name, "glue/RTE", warnings=("few rows",) if name != "f" else ())
    table = TableFile(tmp_path, tmp_path / "e", tmp_path / "f", tmp_path / "g")
    notes = [line for line in table.lines if line.startswith("† ")]
    assert notes == [f"† SST-2: {REDUCED}", "† RTE: few rows"]
    assert [row["RTE"] for row in table.models] == ["90.0 †", "90.0", "90.0 †"]
    assert table.details[0]["task"] == "SST-2 †"


def test_it_is_said_which_weights_were_tested(tmp_path: Path) -> None:
    for seed in (0, 1):
        tests = {"test_metrics": {"accuracy": 0.8}, "tested_epoch": 1, "tested_data": "t"}
        write_run(tmp_path / "e", "imdb", (0.9, 0.8), seed=seed, **tests)
    assert "IMDB of e: tested with the last epoch's weights" in TableFile(tmp_path, tmp_path / "e").lines
