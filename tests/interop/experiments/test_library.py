"""`nystromformer.from_pretrained`, and names on the hub."""

from pathlib import Path

import foreign
import pytest
import torch
from finetuning import pretrained
from small import run_here

import nystromformer
from nystromformer.errors import UserError
from nystromformer.interop.experiments.import_model import find_source, import_model
from nystromformer.model import PretrainingModel


def test_from_pretrained(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder)
    model, tokenizer = nystromformer.from_pretrained(made.folder)
    earlier, _ = nystromformer.from_pretrained(str(made.folder), checkpoint=0)
    assert isinstance(model, PretrainingModel)
    assert not model.training
    assert tokenizer is not None
    tokens = torch.tensor([tokenizer.encode("landmark <mask> token").ids])
    with torch.no_grad():
        assert not torch.equal(model.encoder(tokens), earlier.encoder(tokens))
    with pytest.raises(UserError, match="expected --checkpoint last or one of 0, 1; found '9'"):
        nystromformer.from_pretrained(made.folder, checkpoint=9)
    import_model(foreign.stored(foreign.bert(), tmp_path / "theirs"), tmp_path / "imported", tokenizer="none")
    assert nystromformer.from_pretrained(tmp_path / "imported")[1] is None


def test_nothing_else_is_there() -> None:
    with pytest.raises(AttributeError, match="module 'nystromformer' has no attribute 'from_nowhere'"):
        nystromformer.from_nowhere  # noqa: B018


def test_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here(monkeypatch, "code/run_export.py", "import", "some/model", tmp_path / "ours") == 2
    error = capsys.readouterr().err
    assert "some/model: no such folder here, and it cannot be downloaded from the Hugging Face hub: " in error
    assert "`hf download NAME --local-dir FOLDER`, copy FOLDER here" in error
    assert not list(tmp_path.iterdir())
    # Where there is a network: safetensors first, and .bin where there are none.
    folder, asked = tmp_path / "cache", []
    folder.mkdir()

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, any("bin" in pattern for pattern in allow_patterns)))
        if asked[-1][1]:
            (folder / "pytorch_model.bin").touch()
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_source(Path("some/model")) == folder
    assert asked == [("some/model", False), ("some/model", True)]
    # A mistyped path is nobody else's affair.
    for path in ("cache/modle", "../model", "weights/pytorch_model.bin", "model.cp"):
        assert find_source(Path(path)) == Path(path)
    assert len(asked) == 2
