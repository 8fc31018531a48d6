"""ModernBERT in and out of transformers: equal logits, short and long, with padding."""

from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from foreign import LENGTH, VOCABULARY
from small import run_here
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM

from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.interop.experiments.export_model import export_model
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.layouts import MODULE_FILE
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.model import PretrainingModel
from nystromformer.training.checkpoint import read_checkpoint, write_checkpoint

CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "all biases": dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True),
    "some biases, none of the vocabulary": {"norm_bias": True, "decoder_bias": False},
    "global layers alone, tanh": {
        "layer_types": ["full_attention"] * 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "classifier_activation": "gelu_pytorch_tanh",
    },
    "local first": {"layer_types": ["sliding_attention", "full_attention"] * 2, "classifier_pooling": "mean"},
}
ROWS = [(1, 1), (3, 5), (2, 9), (4, LENGTH)]


def rows(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens, and a mask with padding at the end of every row but the first."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(5, VOCABULARY, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    lengths[0] = length
    return tokens, torch.arange(length) < lengths


def ours(model: PretrainingModel, tokens: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        return model.mlm(model.encoder(tokens, mask), model.encoder.embeddings.word.weight)


def assert_equal_logits(model: PretrainingModel, theirs: Any) -> None:
    for batch, length in ROWS:
        tokens, mask = rows(batch, length)
        with torch.no_grad():
            expected = theirs(input_ids=tokens, attention_mask=mask.long()).logits
        torch.testing.assert_close(ours(model, tokens, mask)[mask], expected[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_there_and_back(tmp_path: Path, case: str) -> None:
    source = foreign.modernbert(**CASES[case])
    foreign.stored(source, tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings())
    opened = open_model(tmp_path / "ours")
    assert opened.config.pooling == ("mean" if "local" in case else "first")
    assert_equal_logits(opened.build(), source)
    layout = export_model(tmp_path / "ours", "last", "hf", tmp_path / "back", "auto")
    assert "transformers' own ModernBERT" in layout
    assert not (tmp_path / "back" / MODULE_FILE).exists()
    again, loading = AutoModelForMaskedLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_equal_logits(opened.build(), again)


def test_a_bare_encoder(tmp_path: Path) -> None:
    source = foreign.modernbert().model
    foreign.stored(source, tmp_path / "theirs")
    said = import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings())
    assert "without a head for masked tokens" in "\n".join(said)
    model = open_model(tmp_path / "ours").build()
    tokens, mask = rows(3, 9)
    with torch.no_grad():
        expected = source(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
        torch.testing.assert_close(model.encoder(tokens, mask)[mask], expected[mask], rtol=1e-4, atol=1e-5)


def test_a_type_of_sentences_is_part_of_the_tokens(tmp_path: Path) -> None:
    foreign.stored(foreign.modernbert(), tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings())
    path = tmp_path / "ours" / "model" / "cp-0000.model"
    content = read_checkpoint(path)
    content["model"]["encoder.embeddings.sentence_type.weight"] += 0.3
    write_checkpoint(content, path)
    export_model(tmp_path / "ours", "last", "hf", tmp_path / "back", "auto")
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "back")
    assert_equal_logits(open_model(tmp_path / "ours").build(), theirs)
    import_model(tmp_path / "back", tmp_path / "again", ImportSettings())
    again = open_model(tmp_path / "again")
    assert_equal_logits(again.build(), theirs)
    assert torch.equal(again.weights["mlm.bias"], content["model"]["mlm.bias"])
    name = "encoder.embeddings.word.weight"
    assert torch.equal(again.weights[name], content["model"][name])
    name = "encoder.embeddings.sentence_type.weight"
    torch.testing.assert_close(again.weights[name], content["model"][name], rtol=1e-5, atol=1e-6)


def test_an_output_layer_of_its_own_is_refused(tmp_path: Path) -> None:
    source = foreign.modernbert(tie_word_embeddings=False)
    foreign.stored(source, tmp_path / "theirs")
    with pytest.raises(UserError, match="the source's output layer is not tied to its embeddings"):
        import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings())


def test_special_tokens_are_the_tokenizers_or_none(tmp_path: Path) -> None:
    foreign.stored(foreign.modernbert(), tmp_path / "theirs")
    roles = ("bos", "pad", "eos", "cls", "sep")
    for name, given in (("with", None), ("without", "none")):
        import_model(tmp_path / "theirs", tmp_path / name, ImportSettings(), tokenizer=given)
        export_model(tmp_path / name, "last", "hf", tmp_path / f"{name}-back", "auto")
        config = AutoModelForMaskedLM.from_pretrained(tmp_path / f"{name}-back").config
        ids = [getattr(config, f"{role}_token_id") for role in roles]
        assert all(each is not None and each < VOCABULARY for each in ids) if given is None else ids == [None] * 5


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_activation": "relu"}, "hidden_activation: expected one of gelu"),
        ({"classifier_activation": "silu"}, "classifier_activation: expected that of the layers"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope_type: expected 'def"),
        ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "layer_types"),
        ({"architectures": ["ModernBertForSequenceClassification"]}, "an unsupported architecture"),
        ({"num_attention_heads": 0}, "num_attention_heads: expected at least one, found 0"),
        ({"local_attention": 10**6}, "local_attention: expected at most max_position_embeddings"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_imported(
    tmp_path: Path,
    changes: dict[str, Any],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = foreign.modernbert()
    foreign.stored(source, tmp_path / "theirs")
    write_json(tmp_path / "theirs" / "config.json", source.config.to_dict() | {"model_type": "modernbert"} | changes)
    words = ("import", tmp_path / "theirs", tmp_path / "ours")
    assert run_here(monkeypatch, "code/run_export.py", *words) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    source = foreign.modernbert()
    foreign.stored(source, tmp_path / "theirs")
    config = source.config.to_dict() | {"model_type": "modernbert", "num_hidden_layers": 5}
    config["layer_types"] = [*config["layer_types"], "full_attention"]
    write_json(tmp_path / "theirs" / "config.json", config)
    with pytest.raises(UserError, match=r"model.layers.4.attn.query.weight: missing"):
        import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings())


def test_transformers_loads_the_encoder_alone(tmp_path: Path) -> None:
    foreign.stored(foreign.modernbert(), tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours", ImportSettings())
    export_model(tmp_path / "ours", "last", "hf", tmp_path / "back", "auto")
    tokens, mask = rows(2, 9)
    with torch.no_grad():
        found = AutoModel.from_pretrained(tmp_path / "back")(input_ids=tokens, attention_mask=mask.long())
        expected = open_model(tmp_path / "ours").build().encoder(tokens, mask)
    torch.testing.assert_close(expected[mask], found.last_hidden_state[mask], rtol=1e-4, atol=1e-5)
