"""The examples of docs/at-home.md, as the page has them."""

import pytest
import torch
from doc_examples import ROOT, blocks

from nystromformer.nn import MultiheadAttention

PAGE = ROOT / "docs" / "at-home.md"


def run(section: str) -> dict[str, object]:
    """The names that a section's examples leave."""
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for block in blocks(PAGE, section):
        if block.language == "python":
            exec(block.text, names)  # our own text
    return names


def test_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("In transformers")["out"]
    assert isinstance(out, torch.Tensor)
    assert out.shape == (2, 300, 64)
    layers = capsys.readouterr().out.splitlines()
    assert len(layers) == 2


def test_plain_pytorch() -> None:
    names = run("In plain PyTorch")
    shapes = {"attended": (2, 500, 64), "hidden": (8, 2000, 64), "pooled": (8, 64), "out": (2, 500, 64)}
    for name, shape in shapes.items():
        value = names[name]
        assert isinstance(value, torch.Tensor)
        assert value.shape == shape
        assert value.isfinite().all()
    assert isinstance(names["attention"], MultiheadAttention)


def test_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    logits = run("Token classification")["logits"]
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 400, 9)
