"""Folders of sentence-transformers, out and in: the same vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import SOFTMAX, experiment, of_table
from finetuning import finetune, made_rows
from foreign import bert, stored
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from small import WORDS, run_here
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from nystromformer import from_pretrained
from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import write_json
from nystromformer.interop.experiments.export_model import export_model
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.prediction.predictor import Predictor
from nystromformer.tasks.experiment.folder import open_experiment

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
    export_model(made.folder, "0", "sentence-transformers", tmp_path / "out")
    model, tokenizer = from_pretrained(made.folder, checkpoint=0)
    expected = []
    for text in TEXTS:  # one by one: neighbours and padding change nothing
        tokens = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            expected.append(model.encoder.pool(model.encoder(tokens))[0].numpy())
    theirs = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), np.stack(expected), atol=1e-5)


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
            import_model(tmp_path / "theirs", tmp_path / "ours")
        return
    import_model(tmp_path / "theirs", tmp_path / "ours")
    opened = open_model(tmp_path / "ours")
    assert opened.config.pooling == "mean"
    assert opened.tokenizer is not None


def test_without_a_tokenizer_there_is_no_such_folder(tmp_path: Path, dataset_folder: Path) -> None:
    made = experiment(tmp_path / "ours", dataset_folder, **SOFTMAX)
    export_model(made.folder, "0", "hf", tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "bare", tokenizer="none")
    with pytest.raises(UserError, match="imported without a tokenizer"):
        export_model(tmp_path / "bare", "last", "sentence-transformers", tmp_path / "out")
    assert not (tmp_path / "out").exists()


PROMPTS = {"prompts": {"query": "token matrix ", "document": ""}, "default_prompt_name": "query"}
AROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "prompts": ("config_sentence_transformers.json", PROMPTS | {"default_prompt_name": None}),
    "a default prompt": ("config_sentence_transformers.json", PROMPTS),
    "lower case": ("sentence_bert_config.json", {"do_lower_case": True}),
    "a length": ("sentence_bert_config.json", {"max_seq_length": 5}),
}
SHOUTED = [text.upper() if number % 2 else text for number, text in enumerate(TEXTS)]


@pytest.mark.parametrize("case", AROUND)
def test_what_stands_around_the_encoder_goes_along(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In, in the vectors that this project makes, through a conversion's folder, and out."""
    file, content = AROUND[case]
    transformer = Transformer(str(stored(bert(), tmp_path / "bert")))
    SentenceTransformer(modules=[transformer, Pooling(16, "mean")], device="cpu").save(str(tmp_path / "st"))
    place = tmp_path / "st" / file
    write_json(place, read_json(place) | content)
    theirs = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    expected = theirs.encode(SHOUTED)
    exact = ImportSettings(overrides=["model.mixed_precision=false"])
    said = "\n".join(import_model(tmp_path / "st", tmp_path / "ours", exact))
    assert {"lower case": "do_lower_case", "a length": "5 tokens of a text"}.get(
        case, "prompts query, document"
    ) in said
    np.testing.assert_allclose(
        np.stack(Predictor(tmp_path / "ours", embed=True)(SHOUTED)["vector"]), expected, atol=1e-5
    )
    if case == "a length":
        longer = Predictor(tmp_path / "ours", embed=True, length=20)(SHOUTED)["vector"]
        assert np.abs(np.stack(longer) - expected).max() > 1e-3
        for flags, words in ((("--length", 4000), "expected from 3 to 32 tokens"), ((), "expected embed with it")):
            embed = ("--embed", *flags) if flags else ("--length", 9)
            places = ("--input", tmp_path / "t.csv", "--out", tmp_path / "v.parquet")
            (tmp_path / "t.csv").write_text("text\na b\n")
            assert run_here(monkeypatch, "code/run_predict.py", tmp_path / "ours", *places, *embed) == 2
            assert words in capsys.readouterr().err
    export_model(tmp_path / "ours", None, "sentence-transformers", tmp_path / "out")
    back = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(back.encode(SHOUTED), expected, atol=1e-5)
    if "prompt" in case:
        named = [model.encode(TEXTS, prompt_name="query") for model in (theirs, back)]
        np.testing.assert_allclose(*named, atol=1e-5)
        assert np.abs(named[0] - theirs.encode(TEXTS, prompt="")).max() > 1e-3
    assert back.max_seq_length == theirs.max_seq_length


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt_name: expected one of"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt false: prompts cannot be left out"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "found mean_tokens, max_tokens"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_name(
    tmp_path: Path, file: str, content: dict[str, Any], words: str
) -> None:
    folder = stored(bert(), tmp_path / "theirs")
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write_json(folder / file, (read_json(folder / file) if (folder / file).is_file() else {}) | content)
    with pytest.raises(UserError, match=words):
        import_model(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("kind", ["an import", "a fine-tuned run"])
def test_loading_says_nothing(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """No weights of a head that nobody trained or asks for, and no other type of model; and an export that needs a file
    of code says why."""
    import_model(
        stored(bert().bert, tmp_path / "theirs"),
        tmp_path / "ours",
        ImportSettings(overrides=["model.pooling=mean", "model.mixed_precision=false"]),
    )
    source: Path = tmp_path / "ours"
    if kind == "a fine-tuned run":
        texts = [(text, ["no", "yes"][number % 2]) for number, (text, _) in enumerate(made_rows(24))]
        (result,) = finetune(open_experiment(tmp_path / "ours"), of_table(tmp_path, texts), epoch=1).results
        source = result.folder
    said = export_model(source, None, "hf", tmp_path / "hf")
    assert ('Bert: it has pooling "first", the model "mean"' in said) == (kind == "a fine-tuned run")
    assert "BertModel computes the same" in export_model(source, None, "sentence-transformers", tmp_path / "out")
    logging.enable_propagation()
    before = logging.get_verbosity()
    logging.set_verbosity_warning()
    try:
        SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
        AutoTokenizer.from_pretrained(tmp_path / "hf", trust_remote_code=True)
        auto = AutoModelForSequenceClassification if kind == "a fine-tuned run" else AutoModel
        auto.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    finally:
        logging.set_verbosity(before)
        logging.disable_propagation()
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("transformers")]
