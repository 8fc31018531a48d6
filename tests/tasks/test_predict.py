"""Finished runs on new rows: the run's own predictions again, in order, in bounded memory, whole after any kill."""

import csv
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying import Killed, dying_at
from finetuning import copy_of, finetune, made_rows, sweep, write_imdb, write_sst2, write_stsb, write_table
from pyarrow import parquet
from small import CPU, run_here

import nystromformer
from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile
from nystromformer.report.explanation import explain_text
from nystromformer.runs.record import Run
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.documents.divide import Division
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.table import open_table
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.imdb.task import Imdb
from nystromformer.tasks.prediction import stream
from nystromformer.tasks.prediction.loaded import LoadedRun, load_run
from nystromformer.training import Device

SCRIPT = "code/run_predict.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def fine_tuned(source: Path, folder: Path) -> Callable[[str], Run]:
    """A finished run of a kind, trained once for all tests."""
    experiment = copy_of(source, folder / "experiment")
    done: dict[str, Run] = {}
    tasks: dict[str, Callable[[], Definition]] = {
        "SST-2": lambda: Glue(find_tasks("SST-2")[0], write_sst2(folder / "glue")),
        "STS-B": lambda: Glue(find_tasks("STS-B")[0], write_stsb(folder / "glue")),
        "imdb": lambda: Imdb(write_imdb(folder / "aclImdb"), 0.25, 0),
        "classes": lambda: table_task(folder, "classes", None),
        "several": lambda: table_task(folder, "several", "several"),
        "value": lambda: table_task(folder, "value", "value"),
        "ordered": lambda: table_task(folder, "ordered", "ordered"),
    }

    def run(name: str) -> Run:
        if name not in done:
            (done[name],) = finetune(experiment, tasks[name](), sweep(epochs=1), CPU).results
        return done[name]

    return run


def table_task(folder: Path, name: str, kind: Any) -> Documents:
    """Of texts longer than a row, with a test table."""
    rows = [
        (text, label, f"{len(text.split()) % 4 + 1}", "a;b" if number % 3 else "b")
        for number, (text, label) in enumerate(made_rows(40, most=60))
    ]
    label = {"classes": "label", "several": "sets"}.get(name, "count")
    path = write_table(folder / f"{name}.csv", ("body", "label", "count", "sets"), rows)
    cut, division = Cut("windows", 4), Division(share=0.25)
    question = Question(name, str(path), "body", label, str(path), separator=";", kind=kind, cut=cut, division=division)
    return Documents(question)


def own(result: Run, name: str = "test.tsv") -> list[dict[str, str]]:
    """What the run itself predicted."""
    return rows_of(Path(result.folder) / "predictions" / name, "\t")


def rows_of(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


@pytest.mark.parametrize("name", ["classes", "several", "value", "ordered"])
def test_a_run_on_a_table_predicts_as_it_did(
    fine_tuned: Callable[[str], Run], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    result = fine_tuned(name)
    out = tmp_path / "out.csv"
    flags = ("--input", folder / f"{name}.csv", "--out", out, "--device", "cpu")
    assert run_here(monkeypatch, SCRIPT, result.folder, *flags) == 0
    found, expected = rows_of(out), own(result)
    assert [row["id"] for row in found] == [row["id"] for row in expected]
    columns = [column for column in found[0] if column.startswith("p_")]
    assert columns == [column for column in expected[0] if column.startswith("p_")]
    for mine, his in zip(found, expected, strict=True):
        for column in columns if name != "value" else ["prediction"]:
            assert float(mine[column]) == pytest.approx(float(his[column]), abs=2e-5)
    if name != "value":
        same = [mine["prediction"] == his["prediction"] for mine, his in zip(found, expected, strict=True)]
        assert sum(same) >= len(same) - 1
    assert os.listdir(tmp_path) == ["out.csv"], "nothing is left beside it"


@pytest.mark.parametrize(("name", "split"), [("SST-2", "dev.tsv"), ("STS-B", "dev.tsv"), ("imdb", "test.tsv")])
def test_a_run_on_a_data_set_predicts_as_it_did(
    fine_tuned: Callable[[str], Run], folder: Path, tmp_path: Path, name: str, split: str
) -> None:
    """In Python, by a lazy name of the package; its tokenizer is the one beside the checkpoint."""
    result = fine_tuned(name)
    run = nystromformer.load_run(result.folder, "cpu")
    second = None
    if name == "imdb":
        texts = [
            text
            for label in ("neg", "pos")
            for number in range(10)
            for text in [next((folder / "aclImdb" / "test" / label).glob(f"{number}_*.txt")).read_text()]
        ]
    else:
        with (folder / "glue" / name / split).open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        texts = [row["sentence" if name == "SST-2" else "sentence1"] for row in rows]
        second = None if name == "SST-2" else [row["sentence2"] for row in rows]
    found, expected = run.predict(texts, second), own(result, split)
    if name == "STS-B":
        assert found.probabilities is None
        assert found.labels == pytest.approx([float(row["prediction"]) for row in expected], abs=2e-5)
    else:
        assert found.probabilities is not None
        chances = [[float(row[f"p_{name}"]) for name in found.names] for row in expected]
        np.testing.assert_allclose(found.probabilities, chances, atol=2e-5)
        assert found.probabilities.sum(1) == pytest.approx(1)
    assert len(run.predict([], None if second is None else [])) == 0
    with pytest.raises(UserError, match=r"expected (pairs|single texts), as in the run's training data, found"):
        run.predict(texts, texts if second is None else None)


def test_breaks_of_reviews(fine_tuned: Callable[[str], Run]) -> None:
    run = load_run(fine_tuned("imdb").folder, "cpu")
    one, other = run.predict(["a token<br /><br />of a row"]), run.predict(["a token of a row"])
    assert np.array_equal(one.probabilities, other.probabilities)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["classes", "several", "value"])
def test_every_format_says_the_same(
    fine_tuned: Callable[[str], Run], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    texts = [*(text for text, _ in made_rows(9)), " "]
    table = write_table(
        tmp_path / "in.jsonl", ("key", "body"), [(f"k{number}", text) for number, text in enumerate(texts)]
    )
    flags = (fine_tuned(name).folder, "--input", table, "--id", "key", "--skip_empty", "--device", "cpu")
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        assert run_here(monkeypatch, SCRIPT, *flags, "--out", tmp_path / f"out.{ending}") == 0
    first = rows_of(tmp_path / "out.csv")
    assert [row["id"] for row in first] == [f"k{number}" for number in range(10)]
    assert set(first[-1].values()) == {"k9", ""}
    assert rows_of(tmp_path / "out.tsv", "\t") == first
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    columns = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert records[-1]["prediction"] is columns[-1]["prediction"] is None
    for row, record, column in zip(first[:-1], records, columns, strict=False):
        spelt = row["prediction"]
        if name == "value":
            assert record["prediction"] == column["prediction"] == pytest.approx(float(spelt), rel=1e-5)
            continue
        assert record["prediction"] == column["prediction"]
        assert (spelt.split(";") if spelt else []) == record["prediction"] if name == "several" else True
        for label, chance in record["probabilities"].items():
            assert float(row[f"p_{label}"]) == chance == pytest.approx(column[f"p_{label}"], abs=1e-6)


@pytest.mark.parametrize("ending", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    fine_tuned: Callable[[str], Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
) -> None:
    monkeypatch.setattr(stream, "WINDOW_ROWS", 8)
    table = write_table(tmp_path / "in.csv", ("body",), [(text,) for text, _ in made_rows(36, most=60)])
    flags = (fine_tuned("classes").folder, "--input", table, "--device", "cpu", "--out")
    assert run_here(monkeypatch, SCRIPT, *flags, tmp_path / f"whole.{ending}") == 0
    scored: list[int] = []
    scores = LoadedRun.scores
    monkeypatch.setattr(
        LoadedRun, "scores", lambda *args, **more: (scored.append(len(args[1])), scores(*args, **more))[1]
    )
    for kill in range(1, 12):
        out = tmp_path / f"killed-{kill}.{ending}"
        with monkeypatch.context() as context:
            context.setattr(NewFile, "__exit__", dying_at(kill))
            try:
                run_here(context, SCRIPT, *flags, out)
            except Killed:
                assert not out.exists()
            else:
                break
        before = len(scored)
        assert run_here(monkeypatch, SCRIPT, *flags, out) == 0
        assert out.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
        assert len(scored) - before == max(0, min(5, 7 - kill)), "what was scored is not scored again"
        assert not out.with_name(f"{out.name}.parts").exists()
    assert kill == 9, "the mark, five windows, the file, and the list of what is finished"


@pytest.mark.parametrize("begun", [False, True])
def test_no_file_is_written_over(
    fine_tuned: Callable[[str], Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    begun: bool,
) -> None:
    """Whatever lies beside it: a folder of another's, or this prediction half done."""
    table = write_table(tmp_path / "in.csv", ("body",), made_rows_of_texts(12))
    out = tmp_path / "out.csv" if begun else table
    flags = (fine_tuned("classes").folder, "--input", table, "--device", "cpu", "--out", out)
    if begun:
        with monkeypatch.context() as context:
            context.setattr(NewFile, "__exit__", dying_at(2))
            with pytest.raises(Killed):
                run_here(context, SCRIPT, *flags)
        out.write_text("another's")
    else:
        (tmp_path / "in.csv.parts").mkdir()
    before = out.read_bytes()
    assert run_here(monkeypatch, SCRIPT, *flags) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("one text", "expected a sequence of texts, found one text"),
        ([None], r"texts\[0\]: expected a text, found None"),
        (["a", b"b"], r"texts\[1\]: expected a text, found b'b'"),
        (["a", "\ud800"], r"texts\[1\]: expected a text, found half of a surrogate pair at 0"),
    ],
)
def test_what_is_no_sequence_of_texts(fine_tuned: Callable[[str], Run], texts: Any, said: str) -> None:
    run = nystromformer.load_run(fine_tuned("classes").folder, "cpu")
    with pytest.raises((TypeError, ValueError), match=said):
        run.predict(texts)


def test_explaining_ordered_classes(fine_tuned: Callable[[str], Run]) -> None:
    """Each class has an explanation, the predicted one by default; their chances' slopes sum to nothing."""
    opened = nystromformer.load_run(fine_tuned("ordered").folder, "cpu")
    run = replace(opened, recipe=replace(opened.recipe, cut=Cut("head")))
    assert run.recipe.answer.outputs == len(run.recipe.answer.names) - 1
    text = made_rows_of_texts(3)[2][0]
    made = explain_text(run, text)
    assert made.facts["explained"] == run.predict([text]).labels[0] == made.facts["predicted"]
    steep = [explain_text(run, text, label=name).steepness_N for name in run.recipe.answer.names]
    np.testing.assert_allclose(sum(steep), 0.0, atol=1e-6)
    assert all(np.abs(each).max() > 1e-5 for each in steep)


def made_rows_of_texts(count: int) -> list[tuple[str]]:
    return [(text,) for text, _ in made_rows(count)]


def test_windows_end_by_rows_or_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WINDOW_ROWS", 4)
    monkeypatch.setattr(stream, "WINDOW_CHARACTERS", 20)
    rows = [("x" * size,) for size in (1, 1, 1, 1, 30, 10, 10, 5, 1)]
    table = open_table(write_table(tmp_path / "in.csv", ("body",), rows))
    job = stream.Job(table, ("body",), None, False)
    assert [window.ids for window in stream.windows(job)] == [["1", "2", "3", "4"], ["5"], ["6", "7"], ["8", "9"]]


def test_many_windows_of_one_text_are_computed_in_pieces(fine_tuned: Callable[[str], Run]) -> None:
    run = load_run(fine_tuned("classes").folder, "cpu")
    examples = run.encode(["a row of a matrix and a token " * 40])
    assert examples.rows[0] > 8
    whole, pieces = run.scores(examples, 10**6), run.scores(examples, 70)
    np.testing.assert_allclose(whole, pieces, atol=1e-5)


def test_fast_products_predict_the_same(
    fine_tuned: Callable[[str], Run], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rows of fewer lengths, none longer than the model's."""
    run = load_run(fine_tuned("classes").folder, "cpu")
    examples = run.encode([text for text, _ in made_rows(30, most=60)])
    before = run.scores(examples, 100)
    widths: list[int] = []
    run.model.encoder.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[1]))
    monkeypatch.setattr(Device, "products", lambda self, width: nullcontext(True))
    np.testing.assert_allclose(run.scores(examples, 100), before, atol=1e-5)
    most = run.config.model.max_seq_len
    assert widths
    assert {width for width in widths if width % 32} <= {most}
    assert max(widths) <= most
