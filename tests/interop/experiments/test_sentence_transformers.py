"""Folders of sentence-transformers, out and in: the same vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import SOFTMAX, experiment
from foreign import bert, stored
from sentence_transformers import SentenceTransformer
from small import WORDS, run_here

from nystromformer import from_pretrained
from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import write_json
from nystromformer.interop.experiments.export_model import export_model
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.settings import ImportSettings

TEXTS = [" ".join(WORDS[:count]) for count in (1, 9, 4, 2)]
CASES: dict[str, dict[str, Any]] = {
    "nystrom": {},
    "near_far, which needs the package": {
        "model__attn_type": {"name": "near_far", "block_size": 4, "num_landmarks": 3},
        "model__num_landmarks": None,
    },
    "BERT's own module": SOFTMAX,
    "the first token's": {"model__pooling": "first"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_vectors_are_the_encoders_own(tmp_path: Path, dataset_folder: Path, case: str) -> None:
    changes = {"model__pooling": "mean", "model__num_sen_type": 1} | CASES[case]
    made = experiment(tmp_path / "ours", dataset_folder, **changes)
    export_model(made.folder, "0", "sentence-transformers", tmp_path / "out", "auto")
    model, tokenizer = from_pretrained(made.folder, checkpoint=0)
    expected = []
    for text in TEXTS:  # one by one: neighbours and padding change nothing
        tokens = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            expected.append(model.encoder.pool(model.encoder(tokens))[0].numpy())
    theirs = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), np.stack(expected), atol=1e-5)
    assert "SentenceTransformer" in (tmp_path / "out" / "README.md").read_text()


def test_what_was_written_is_imported_again(tmp_path: Path, dataset_folder: Path) -> None:
    made = experiment(tmp_path / "ours", dataset_folder, **SOFTMAX, model__pooling="mean")
    export_model(made.folder, "0", "sentence-transformers", tmp_path / "out", "auto")
    import_model(tmp_path / "out", tmp_path / "again", ImportSettings(attention="softmax"))
    again = open_model(tmp_path / "again")
    assert again.config.pooling == "mean"
    name = "encoder.layers.0.attention.query.weight"
    assert torch.equal(again.weights[name], open_model(made.folder, "0").weights[name])


@pytest.mark.parametrize("part", ["sentence_transformers.models.Dense", "mine.Own", 7])
def test_parts_that_are_not_known_are_named(
    tmp_path: Path, part: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(bert(), tmp_path / "theirs")
    kinds = ["sentence_transformers.models.Transformer", part]
    write_json(tmp_path / "theirs" / "modules.json", [{"idx": n, "type": kind} for n, kind in enumerate(kinds)])
    assert run_here(monkeypatch, "code/run_export.py", "import", tmp_path / "theirs", tmp_path / "ours") == 2
    told = capsys.readouterr().err
    assert "expected the parts Transformer, Pooling, Normalize, found Transformer, " in told
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("place", ["pooling", "", "gone"])
def test_parts_lie_where_their_list_says(tmp_path: Path, place: str) -> None:
    """The model in a folder of its own, as earlier versions stored it; and the pooling."""
    stored(bert(), tmp_path / "theirs" / "0_Transformer")
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (tmp_path / "theirs" / (place or "1_Pooling")).mkdir()
    write_json(tmp_path / "theirs" / (place or "1_Pooling") / "config.json", modes)
    kinds = (("0_Transformer", "Transformer"), ("lost" if place == "gone" else place or "1_Pooling", "Pooling"))
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    write_json(tmp_path / "theirs" / "modules.json", modules)
    if place == "gone":
        with pytest.raises(UserError, match=r"lost/config.json: no such file, where modules.json says"):
            import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings(attention="softmax"))
        return
    import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings(attention="softmax"))
    opened = open_model(tmp_path / "ours")
    assert opened.config.pooling == "mean"
    assert opened.tokenizer is not None


def test_without_a_tokenizer_there_is_no_such_folder(tmp_path: Path, dataset_folder: Path) -> None:
    made = experiment(tmp_path / "ours", dataset_folder, **SOFTMAX)
    export_model(made.folder, "0", "hf", tmp_path / "hf", "auto")
    import_model(tmp_path / "hf", tmp_path / "bare", ImportSettings(attention="softmax"), tokenizer="none")
    with pytest.raises(UserError, match="imported without a tokenizer"):
        export_model(tmp_path / "bare", "last", "sentence-transformers", tmp_path / "out", "auto")
    assert not (tmp_path / "out").exists()


def test_lengths_are_the_models(tmp_path: Path, dataset_folder: Path) -> None:
    made = experiment(tmp_path / "ours", dataset_folder, **SOFTMAX)
    export_model(made.folder, "0", "sentence-transformers", tmp_path / "out", "auto")
    assert read_json(tmp_path / "out" / "sentence_bert_config.json") == {
        "max_seq_length": made.config.model.max_seq_len
    }
    long = " ".join(WORDS * 20)
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert np.isfinite(theirs.encode([long])).all()
