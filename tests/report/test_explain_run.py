"""What a finished run's prediction of a text goes by: numbers, and a page."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning import copy_of, pretrained, sweep, write_sst2
from small import CPU, run_here

from nystromformer.report.explain_run import explain_text
from nystromformer.tasks.finetuning.sweep import finetune
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.prediction.loaded import LoadedRun, load_run

TEXT = "landmark softmax  token <b> matrix."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> LoadedRun:
    folder = tmp_path_factory.mktemp("explained")
    source = pretrained(folder / "source", dataset_folder).folder
    glue = write_sst2(folder / "glue")
    done = finetune(copy_of(source, folder / "e"), Glue(find_tasks("SST-2")[0], glue), sweep(), CPU)
    return load_run(done.results[0].folder, "cpu")


def test_tokens_stand_where_the_text_has_them(run: LoadedRun) -> None:
    made = explain_text(run, TEXT)
    own = made.explained
    assert own.text == TEXT
    assert own.offsets[0] == own.offsets[-1] == (0, 0), "<s> and </s> stand for nothing"
    covered = "".join(TEXT[begin:end] for begin, end in own.offsets)
    assert covered.replace(" ", "") == TEXT.replace(" ", "")
    ids = run.tokenizer.encode(TEXT).ids
    assert own.names == [run.tokenizer.id_to_token(token) for token in ids]
    assert own.attention_LN.shape == (2, len(ids))
    assert np.isfinite(own.steepness_N).all()


def test_the_prediction_is_the_runs(run: LoadedRun) -> None:
    told = run.predict([TEXT])
    made = explain_text(run, TEXT)
    assert made.facts["predicted"] == made.label == told.labels[0]
    other = next(name for name in told.names if name != made.label)
    against = explain_text(run, TEXT, label=other)
    assert against.label == other
    assert not np.allclose(against.explained.steepness_N, made.explained.steepness_N)
    np.testing.assert_allclose(against.explained.attention_LN, made.explained.attention_LN, rtol=1e-5)
    assert all(p.grad is None for p in run.model.parameters())
    torch.testing.assert_close(run.predict([TEXT]).probabilities, told.probabilities)


def test_a_longer_text_is_cut_as_the_run_cuts_it(run: LoadedRun) -> None:
    made = explain_text(run, "token " * 100)
    assert made.cut
    assert made.tokens == run.result.length
    assert "(cut off, not read)" in made.page


def test_the_command_writes_the_page_and_the_numbers(
    run: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    flags = (run.folder, "--text", tmp_path / "text.txt", "--device", "cpu")
    assert run_here(monkeypatch, "code/run_explain.py", *flags, "--out", tmp_path / "page.html") == 0
    assert "predicted: " in capsys.readouterr().out
    data = json.loads((tmp_path / "page.json").read_text())
    assert len(data["tokens"]) == len(run.tokenizer.encode(TEXT).ids)
    content = (tmp_path / "page.html").read_text()
    assert "&lt;" in content
    assert "<b>" not in content
    mistakes = {
        ("--out", tmp_path / "page.txt"): "expected a name that ends in .html",
        ("--label", "5"): "--label 5: expected one of 0, 1",
        ("--second", tmp_path / "text.txt"): "expected single texts, as the run learned from",
        ("--text", tmp_path / "none.txt"): "none.txt: No such file",
    }
    for given, expected in mistakes.items():
        out = () if given[0] == "--out" else ("--out", tmp_path / "other.html")
        assert run_here(monkeypatch, "code/run_explain.py", *flags, *out, *given) == 2
        assert expected in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "other.html").exists()
    (tmp_path / "text.txt").write_bytes(b"caf\xe9")
    assert run_here(monkeypatch, "code/run_explain.py", *flags, "--out", tmp_path / "other.html") == 2
    assert "in UTF-8, found another byte at 3" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["text.html", "text.json"])
def test_no_file_is_written_over(
    run: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text(TEXT)
    flags = (run.folder, "--text", tmp_path / name, "--out", tmp_path / "text.html", "--device", "cpu")
    assert run_here(monkeypatch, "code/run_explain.py", *flags) == 2
    assert f"{name}: is there already" in " ".join(capsys.readouterr().err.split())
    assert [path.read_text() for path in tmp_path.iterdir()] == [TEXT]
