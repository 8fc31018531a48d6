"""What a finished run's prediction of a text goes by: numbers, and a page."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small import run_here

from nystromformer.model.explain import explain
from nystromformer.report.explain_run import explain_text
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.prediction.loaded import LoadedRun, load_run

TEXT = "landmark softmax  token <b> matrix."


@pytest.fixture(scope="module")
def run(finished: Path) -> LoadedRun:
    return load_run(finished, "cpu")


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


def test_a_row_is_padded_as_the_run_pads_it(run: LoadedRun) -> None:
    padded = replace(run, pad_to=run.result.length)
    lengths: list[int] = []
    padded.model.encoder.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    assert explain_text(padded, TEXT).tokens < run.result.length
    assert set(lengths) == {run.result.length}


WORDS = ["landmark", "softmax", "token", "matrix.", "query"]
LONG = " ".join(WORDS[(at * at) % 5] for at in range(90))


@pytest.mark.parametrize("cut", [Cut("windows", 5), Cut("head_and_tail"), Cut()], ids=lambda cut: cut.rule)
def test_whatever_the_cut_each_token_stands_at_its_place(run: LoadedRun, cut: Cut) -> None:
    other = replace(run, recipe=replace(run.recipe, cut=cut))
    made = explain_text(other, LONG)
    own = made.explained
    examples = other.encode([LONG])
    assert isinstance(examples, EncodedTexts)
    whole = run.tokenizer.encode(LONG, add_special_tokens=False)
    at = dict(zip(whole.offsets, whole.ids, strict=True))
    tokens = examples.tokens_of(0).tolist()
    assert [at[offsets] for offsets in own.offsets if offsets != (0, 0)] == tokens[1:-1]
    read = sum(len(places) for places in examples.places_of(0))
    assert read == examples.tokens[0]
    if cut.rule == "windows":
        assert examples.rows[0] > 2
        assert not made.cut
        assert "(cut off, not read)" not in made.page
        assert f"{examples.rows[0]}, whose pooled" in made.facts["windows"]
        assert len(tokens) == len(whole.ids) + 2
        (row,) = explain_text(run, LONG).explained.attention_LN[:, :1].T
        assert not np.allclose(own.attention_LN[:, 0], row), "of other rows"
    else:
        assert made.cut
        assert made.page.count("(cut off, not read)") == 1
        assert "windows" not in made.facts
        assert len(tokens) == run.result.length
    if cut.rule == "head_and_tail":
        assert own.offsets[-2][1] == len(LONG)
        assert own.offsets[1][0] == 0
    assert made.facts["predicted"] == other.predict([LONG]).labels[0]


def test_a_token_of_two_windows_has_what_it_counts_in_both(run: LoadedRun) -> None:
    other = replace(run, recipe=replace(run.recipe, cut=Cut("windows", 5)))
    own = explain_text(other, LONG).explained
    examples = other.encode([LONG])
    assert isinstance(examples, EncodedTexts)
    batch = examples.batch(np.array([0]))
    found = explain(run.model, batch["tokens_BN"], batch["mask_BN"], rows_I=batch["rows_I"])
    total_L = found.attention_BLN.sum((0, 2))
    np.testing.assert_allclose(own.attention_LN.sum(1), total_L.numpy(), rtol=1e-4)
    np.testing.assert_allclose(own.steepness_N.sum(), found.steepness_BN.sum().item(), rtol=1e-3, atol=1e-6)
    places = examples.places_of(0)
    shared = sorted(set(places[0].tolist()) & set(places[1].tolist()) - {0, len(examples.tokens_of(0)) - 1})
    assert len(shared) >= 5
    for token in shared:
        rows = [(row, each.tolist().index(token)) for row, each in enumerate(places) if token in each]
        expected = sum(found.steepness_BN[row, at] for row, at in rows)
        np.testing.assert_allclose(own.steepness_N[token], float(expected), rtol=1e-3, atol=1e-6)


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
        ("--second", tmp_path / "text.txt"): "expected single texts, as in the run's training data",
        ("--text", tmp_path / "none.txt"): "none.txt: No such file",
    }
    for given, expected in mistakes.items():
        out = () if given[0] == "--out" else ("--out", tmp_path / "other.html")
        assert run_here(monkeypatch, "code/run_explain.py", *flags, *out, *given) == 2
        assert expected in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "other.html").exists()
    (tmp_path / "other.json").write_text(TEXT)
    assert run_here(monkeypatch, "code/run_explain.py", *flags, "--out", tmp_path / "other.html") == 2
    assert "other.json: is there already" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "other.json").read_text() == TEXT
