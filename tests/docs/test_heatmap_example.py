"""docs/library.md draws the first token's weights of 100,000: as the page has it."""

import os
import runpy
from pathlib import Path

import pytest
import torch
from doc_examples import blocks

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_first_of_100_000_tokens_sees_what_it_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [example] = [
        block for block in blocks(ROOT / "docs" / "library.md", "Looking inside") if block.language == "python"
    ]
    script = tmp_path / "example.py"
    script.write_text(example.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "MPLBACKEND", "Agg")
    torch.manual_seed(0)
    weights = runpy.run_path(str(script))["weights"]
    assert (tmp_path / "first-token.png").stat().st_size > 5000
    assert weights.shape == (1, 2, 1, 100_000)
    by_thousands = weights[0, :, 0].unflatten(1, (100, 1000)).sum(2)
    assert by_thousands.argmax(1).tolist() == [20, 20]
