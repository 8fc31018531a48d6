"""What a finished run's prediction of a text goes by: numbers, and a page."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import run_here

from nystromformer.model.explain import explain
from nystromformer.prediction.explain import ExplainedText, explain_text
from nystromformer.prediction.predictor import Predictor
from nystromformer.tasks.documents.cut import Cut

TEXT = "landmark softmax  token <b> matrix."
WORDS = ["landmark", "softmax", "token", "matrix.", "query"]
LONG = " ".join(WORDS[(at * at) % 5] for at in range(90))
CUT_OFF = "(cut off, not read)"


@pytest.fixture(scope="module")
def predictor(finished: Path) -> Predictor:
    return Predictor(finished, "cpu")


def with_recipe(predictor: Predictor, **changes: object) -> Predictor:
    """Another one, whose run has a recipe of other fields."""
    other = Predictor(predictor.folder, "cpu")
    other.network.recipe = replace(other.network.recipe, **changes)  # type: ignore[arg-type]
    return other


def test_tokens_stand_where_the_text_has_them(predictor: Predictor) -> None:
    made = explain_text(predictor, TEXT)
    assert made.text == TEXT
    covered = "".join(TEXT[begin:end] for begin, end in made.offsets)
    assert covered.replace(" ", "") == TEXT.replace(" ", ""), "<s> and </s> stand for nothing"
    tokenizer = predictor.network.tokenizer
    ids = tokenizer.encode(TEXT).ids
    assert made.names == [tokenizer.id_to_token(token) for token in ids]
    assert made.attention_LN.shape == (2, len(ids))
    assert np.isfinite(made.steepness_N).all()


def test_the_prediction_is_the_runs(predictor: Predictor) -> None:
    told = predictor([TEXT])
    made = explain_text(predictor, TEXT)
    assert made.facts["predicted"] == made.facts["explained"] == told["prediction"][0]
    other = next(name for name in predictor.network.recipe.answer.names if name != told["prediction"][0])
    against = explain_text(predictor, TEXT, other)
    assert against.facts["explained"] == other
    assert not np.allclose(against.steepness_N, made.steepness_N)
    np.testing.assert_allclose(against.attention_LN, made.attention_LN, rtol=1e-5)
    assert all(p.grad is None for p in predictor.network.model.parameters())
    assert predictor([TEXT]) == told


@pytest.mark.parametrize("cut", [Cut("windows", 5), Cut()], ids=lambda cut: cut.rule)
def test_whatever_the_cut_each_token_stands_at_its_place(predictor: Predictor, cut: Cut) -> None:
    other = with_recipe(predictor, cut=cut)
    made, examples = explain_text(other, LONG), other.network.encode([LONG])
    whole = other.network.tokenizer.encode(LONG, add_special_tokens=False)
    at = dict(zip(whole.offsets, whole.ids, strict=True))
    tokens = examples.tokens_of(0).tolist()
    assert [at[offsets] for offsets in made.offsets[1:-1]] == tokens[1:-1]
    assert made.page.count(CUT_OFF) == (0 if cut.rule == "windows" else 2), "once in each of two shadings"
    assert ("windows" in made.facts) == (cut.rule == "windows")
    assert len(tokens) == (len(whole.ids) + 2 if cut.rule == "windows" else other.network.length)
    assert made.facts["predicted"] == other([LONG])["prediction"][0]


def test_a_token_of_two_windows_has_what_it_counts_in_both(predictor: Predictor) -> None:
    other = with_recipe(predictor, cut=Cut("windows", 5))
    made, examples = explain_text(other, LONG), other.network.encode([LONG])
    found = explain(other.network.model, **examples.batch(np.array([0])))
    np.testing.assert_allclose(made.attention_LN.sum(1), found.attention_BLN.sum((0, 2)).numpy(), rtol=1e-4)
    expected_N = np.zeros(len(made.names), dtype=np.float32)
    for row, places in enumerate(examples.places_of(0)):
        np.add.at(expected_N, places, found.steepness_BN[row, : len(places)].numpy())
    np.testing.assert_allclose(made.steepness_N, expected_N, rtol=1e-3, atol=1e-6)
    assert examples.rows[0] > 2


class _Text(HTMLParser):
    """Of each `div` its text, and the shades in it by their color."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.shades: list[list[tuple[str, int]]] = []
        self._is_inside = False
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "div":
            self._is_inside = True
            self.texts.append("")
            self.shades.append([])
        elif tag == "span":
            found = re.fullmatch(r"background: rgb\(([\d ]+) / (\d+)%\)", dict(attrs)["style"] or "")
            assert found
            self.shades[-1].append((found[1], int(found[2])))

    def handle_endtag(self, tag: str) -> None:
        self._is_inside &= tag != "div"

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.texts[-1] += data


def explained(text: str, ends: list[int], attention: list[float], steepness: list[float]) -> ExplainedText:
    offsets = list(zip([0, *ends[:-1]], ends, strict=True))
    names, facts = [text[a:b] for a, b in offsets], {"predicted": "<script>"}
    return ExplainedText(text, facts, names, offsets, np.float32([attention] * 2), np.float32(steepness))


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=60), st.data())
def test_the_whole_text_stands_there_whatever_it_holds(text: str, data: st.DataObject) -> None:
    ends = sorted({*data.draw(st.sets(st.integers(1, len(text)), max_size=8)), len(text)})
    content = explained(text, ends, [0.1] * len(ends), [0.0] * len(ends)).page
    assert _Text(content).texts == ["predicted: <script>", text, text]
    assert "<script>" not in content


def test_shades_follow_the_weights() -> None:
    found = _Text(explained("good bad plain", [4, 8, 14], [0.6, 0.3, -0.1], [2.0, -1.0, 0.0]).page)
    _, attention, steepness = found.shades
    assert [shade for _, shade in attention] == sorted((shade for _, shade in attention), reverse=True)
    assert attention[2][1] == 0, "a negative weight is no shade"
    assert steepness[0][0] != steepness[1][0]
    assert steepness[0][1] > steepness[1][1] > steepness[2][1] == 0


def test_the_command_writes_the_page_and_says_the_numbers(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    flags = (predictor.folder, "--input", tmp_path / "text.txt", "--device", "cpu")
    assert run_here(monkeypatch, "code/run_explain.py", *flags, "--out", tmp_path / "page.html") == 0
    said = capsys.readouterr().out
    assert "predicted: " in said
    assert "softmax" in said
    content = (tmp_path / "page.html").read_text()
    assert "&lt;" in content
    assert "<b>" not in content
    (tmp_path / "empty.txt").write_text(" ")
    mistakes = {
        ("--label", "5"): "--label 5: expected one of 0, 1",
        ("--input", tmp_path / "none.txt"): "none.txt: No such file",
        ("--input", tmp_path / "empty.txt"): "found an empty one",
        ("--out", tmp_path / "page.html"): "page.html: is there already",
    }
    for given_flags, expected in mistakes.items():
        out = () if given_flags[0] == "--out" else ("--out", tmp_path / "other.html")
        assert run_here(monkeypatch, "code/run_explain.py", *flags, *out, *given_flags) == 2
        assert expected in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "other.html").exists()
