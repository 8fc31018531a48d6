"""The page of the paper's tables and figures: what it takes from results, what it says is missing, its two forms."""

import re
from pathlib import Path

import pytest
from papers import made_up_results
from small import run_here

from nystromformer.errors import UserError
from nystromformer.report.paper import OURS, PAPER_TABLE_1, Table, table1, write_paper


def test_ratios_stand_beside_the_papers(tmp_path: Path) -> None:
    section = table1(made_up_results(tmp_path))
    *_, ratios, _ = section.blocks
    assert isinstance(ratios, Table)
    rows = {row[0]: row[1:] for row in ratios.rows}
    theirs = PAPER_TABLE_1["Nyströmformer-64"][0][0] / PAPER_TABLE_1["Transformer"][0][0]
    assert rows["Nyströmformer-64"][0] == f"{theirs:.2f} / 0.87; here 0.25 / 0.25"
    assert rows["Nyströmformer-64"][2].endswith("here –")
    assert section.missing == ["left out, softmax, written out at 8192 tokens: memory: about 9 GiB"]


def test_what_the_tables_call_them_is_measured() -> None:
    from nystromformer.benchmark.efficiency.methods import choose_methods

    assert set(OURS.values()) <= {method.name for method in choose_methods(())}
    assert set(OURS) == set(PAPER_TABLE_1)


def test_everything_is_on_both_pages(tmp_path: Path) -> None:
    out = tmp_path / "page" / "paper.html"
    out.parent.mkdir()
    beside = write_paper(made_up_results(tmp_path / "results"), out)
    html, text = out.read_text(), beside.read_text()
    for title in ("Table 1", "Table 2", "Table 3", "Figure 2", "Figure 3", "Figure 5", "Figure 6"):
        assert f"<h2>{title}:" in html
        assert f"## {title}:" in text
    assert html.count("data:image/png;base64,") == 4
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) == 4
    assert all((beside.parent / link).is_file() for link in links)
    assert "<td>2 &lt;b&gt;</td>" in html, "cells are escaped"
    assert "nystrom 64" in html
    assert "| softmax | 60.0 ≈ |" in text
    assert "| best guesser, on the data above |  | 61.0 (bag of bytes) |" in text


def test_what_is_missing_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    flags = ("--results", tmp_path / "results", "--out", tmp_path / "paper.html")
    assert run_here(monkeypatch, "code/run_report.py", "paper", *flags) == 0
    assert "paper.md" in capsys.readouterr().out
    text = (tmp_path / "paper.md").read_text()
    assert text.count("\nMissing:\n") == 7
    for command in ("run_benchmark.py efficiency", "run_benchmark.py approximation", "experiments/studies/tiny.py run"):
        assert command in text
    assert "| Nyströmformer-64 | 35 / 0.7 |" in text, "the paper's own figures are there"


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        write_paper(tmp_path / "results", tmp_path / "paper.html")
    with pytest.raises(UserError, match=r"expected a file ending in \.html"):
        write_paper(tmp_path, tmp_path / "paper.md")
    (tmp_path / "efficiency").mkdir()
    for content in ("{", "[]", "{}"):
        (tmp_path / "efficiency" / "efficiency.json").write_text(content)
        with pytest.raises(UserError, match="expected"):
            write_paper(tmp_path, tmp_path / "paper.html")
    assert not (tmp_path / "paper.html").exists()
