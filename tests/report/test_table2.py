"""Fine-tuning runs beside the paper's figures."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from records import NYSTROM, a_run
from small import run_here, write_experiment

from nystromformer.errors import UserError
from nystromformer.report.finetuning import collect
from nystromformer.report.table2 import PAPER, Table, for_terminal, write_table2
from nystromformer.runs.baselines import Baselines, add_baselines
from nystromformer.runs.call import Call
from nystromformer.runs.figures import MARKS, Spread
from nystromformer.runs.record import EpochMetrics, Origin
from nystromformer.tasks.finetuning.tables import RESAMPLED

REDUCED = "trained on 1,600 of the 67,349 rows of SST-2 train (--train_rows)"


def of_task(task: str) -> dict[str, Any]:
    """What a record says of its task, by where its runs lie."""
    kind, _, name = task.partition("/")
    choices = {"glue": {"task": name}, "imdb": {"min_tokens": None}}.get(kind, {})
    call = Call(f"code/run_{kind}.py", {"--task": (name,), "--seed": ("0",)} if kind == "glue" else {})
    return {"kind": kind, "choices": choices, "task": task, "call": call}


def write_run(experiment: Path, task: str = "glue/SST-2", values: tuple[float, ...] = (0.9,), **changes: Any) -> Path:
    """A finished run, see `a_run`."""
    if not (experiment / "config.json").is_file():
        write_experiment(experiment)
    place = experiment / "model" / task
    folder = place / f"cp-0002-run{len(list(place.glob('*'))):03d}"
    folder.mkdir(parents=True)
    a_run(folder, values, **of_task(task) | changes).write()
    return folder


def mnli(values: tuple[float, ...], mismatched: tuple[float, ...]) -> list[EpochMetrics]:
    pairs = enumerate(zip(values, mismatched, strict=True))
    return [EpochMetrics(n, {"accuracy": m, "loss": 1.0, "accuracy_mismatched": mm}) for n, (m, mm) in pairs]


def tables(text: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The rows of the main table, and of the details with their model and command, as the cells by their column."""
    parts: list[list[dict[str, str]]] = []
    header: list[str] | None = None
    heading, waiting = "", iter(())
    for line in text.splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ")
        if line.startswith("```sh"):
            waiting = iter(parts[-1] if heading != "Baselines" else [])
        elif line.startswith("python "):
            next(waiting, {})["command"] = line
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if header is None:
            header = cells
            parts.append([])
        elif not line.startswith("|---|"):
            assert len(cells) == len(header)
            parts[-1].append({"model": heading} | dict(zip(header, cells, strict=True)))
    main, *details = parts
    return main, [row for part in details for row in part]


def made(out: Path, *folders: Path) -> tuple[list[dict[str, str]], list[dict[str, str]], str]:
    """Our rows of the main table, the details, and the whole text."""
    write_table2(folders, out / "table2.md")
    text = (out / "table2.md").read_text(encoding="utf-8")
    main, details = tables(text)
    assert [row["model"] for row in main[:2]] == ["BERT-base (paper)", "Nyströmformer (paper)"]
    guessers = ("majority class", "mean value", "bag of words")
    return [row for row in main[2:] if not row["model"].startswith(guessers)], details, text


def guesser_rows(out: Path) -> dict[str, dict[str, str]]:
    """The rows of the table that was written last, but for the paper's and ours, by their names."""
    main, _ = tables((out / "table2.md").read_text(encoding="utf-8"))
    names = ("majority class", "mean value", "bag of words")
    return {row["model"]: row for row in main if row["model"].startswith(names)}


def measure(
    experiment: Path, task: str, baselines: dict[str, dict[str, tuple[float, float | None]]], **changes: Any
) -> Baselines:
    """Baselines of a task beside its runs, on the data that `write_run` says."""
    entry: dict[str, Any] = {
        "data": "d" * 64,
        "tested": "",
        "rows": {"train": 67349, "validation": 872},
        "seeds": [0, 1, 2],
        "call": Call("code/run_glue.py", {"--baselines": ()}),
        "machine": {"date": "2026-01-02", "commit": "abc1234", "processor": "a processor, 2 cores"},
    }
    spreads = {name: {k: Spread(*v) for k, v in figures.items()} for name, figures in baselines.items()}
    measured = Baselines(baselines=spreads, **entry | changes)
    add_baselines(experiment / "model" / task / "baselines.json", measured)
    return measured


def test_the_paper_stands_first(tmp_path: Path) -> None:
    for task in ("glue/SST-2", "glue/MRPC", "glue/QNLI", "glue/QQP", "glue/MNLI", "imdb"):
        write_run(tmp_path / "e", task)
    write_run(tmp_path / "e", "imdb", length=1024)
    write_table2([tmp_path / "e"], tmp_path / "table2.md")
    main, _ = tables((tmp_path / "table2.md").read_text())
    bert, nystrom = (list(row.values())[1:] for row in main[:2])
    assert list(main[0])[1:] == [
        "SST-2",
        "MRPC (F1 / accuracy)",
        "QNLI",
        "QQP (F1 / accuracy)",
        "MNLI m / mm",
        "IMDB",
        "IMDB, n=1024",
    ]
    assert bert == ["90.0", "88.4 / –", "90.3", "87.3 / –", "82.4 / 82.4", "93.3", ""]
    assert nystrom == ["91.4", "88.1 / –", "88.7", "86.3 / –", "80.9 / 82.2", "93.2", "93.0"]
    assert [row["model"] for row in main[:3]] == [*(f"{name} (paper)" for name in PAPER), "e"]


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    # Best epochs 0.80, 0.84, 0.88; last ones 0.70, 0.84, 0.80.
    for seed, values in enumerate([(0.8, 0.7), (0.5, 0.84), (0.88, 0.8)]):
        write_run(tmp_path / "e", values=values, seed=seed)
    main, details, text = made(tmp_path, tmp_path / "e")
    assert main[0]["SST-2"] == "84.0 ± 4.0"
    assert "From cp-0002.model (8d6a49d1), step 1500; nystrom (num_landmarks=64)." in text.splitlines()
    deviation = 100 * math.sqrt(((0.70 - 0.78) ** 2 + (0.84 - 0.78) ** 2 + (0.80 - 0.78) ** 2) / 2)
    (detail,) = details
    assert detail["best"] == "84.0 ± 4.0"
    assert detail["last"] == f"78.0 ± {deviation:.1f}"
    assert (detail["seeds"], detail["epochs"], detail["exact"]) == ("0,1,2", "2", "99 %")
    data = json.loads((tmp_path / "table2.json").read_text())
    runs = data["rows"][0]["tasks"]["glue/SST-2"]
    assert runs["best"]["accuracy"] == {"mean": pytest.approx(0.84), "deviation": pytest.approx(0.04)}
    assert runs["best_epochs"] == [0, 1, 0]
    assert data["paper_percent"] == json.loads(json.dumps(PAPER))
    assert data["rows"][0]["origin"]["sha256"] == "8d6a49d1" * 8


def test_of_several_settings_the_best_mean(tmp_path: Path) -> None:
    for rate, values in {1e-5: (0.95, 0.5), 2e-5: (0.8, 0.82), 3e-5: (0.7, 0.7)}.items():
        for seed, value in enumerate(values):
            write_run(tmp_path / "e", values=(value,), learning_rate=rate, seed=seed)
    main, details, _ = made(tmp_path, tmp_path / "e")
    assert main[0]["SST-2"] == "81.0 ± 1.4"
    assert [detail["learning rate"] for detail in details] == ["2e-05"]


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 16},
        {"learning_rate": 1e-5},
        {"epochs": 3},
        {"warmup": 0.0},
        {"bucket": 1},
        {"pad_to": 64},
        {"rows": {"train": 67349, "validation": 871}},
        {"family": "another"},
        {"warnings": ("SST-2 dev has 871 rows, GLUE's own 872",)},
    ],
    ids=str,
)
def test_what_differs_in_more_than_the_seed_is_not_averaged(tmp_path: Path, change: dict[str, Any]) -> None:
    write_run(tmp_path / "e", values=(0.9,), seed=0)
    write_run(tmp_path / "e", values=(0.5,), **{"seed": 1} | change)
    main, details, _ = made(tmp_path, tmp_path / "e")
    assert main[0]["SST-2"] == "90.0"
    assert len(main) == len(details) == 1


@pytest.mark.parametrize(
    "flags", [{"--device": ("cuda",)}, {"--set": ("gpu_setting.inst_per_gpu=5",)}, {"--discard_weights": ()}], ids=str
)
def test_what_changes_no_result_keeps_nothing_apart(tmp_path: Path, flags: dict[str, tuple[str, ...]]) -> None:
    write_run(tmp_path / "e", values=(0.9,), seed=0)
    write_run(tmp_path / "e", values=(0.8,), seed=1, call=Call("code/run_glue.py", {"--task": ("SST-2",), **flags}))
    main, _, _ = made(tmp_path, tmp_path / "e")
    assert main[0]["SST-2"] == "85.0 ± 7.1"


@pytest.mark.parametrize(
    "change",
    [
        {"origin": Origin("cp-0003.model", 3, 2000, "8d6a49d1" * 8)},
        {"origin": Origin("cp-0002.model", 2, 1500, "0" * 64)},
        {"attention": (NYSTROM | {"num_landmarks": 32},) * 4},
        {"attention": ({"name": "softmax", "conv_kernel_size": None},) * 4},
    ],
    ids=["checkpoint", "sha256", "landmarks", "softmax"],
)
def test_another_model_is_another_row(tmp_path: Path, change: dict[str, Any]) -> None:
    write_run(tmp_path / "e", values=(0.9,))
    write_run(tmp_path / "e", values=(0.5,), **{"seed": 1} | change)
    main, details, _ = made(tmp_path, tmp_path / "e")
    assert sorted(row["SST-2"] for row in main) == ["50.0", "90.0"]
    assert len(details) == len({row["model"] for row in main}) == 2
    assert [row["model"] for row in main] == [row["model"] for row in details]


def test_layers_of_several_attentions_are_counted(tmp_path: Path) -> None:
    softmax = {"name": "softmax", "conv_kernel_size": 5}
    write_run(tmp_path / "e", attention=(NYSTROM, NYSTROM, softmax))
    (row,) = collect([tmp_path / "e"]).models
    assert row.attention == "2 x nystrom (num_landmarks=64), 1 x softmax (conv_kernel_size=5)"


def test_more_rows_go_before_fewer(tmp_path: Path) -> None:
    for count, value in ((1600, 0.9), (3200, 0.7)):
        rows = {"train": count, "validation": 872}
        write_run(tmp_path / "e", values=(value,), rows=rows, warnings=(REDUCED.replace("1,600", f"{count:,}"),))
    main, details, text = made(tmp_path, tmp_path / "e")
    assert [(row["model"], row["SST-2"]) for row in main] == [("e", "70.0 †")]
    assert [(row["task"], row["training rows"], row["length"]) for row in details] == [("SST-2 †", "3,200", "512")]
    assert f"† SST-2: {REDUCED.replace('1,600', '3,200')}" in text.splitlines()


def test_complete_data_goes_before_partial(tmp_path: Path) -> None:
    write_run(tmp_path / "e", values=(0.95,), rows={"train": 9, "validation": 9}, warnings=("SST-2 dev has 9 rows",))
    write_run(tmp_path / "e", values=(0.6,))
    main, _, text = made(tmp_path, tmp_path / "e")
    assert main[0]["SST-2"] == "60.0"
    assert "9 rows" not in text


def test_mnli_has_two_figures(tmp_path: Path) -> None:
    for seed in (0, 1):
        # The best epoch is chosen by the matched part alone.
        write_run(tmp_path / "e", "glue/MNLI", seed=seed, validated=mnli((0.8, 0.7), (0.6, 0.9)))
    main, details, _ = made(tmp_path, tmp_path / "e")
    assert main[0]["MNLI m / mm"] == "80.0 ± 0.0 / 60.0 ± 0.0"
    assert details[0]["last"] == "70.0 ± 0.0 / 90.0 ± 0.0"


def test_imdb_shows_test_data(tmp_path: Path) -> None:
    for seed, tested in enumerate([0.8, 0.9, None]):
        best = {} if tested is None else {"accuracy": tested}
        write_run(tmp_path / "e", "imdb", (0.99,), seed=seed, test_metrics=best)
    write_run(tmp_path / "f", "imdb", (0.99,))
    main, details, _ = made(tmp_path, tmp_path / "e", tmp_path / "f")
    assert [row["IMDB"] for row in main] == ["85.0 ± 7.1 (2 of 3 seeds)", "not tested"]
    assert details[0]["best"] == "99.0 ± 0.0"


def test_it_is_said_which_columns_show_test_data(tmp_path: Path) -> None:
    def said(*folders: Path) -> str:
        return made(tmp_path, *folders)[2]

    write_run(tmp_path / "tested", "imdb", (0.99,), test_metrics={"accuracy": 0.8})
    write_run(tmp_path / "both", "imdb", (0.99,))
    write_run(tmp_path / "both", "glue/SST-2")
    write_run(tmp_path / "validated", "glue/SST-2")
    assert "Columns show test data, by which nothing was chosen." in said(tmp_path / "tested")
    assert "Columns show validation data." in said(tmp_path / "validated")
    found = said(tmp_path / "tested", tmp_path / "both")
    assert "IMDB: test data, by which nothing was chosen; the other columns: validation data." in found


def test_the_smallest_difference_that_the_table_could_have_shown(tmp_path: Path) -> None:
    for name, value in (("a", 0.75), ("b", 0.78)):
        for seed, off in enumerate((-0.01, 0.0, 0.01)):
            write_run(tmp_path / name, values=(value + off,), seed=seed)
    _, _, text = made(tmp_path, tmp_path / "a", tmp_path / "b")
    assert "could have been shown (two-sided test at 5 %, power 80 %, examples not paired): SST-2 6.2 points" in text
    assert "(3 seeds, 872 examples)" in text
    assert "could have been shown" not in made(tmp_path, tmp_path / "a")[2]


def test_further_tasks_where_there_are_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "e", "glue/STS-B", (0.7,), main_metric="pearson_spearman")
    write_run(tmp_path / "e", "wikihop", (0.5,))
    write_run(tmp_path / "f", "glue/CoLA", (0.1,), main_metric="matthews")
    main, _, _ = made(tmp_path, tmp_path / "e", tmp_path / "f")
    assert list(main[0])[1:] == ["CoLA (Matthews)", "STS-B (correlation)", "WikiHop"]
    assert [list(row.values())[1:] for row in main] == [["", "70.0", "50.0"], ["10.0", "", ""]]


def test_experiments_of_one_name_are_told_apart(tmp_path: Path) -> None:
    a, b = tmp_path / "a" / "nystrom", tmp_path / "b" / "nystrom"
    write_run(a)
    write_run(b, values=(0.5,))
    main, _, _ = made(tmp_path, a, b, tmp_path / "b" / ".." / "a" / "nystrom")
    assert [(row["model"], row["SST-2"]) for row in main] == [(str(a), "90.0"), (str(b), "50.0")]


def test_the_command_repeats_what_was_chosen(tmp_path: Path) -> None:
    flags = {"--task": ("SST-2,MRPC",), "--model": ("my model",), "--seed": ("0",), "--batch_size": ("8,16",)}
    flags |= {"--baselines": (), "--lr": ("3e-5",)}
    for seed, more in ((0, {}), (2, {"--warmup": ("0.1",)})):
        write_run(tmp_path / "e", seed=seed, batch_size=16, call=Call("code/run_glue.py", flags | more), processes=2)
    (row,) = collect([tmp_path / "e"]).models
    ((column, runs),) = row.tasks.items()
    assert column.key == "glue/SST-2"
    assert runs.command == (
        "python code/torchrun.py --standalone --nproc_per_node 2 code/run_glue.py --task SST-2 --model 'my model' "
        "--seed 0,2 --batch_size 16 --lr 3e-05 --warmup 0.1 --checkpoint 2 --baselines"
    )


def test_a_pipe_in_a_cell_is_no_column(tmp_path: Path) -> None:
    write_run(tmp_path / "a | b")
    _, _, text = made(tmp_path, tmp_path / "a | b")
    assert "| a \\| b |" in text


def test_unfinished_runs_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "e")
    model = tmp_path / "e" / "model"
    for place, file in (("glue/MRPC/cp-0002-x", "run.lock"), ("imdb/cp-0002-y", "log.jsonl"), ("wikihop/cache", "z")):
        (model / place).mkdir(parents=True)
        (model / place / file).touch()
    _, _, text = made(tmp_path, tmp_path / "e")
    assert "2 runs are not finished: e/glue/MRPC/cp-0002-x, e/imdb/cp-0002-y" in text.splitlines()
    (model / "imdb/cp-0002-y/log.jsonl").unlink()
    assert "1 run is not finished: e/glue/MRPC/cp-0002-x" in made(tmp_path, tmp_path / "e")[2].splitlines()


def test_a_folder_without_finished_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "e")
    write_experiment(tmp_path / "f")
    with pytest.raises(UserError, match=r"f: expected a finished .* found none; run one first, .*run_glue.*--model"):
        write_table2([tmp_path / "e", tmp_path / "f"], tmp_path / "table2.md")
    lock = tmp_path / "f/model/imdb/cp-0002-x/run.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with pytest.raises(UserError, match=r"found none \(not finished: f/imdb/cp-0002-x\)"):
        write_table2([tmp_path / "f"], tmp_path / "table2.md")
    with pytest.raises(UserError, match=r"config\.json"):
        write_table2([tmp_path / "nowhere"], tmp_path / "table2.md")
    assert not list(tmp_path.glob("table2*"))


def unsealed(file: Path) -> dict[str, Any]:
    """What a file says, without the checksum, which would tell of any change."""
    data: dict[str, Any] = json.loads(file.read_text())
    del data["sha256"]
    return data


STAMP = {"size": 1, "sha256": "0"}


def tested(**changes: Any) -> dict[str, Any]:
    return {"epoch": 0, "data": "", "shown": "", "files": {}} | changes


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": []},
        {"epochs": None},
        {"main_metric": "f1"},
        *(
            {"epochs": [{"epoch": epoch, "metrics": metrics} for epoch, metrics in epochs]}
            for epochs in (
                [(0, {"accuracy": "high"})],
                [(0, {"accuracy": math.nan})],
                [(0, {"accuracy": 10**400})],
                [(0, {"accuracy": True})],
                [(0, {})],
                [(0, {"loss": 1.0})],
                [(1, {"accuracy": 0.9})],
                [(-1, {"accuracy": 0.9})],
                [(0.0, {"accuracy": 0.9})],
                [(0, {"accuracy": 0.9}), (0, {"accuracy": 0.9})],
                [(0, {"accuracy": 0.9}), (1, {"accuracy": 0.9})],
            )
        ),
        {"more": 1},
        {"folder": "elsewhere"},
        {"tested": {}},
        {"tested": tested(epoch=1)},
        *({"tested": tested(files={name: STAMP})} for name in ("../../config.json", "/etc/passwd")),
        {"tested": tested(files={"x": {"size": "many", "sha256": "0"}})},
        {"tested": tested(metrics={"accuracy": None})},
        {"processes": 0},
        {"processes": 10**400},
        {"length": -1},
        {"exact_share": {"train": 1.0, "validation": 2.0}},
        {"rows": {"train": -5, "validation": 1}},
        {"settings": {"batch_size": 8}},
        {"settings": []},
        {"attention": [{}]},
        {"attention": [1]},
        {"rows": {}},
        {"rows": {"train": "many"}},
        {"exact_share": {}},
        {"warnings": [1]},
        {"warnings": None},
        {"call": "python 'open"},
        {"call": None},
        {"origin": {"checkpoint": 5}},
        {"origin": None},
        {"kind": "chess"},
        {"task": None},
        {"format": 0},
    ],
    ids=lambda change: f"{next(iter(change))}-{json.dumps(next(iter(change.values())))[:60]}",
)
def test_a_malformed_result_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    file = write_run(tmp_path / "e") / "result.json"
    file.write_text(json.dumps(unsealed(file) | change))
    with pytest.raises(UserError, match=r"result\.json: "):
        write_table2([tmp_path / "e"], tmp_path / "table2.md")


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 0},
        {"batch_size": True},
        {"learning_rate": -1.0},
        {"epochs": 10**18},
        {"seed": -1},
        {"warmup": 2.0},
        {"bucket": "50"},
        {"pad_to": 0},
        {"more": 1},
    ],
    ids=json.dumps,
)
def test_impossible_settings_of_a_result_are_named(tmp_path: Path, settings: dict[str, Any]) -> None:
    file = write_run(tmp_path / "e") / "result.json"
    data = unsealed(file)
    file.write_text(json.dumps(data | {"settings": data["settings"] | settings}))
    with pytest.raises(UserError, match=r"result\.json: "):
        write_table2([tmp_path / "e"], tmp_path / "table2.md")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"format": 2, "length": ' + b"7" * 5000 + b"}",
        b'{"format": ' + b"7" * 5000 + b"}",
        b'{"format": {"a": 1}}',
        b'{"format": 2, "format": 2}',
    ],
    ids=lambda content: repr(content[:30]),
)
def test_a_result_that_is_no_result_is_named_in_a_line(tmp_path: Path, content: bytes) -> None:
    file = write_run(tmp_path / "e") / "result.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"result\.json: ") as error:
        write_table2([tmp_path / "e"], tmp_path / "table2.md")
    assert len(str(error.value)) < 600 + len(str(file))
    assert file.read_bytes() == content


def test_a_result_that_is_no_file_is_named(tmp_path: Path) -> None:
    file = write_run(tmp_path / "e") / "result.json"
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=r"result\.json: expected a file, found something else"):
        write_table2([tmp_path / "e"], tmp_path / "table2.md")


@pytest.mark.parametrize("name", ["table2", "table2.json", "table2.txt"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"--out .*ends in \.md"):
        write_table2([tmp_path], tmp_path / name)


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "e")
    out = tmp_path / "new" / "figures.md"
    assert run_here(monkeypatch, "code/run_report.py", "table2", tmp_path / "e", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "| SST-2 |" in out.read_text(encoding="utf-8")
    assert printed.splitlines()[-1] == f"table, settings and commands: {out}, {out.with_suffix('.json')}"
    assert "|" not in printed
    assert run_here(monkeypatch, "code/run_report.py", "table2", tmp_path / "e", "--out", tmp_path / "x.txt") == 2
    assert "error: --out" in capsys.readouterr().err


def test_longer_reviews_have_a_column_of_their_own(tmp_path: Path) -> None:
    for length, value in ((512, 0.8), (1024, 0.9), (2048, 0.7)):
        write_run(tmp_path / "e", "imdb", length=length, test_metrics={"accuracy": value})
    main, details, _ = made(tmp_path, tmp_path / "e")
    assert (main[0]["IMDB"], main[0]["IMDB, n=1024"]) == ("80.0", "90.0")
    assert main[0]["IMDB, n=2048"] == "70.0"
    assert [detail["length"] for detail in details] == ["512", "1024", "2048"]


def test_several_seeds_go_before_a_lucky_one(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "e", values=(0.7,), seed=seed)
    write_run(tmp_path / "e", values=(0.9,), seed=0, warmup=0.0)
    main, _, _ = made(tmp_path, tmp_path / "e")
    assert main[0]["SST-2"] == "70.0 ± 0.0"


def test_the_command_names_its_processes(tmp_path: Path) -> None:
    write_run(tmp_path / "e", processes=4)
    _, details, _ = made(tmp_path, tmp_path / "e")
    launcher = "python code/torchrun.py --standalone --nproc_per_node 4 code/run_glue.py "
    assert details[0]["command"].startswith(launcher)


def f1_and_accuracy(f1: float, accuracy: float) -> list[EpochMetrics]:
    """The best epoch is the first by F1, and the second by accuracy."""
    values = ((f1, accuracy), (f1 - 0.1, accuracy + 0.1))
    return [EpochMetrics(n, {"loss": 1.0, "f1": f, "accuracy": a}) for n, (f, a) in enumerate(values)]


@pytest.mark.parametrize("task", ["glue/MRPC", "glue/QQP"])
def test_accuracy_stands_beside_f1(tmp_path: Path, task: str) -> None:
    for seed, both in enumerate([(0.8, 0.7), (0.84, 0.6)]):
        write_run(tmp_path / "e", task, seed=seed, main_metric="f1", validated=f1_and_accuracy(*both))
    measure(tmp_path / "e", task, {"majority class": {"f1": (0.812, None), "accuracy": (0.684, None)}})
    main, details, _ = made(tmp_path, tmp_path / "e")
    column = f"{task.removeprefix('glue/')} (F1 / accuracy)"
    assert main[0][column] == "82.0 ± 2.8 ≈ / 65.0 ± 7.1 ≈"
    assert details[0]["last"] == "72.0 ± 2.8 / 75.0 ± 7.1"
    assert guesser_rows(tmp_path)["majority class"][column] == "81.2 / 68.4"


GUESSERS = {"majority class": {"accuracy": (0.509, None)}, "bag of words": {"accuracy": (0.786, 0.01)}}


def test_baselines_stand_below_and_figures_within_their_noise_are_marked(tmp_path: Path) -> None:
    # 872 rows of which 0.786 are right: 0.014; with as much for the model and the deviation, noise is below 0.05.
    shown = {"near": (0.76, "76.0 ≈"), "above": (0.9, "90.0"), "below": (0.65, "65.0 <"), "chance": (0.52, "52.0 ≈")}
    for name, (value, _) in shown.items():
        write_run(tmp_path / name, values=(value,))
    measured = measure(tmp_path / "near", "glue/SST-2", GUESSERS)
    main, _, text = made(tmp_path, *(tmp_path / name for name in shown))
    assert {row["model"]: row["SST-2"] for row in main} == {name: cell for name, (_, cell) in shown.items()}
    assert {name: row["SST-2"] for name, row in guesser_rows(tmp_path).items()} == {
        "majority class": "50.9",
        "bag of words": "78.6 ± 1.0",
    }
    assert text.count(MARKS) == text.count(RESAMPLED) == 1
    assert "SST-2: 67,349 rows of train, 872 rows of validation; seeds 0,1,2; date 2026-01-02, commit abc1234" in text
    assert text.count(str(measured.call)) == 1
    assert "not measured" not in text
    data = json.loads((tmp_path / "table2.json").read_text())
    (kept,) = data["baselines"]
    assert kept["machine"] == measured.machine
    assert (kept["task"], kept["data"], kept["call"]["script"]) == ("glue/SST-2", "d" * 64, "code/run_glue.py")
    assert kept["baselines"]["bag of words"]["accuracy"] == {"mean": 0.786, "deviation": 0.01}
    marks = {row["name"]: row["tasks"]["glue/SST-2"]["marks"]["accuracy"] for row in data["rows"]}
    assert marks == {"near": "≈", "above": "", "below": "<", "chance": "≈"}


def test_baselines_of_other_data_are_rows_that_say_whose(tmp_path: Path) -> None:
    for name, value, data in (("e", 0.9, "d" * 64), ("f", 0.7, "e" * 64), ("g", 0.6, "e" * 64)):
        write_run(tmp_path / name, values=(value,), data=data)
        write_run(tmp_path / name, "glue/RTE", (0.9,))
        measure(tmp_path / name, "glue/RTE", {"bag of words": {"accuracy": (0.6, None)}})
    measure(tmp_path / "e", "glue/SST-2", GUESSERS)
    measure(tmp_path / "e", "glue/SST-2", {"bag of words": {"accuracy": (0.7, None)}}, data="e" * 64)
    main, _, _ = made(tmp_path, *(tmp_path / name for name in "efg"))
    assert [row["SST-2"] for row in main] == ["90.0", "70.0 ≈", "60.0 <"]
    assert {name: (row["SST-2"], row["RTE"]) for name, row in guesser_rows(tmp_path).items()} == {
        "bag of words": ("", "60.0"),
        "bag of words (data of e)": ("78.6 ± 1.0", ""),
        "bag of words (data of f and g)": ("70.0", ""),
        "majority class (data of e)": ("50.9", ""),
    }


def test_baselines_that_are_measured_for_some_models_say_for_which(tmp_path: Path) -> None:
    write_run(tmp_path / "e")
    write_run(tmp_path / "f", data="e" * 64)
    measure(tmp_path / "e", "glue/SST-2", {"bag of words": {"accuracy": (0.7, None)}})
    made(tmp_path, tmp_path / "e", tmp_path / "f")
    assert {name: row["SST-2"] for name, row in guesser_rows(tmp_path).items()} == {"bag of words (data of e)": "70.0"}


@pytest.mark.parametrize("other", [{"data": "e" * 64}, None], ids=["other-data", "none"])
def test_what_is_not_measured_is_said_with_the_flag(tmp_path: Path, other: dict[str, Any] | None) -> None:
    write_run(tmp_path / "e", values=(0.8,))
    write_run(tmp_path / "e", "wikihop", (0.5,))
    if other:
        measure(tmp_path / "e", "glue/SST-2", GUESSERS, **other)
    main, _, text = made(tmp_path, tmp_path / "e")
    assert main[0]["SST-2"] == "80.0"
    for row in guesser_rows(tmp_path).values():
        assert (row["SST-2"], row["WikiHop"]) == ("not measured", "")
    (line,) = (line for line in text.splitlines() if "--baselines" in line)
    assert line.startswith("No baselines of the same data for SST-2: ")
    assert MARKS not in text


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"data": "d", "seeds": [0], "baselines": {"bag of words": {}}}',
        '{"measured": [{"data": 1}]}',
        '{"measured": [{"baselines": {"x": {"accuracy": {"mean": "a"}}}}]}',
        "[" * 100_000,
        '{"format": 2, "measured": ' + "7" * 5000 + "}",
        "",
        "\0" * 64,
        "null",
    ],
    ids=lambda content: content[:20],
)
def test_malformed_baselines_are_named(tmp_path: Path, content: str) -> None:
    place = write_run(tmp_path / "e").parent / "baselines.json"
    place.write_text(content)
    with pytest.raises(UserError, match=r"SST-2/baselines\.json: expected the baselines of a task"):
        write_table2([tmp_path / "e"], tmp_path / "table2.md")
    measure(tmp_path / "f", "glue/SST-2", GUESSERS)
    kept = tmp_path / "f" / "model" / "glue" / "SST-2" / "baselines.json"
    changes = (
        {"rows": {"train": "many"}},
        {"rows": []},
        {"data": 5},
        {"seeds": None},
        {"machine": "mine"},
        {"baselines": []},
    )
    wrong = {"bag of words": {"accuracy": {"mean": "a", "deviation": None}}}
    for change in (*changes, {"baselines": wrong}):
        broken = unsealed(kept)
        broken["measured"][0] |= change
        place.write_text(json.dumps(broken))
        with pytest.raises(UserError, match=r"baselines\.json: expected the baselines of a task"):
            write_table2([tmp_path / "e"], tmp_path / "table2.md")


def test_the_bag_of_words_of_one_seed_has_no_deviation_to_explain(tmp_path: Path) -> None:
    write_run(tmp_path / "e")
    measure(tmp_path / "e", "glue/SST-2", {"bag of words": {"accuracy": (0.786, None)}}, seeds=[0])
    text = made(tmp_path, tmp_path / "e")[2]
    assert MARKS in text
    assert RESAMPLED not in text


def test_imdbs_baselines_are_those_of_the_test_reviews(tmp_path: Path) -> None:
    tests = {"test_metrics": {"accuracy": 0.8}, "test_rows": {"test": 25000}, "tested_data": "t"}
    write_run(tmp_path / "e", "imdb", (0.99,), **tests)
    figures = {"bag of words": {"accuracy": (0.99, None), "accuracy_test": (0.82, 0.001)}}
    measure(tmp_path / "e", "imdb", figures, tested="another")
    assert made(tmp_path, tmp_path / "e")[0][0]["IMDB"] == "80.0"
    assert guesser_rows(tmp_path)["bag of words"]["IMDB"] == "not measured", "on other test reviews"
    measure(tmp_path / "e", "imdb", figures, tested="t")
    assert made(tmp_path, tmp_path / "e")[0][0]["IMDB"] == "80.0 <", "2 points below, on 25,000 reviews"
    assert guesser_rows(tmp_path)["bag of words"]["IMDB"] == "82.0 ± 0.1"


def test_a_note_stands_once(tmp_path: Path) -> None:
    for name in ("e", "f", "g"):
        write_run(tmp_path / name, warnings=(REDUCED,))
        write_run(tmp_path / name, "glue/RTE", warnings=("few rows",) if name != "f" else ())
    _, _, text = made(tmp_path, tmp_path / "e", tmp_path / "f", tmp_path / "g")
    notes = [line for line in text.splitlines() if line.startswith("† ")]
    assert notes == [f"† SST-2: {REDUCED}", "† RTE of e and g: few rows"]


def test_it_is_said_which_weights_were_tested_and_where_seeds_are_missing(tmp_path: Path) -> None:
    for seed in (0, 1):
        tests = {"test_metrics": {"accuracy": 0.8}, "tested_epoch": 1, "tested_data": "t"}
        write_run(tmp_path / "e", "imdb", (0.9, 0.8), seed=seed, **tests)
    write_run(tmp_path / "e", "imdb", (0.99, 0.8), seed=0, learning_rate=5e-5)
    text = made(tmp_path, tmp_path / "e")[2]
    assert "IMDB: tested with the last epoch's weights" in text.splitlines()
    assert "IMDB: of 2 settings, 1 with fewer finished seeds than the one shown" in text.splitlines()


def table(tmp_path: Path) -> Table:
    for name in ("a-model-with-a-long-name", "b"):
        for task in ("glue/SST-2", "glue/QNLI", "glue/MRPC", "glue/MNLI", "imdb"):
            tested = {"test_metrics": {"accuracy": 0.5}} if task == "imdb" else {}
            write_run(tmp_path / name, task, (0.7,), warnings=(REDUCED,), **tested)
    measure(tmp_path / "b", "glue/SST-2", GUESSERS)
    return write_table2([tmp_path / "a-model-with-a-long-name", tmp_path / "b"], tmp_path / "table2.md")


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 400])
def test_a_terminals_table_fits_it(tmp_path: Path, width: int) -> None:
    shown = table(tmp_path)
    text = for_terminal(shown, width)
    assert max(map(len, text.splitlines())) <= width
    squeezed = "".join(text.split())
    for label, cells in shown.rows:
        assert label.replace(" ", "") in squeezed
        assert all(cell.replace(" ", "") in squeezed for cell in cells)
    assert all("".join(paragraph.split()) in squeezed for paragraph in shown.below), "nothing is cut off"
    in_one_piece = text.splitlines()[0].split() == " ".join(shown.tasks).split()
    assert in_one_piece == (width >= 100)


def test_in_a_pipe_a_table_is_in_one_piece_however_wide(tmp_path: Path) -> None:
    shown = table(tmp_path)
    head, *paragraphs = for_terminal(shown, None).split("\n\n")
    assert len(head.splitlines()) == 1 + len(shown.rows)
    assert paragraphs == shown.below


def test_in_a_narrow_terminal_each_task_has_all_its_figures(tmp_path: Path) -> None:
    pieces = for_terminal(table(tmp_path), 80).split("\n\n")
    assert pieces[0].splitlines()[0] == "SST-2"
    names = [line.split("  ")[1] for line in pieces[0].splitlines()[1:]]
    assert names == [
        *("BERT-base (paper)", "Nyströmformer (paper)", "a-model-with-a-long-name", "b"),
        *("majority class", "bag of words"),
    ]
    assert pieces[0].splitlines()[3].endswith("  70.0 < †")
