"""The scripts of examples/, run small, and the example of docs/library.md that draws weights."""

import re
import runpy
from pathlib import Path

import doc_examples
import pytest
import torch
from doc_examples import ROOT, blocks


def run(name: str, *words: object) -> str:
    return doc_examples.run(["python", f"examples/{name}", *map(str, words)], ROOT, 300).stdout


@pytest.mark.slow
def test_softmax_is_swapped_and_the_error_told() -> None:
    out = run("swap_softmax.py")
    assert len(out.splitlines()) == 4


@pytest.mark.slow
def test_a_series_classifier_learns() -> None:
    lines = run("time_series.py", 100).splitlines()
    shares = [int(found[1]) for line in lines if (found := re.search(r"(\d+) % of the last", line))]
    assert shares[-1] > 80 > shares[0]


@pytest.mark.slow
def test_far_sight(tmp_path: Path) -> None:
    out = run("far_sight.py", 3000, tmp_path / "row.png")
    assert "the first of 3,000 tokens" in out
    assert out.count("token ") >= 5
    assert (tmp_path / "row.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_first_of_100_000_tokens_sees_what_it_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = blocks(ROOT / "docs" / "library.md", "Attention weights")
    [example] = [block for block in examples if block.language == "python"]
    (tmp_path / "example.py").write_text(example.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    torch.manual_seed(0)
    weights = runpy.run_path(str(tmp_path / "example.py"))["weights"]
    assert (tmp_path / "first-token.png").stat().st_size > 5000
    assert weights.shape == (1, 2, 1, 100_000)
    by_thousands = weights[0, :, 0].unflatten(1, (100, 1000)).sum(2)
    assert by_thousands.argmax(1).tolist() == [20, 20]
