"""Models of others as experiments and back: what they compute is compared with transformers' modules and the authors'.

Shapes: B batch, N tokens.
"""

import json
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from exported import assert_equal
from foreign import AUTHORS, LANDMARKS, LENGTH, SIZES, VOCABULARY
from safetensors.torch import load_file, save_file
from small import tokens
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, BertForTokenClassification, PreTrainedModel

from nystromformer.errors import UserError
from nystromformer.interop.experiments.export_model import MODULE_FILE, export_model
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.training.checkpoint import read_checkpoint, write_checkpoint

COMPATIBLE = ImportSettings(compatible=True)
_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
TANH = {"hidden_activation": "gelu_pytorch_tanh", "classifier_activation": "gelu_pytorch_tanh"}
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"nystromformer, {size}": ("nystromformer", {"size": size}) for size in SIZES},
    "nystromformer, tanh": ("nystromformer", {"hidden_act": "gelu_new"}),
    "nystromformer, 64 = 64": ("nystromformer", {"num_landmarks": 64, "segment_means_seq_len": 64}),
    "bert": ("bert", {}),
    "bert, many heads": ("bert", {"size": "many heads"}),
    "roberta": ("roberta", {}),
    "distilbert": ("distilbert", {}),
    "modernbert": ("modernbert", {}),
    "modernbert, all biases": ("modernbert", dict.fromkeys(_BIASES, True)),
    "modernbert, global": ("modernbert", {"layer_types": ["full_attention"] * 4, **TANH}),
    "modernbert, mean": (
        "modernbert",
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "classifier_pooling": "mean"},
    ),
}


def imported(source: Path, dest: Path, settings: ImportSettings = COMPATIBLE) -> tuple[PretrainingModel, str]:
    """The model of the folder that the import has made, and what it said."""
    said = import_model(source, dest, settings)
    content = read_checkpoint(dest / "model" / "cp-0000.model")
    assert content["config"] == open_experiment(dest).config.model_dump(mode="json", by_alias=True)
    model = open_model(dest).build()
    assert isinstance(model, PretrainingModel)
    return model, "\n".join(said)


def logits_of(model: nn.Module, tokens_BN: Tensor, mask: Tensor | None = None) -> Tensor:
    """Of ours or theirs."""
    with torch.no_grad():
        if isinstance(model, PreTrainedModel):
            logits: Tensor = model(tokens_BN, attention_mask=None if mask is None else mask.long()).logits
        else:
            assert isinstance(model, PretrainingModel)
            logits = model.mlm(model.encoder(tokens_BN, mask), model.encoder.embeddings.word.weight)
    return logits


@pytest.mark.parametrize("case", FORMATS)
def test_in_and_out_and_in_again(tmp_path: Path, case: str) -> None:
    """Equal logits each time, and the weights to the bit; of padding too, where the source computes it."""
    kind, changes = FORMATS[case]
    source: PreTrainedModel = getattr(foreign, kind)(**changes)
    foreign.stored(source, tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours", COMPATIBLE)
    ours = open_model(tmp_path / "ours")
    assert ours.config.pooling == ("mean" if "mean" in case else "first")
    assert "computes the same" in export_model(tmp_path / "ours", None, "hf", tmp_path / "back")
    # Of softmax with a convolution transformers' own module has padding in it.
    has_file = case == "nystromformer, 64 = 64"
    assert (tmp_path / "back" / MODULE_FILE).exists() == has_file
    again, loading = AutoModelForMaskedLM.from_pretrained(
        tmp_path / "back", output_loading_info=True, trust_remote_code=has_file
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for batch in (1, 3):
        mask = None
        if kind != "nystromformer":
            mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [20], [1]])[:batch]
        expected, keep = logits_of(source, tokens(batch), mask), mask if mask is not None else slice(None)
        for model in (ours.build(), again):
            assert_equal(logits_of(model, tokens(batch), mask)[keep], expected[keep])
    if kind in ("nystromformer", "bert") and not has_file:
        weights, theirs = again.state_dict(), source.state_dict()
        assert weights.keys() == theirs.keys()
        assert all(torch.equal(weight, theirs[name]) for name, weight in weights.items())
    import_model(tmp_path / "back", tmp_path / "again", COMPATIBLE)
    twice = open_model(tmp_path / "again")
    for name, weight in ours.weights.items():
        offset = ours.config.position_offset - twice.config.position_offset if "position" in name else 0
        assert torch.equal(weight[offset:], twice.weights[name]), name
    assert ours.content["tokenizer"] == twice.content["tokenizer"]


@pytest.mark.parametrize("size", SIZES)
def test_nystromformer_with_our_attention_differs_by_the_inverses_start_alone(tmp_path: Path, size: str) -> None:
    """One divisor for the whole batch or one for each matrix: on a full row without padding all else is equal."""
    source = foreign.nystromformer(size)
    model, said = imported(foreign.stored(source, tmp_path / "theirs"), tmp_path / "ours", ImportSettings())
    assert "softmax" not in said
    ours, expected = logits_of(model, tokens(3)), logits_of(source, tokens(3))
    assert float((ours - expected).norm() / expected.norm()) < 0.02
    for layer in model.encoder.layers:
        core = layer.attention.core  # type: ignore[union-attr]
        core.config = core.config.model_copy(update={"pinv_start": "batch"})  # type: ignore[union-attr, operator]
    assert_equal(logits_of(model, tokens(3)), expected)


def test_another_head_is_left_out(tmp_path: Path) -> None:
    source = foreign.bert()
    folder = foreign.stored(BertForTokenClassification(source.config), tmp_path / "theirs")
    said = "\n".join(import_model(folder, tmp_path / "ours"))
    assert "not in the model, left out: classifier.bias, classifier.weight" in said
    assert "without a head for masked tokens" in said
    assert open_model(tmp_path / "ours").is_headless


@pytest.mark.parametrize("form", ["in the softmax's place", "of more tokens", "by a key"])
def test_what_an_import_changes(tmp_path: Path, form: str) -> None:
    """Another attention, exact where it has as many landmarks as tokens; more positions, the first ones the source's;
    and keys of config.json. By default all is the source's."""
    source = foreign.bert()
    folder = foreign.stored(source, tmp_path / "theirs")
    changes: dict[str, Any] = {
        "in the softmax's place": {"attention": f"nystrom,num_landmarks={LANDMARKS},conv_kernel_size=7"},
        "of more tokens": {"length": 3 * LENGTH},
        "by a key": {"overrides": ["model.pooling=mean", f"model.max_seq_len={LENGTH // 2}"]},
    }[form]
    model, said = imported(folder, tmp_path / "ours", ImportSettings(**changes))
    config, short = open_experiment(tmp_path / "ours").config.model, tokens(3, LANDMARKS)
    mask = torch.arange(LANDMARKS) < torch.tensor([[LANDMARKS], [3], [1]])
    assert_equal(logits_of(model, short, mask)[mask], logits_of(source, short, mask)[mask])
    if form == "in the softmax's place":
        assert 'model.attn_type: "softmax" in the checkpoint' in said
        assert "the new attention is untrained" in said
        assert not model.encoder.layers[0].attention.core.skip.weight.any()  # type: ignore[union-attr, operator]
        assert float((logits_of(model, tokens(1)) - logits_of(source, tokens(1))).abs().max()) > 1e-3
    elif form == "of more tokens":
        assert f"positions: {LENGTH} repeated to {3 * LENGTH}" in said
        assert logits_of(model, tokens(2, 3 * LENGTH)).isfinite().all()
    else:
        assert (config.pooling, config.max_seq_len) == ("mean", LENGTH // 2)
    assert {each.name for each in config.attentions} == {"nystrom" if form == "in the softmax's place" else "softmax"}


@pytest.mark.parametrize("wrapper", ["module.", "module._orig_mod.", "encoder.layer.0._orig_mod."])
def test_names_are_read_without_what_wrapped_the_model(tmp_path: Path, wrapper: str) -> None:
    """DataParallel's; torch.compile's too; that of a compiled layer."""
    folder, source = tmp_path / "theirs", foreign.bert()
    weights = load_file(foreign.stored(source, folder) / "model.safetensors")
    inner = "encoder.layer.0." if "layer" in wrapper else ""
    wrapped = {name.replace(inner, wrapper) if inner else wrapper + name: weight for name, weight in weights.items()}
    save_file(wrapped, folder / "model.safetensors")
    said = import_model(folder, tmp_path / "ours", COMPATIBLE, tokenizer="none")
    assert any(line.startswith("names without ") and "_orig_mod" in line for line in said) == (wrapper != "module.")
    expected = source.bert.encoder.layer[0].attention.self.query.weight
    assert torch.equal(open_model(tmp_path / "ours").weights["encoder.layers.0.attention.query.weight"], expected)


@pytest.mark.parametrize("part", ["encoder alone", "with a pooler", "old names"])
def test_parts_and_old_names_of_bert(tmp_path: Path, part: str) -> None:
    source = foreign.bert()
    folder = foreign.stored(source, tmp_path / "theirs")
    weights = load_file(folder / "model.safetensors")
    if part == "encoder alone":
        weights = {name.removeprefix("bert."): w for name, w in weights.items() if name.startswith("bert.")}
    elif part == "with a pooler":
        weights |= {"bert.pooler.dense.weight": torch.ones(16, 16), "cls.seq_relationship.bias": torch.ones(2)}
    else:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, name in old.items():
            weights = {key.replace(new, name): weight for key, weight in weights.items()}
        weights["bert.embeddings.position_ids"] = torch.arange(LENGTH)
    save_file(weights, folder / "model.safetensors")
    model, said = imported(folder, tmp_path / "ours")
    assert ("bert.pooler.dense.weight, cls.seq_relationship.bias" in said) == (part == "with a pooler")
    assert ("without a head for masked tokens" in said) == (part == "encoder alone")
    if part == "encoder alone":
        with torch.no_grad():
            assert_equal(model.encoder(tokens(2)), source.base_model(tokens(2)).last_hidden_state)
    else:
        assert_equal(logits_of(model, tokens(2)), logits_of(source, tokens(2)))


@pytest.mark.parametrize("form", ["bin", "bfloat16"])
def test_how_weights_are_stored(tmp_path: Path, form: str) -> None:
    source = foreign.nystromformer()
    folder = foreign.stored(source, tmp_path / "theirs")
    weights, file = load_file(folder / "model.safetensors"), folder / "model.safetensors"
    file.unlink()
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file({name: weight.bfloat16() for name, weight in weights.items()}, file)
        source = source.bfloat16().float()
    model, said = imported(folder, tmp_path / "ours")
    assert ("stored in bfloat16 are held in float32" in said) == (form == "bfloat16")
    assert_equal(logits_of(model, tokens(2)), logits_of(source, tokens(2)))


def test_a_type_of_sentences_is_part_of_modernberts_tokens(tmp_path: Path) -> None:
    foreign.stored(foreign.modernbert(), tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours")
    path = tmp_path / "ours" / "model" / "cp-0000.model"
    content = read_checkpoint(path)
    content["model"]["encoder.embeddings.sentence_type.weight"] += 0.3
    write_checkpoint(content, path)
    export_model(tmp_path / "ours", None, "hf", tmp_path / "back")
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "back")
    assert_equal(logits_of(open_model(tmp_path / "ours").build(), tokens(2)), logits_of(theirs, tokens(2)))
    with pytest.raises(UserError, match="the source's output layer is not tied to its embeddings"):
        import_model(tmp_path / "back", tmp_path / "again")


CHANGES: dict[str, dict[str, Any]] = {
    "nystrom": {},
    "nystrom without convolution": {"conv_kernel_size": None},
    "softmax": {"attn_type": "softmax"},
    "landmarks as many as tokens": {"num_landmarks": LENGTH},
    "another embedding": {"embedding_dim": 12},
}


@pytest.mark.parametrize("case", CHANGES)
def test_the_authors(tmp_path: Path, case: str) -> None:
    section = {key: value for key, value in (AUTHORS | CHANGES[case]).items() if value is not None}
    path = foreign.authors_folder(tmp_path / "theirs", section, "cp-0003.cp" if case == "softmax" else "cp-0003.model")
    foreign.stored(foreign.nystromformer(), tmp_path / "tokens")
    said = import_model(path, tmp_path / "ours", COMPATIBLE, tokenizer=str(tmp_path / "tokens"))
    assert any("exact softmax" in line for line in said) == (case == "landmarks as many as tokens")
    model = open_model(tmp_path / "ours").build()
    (attention,) = set(open_experiment(tmp_path / "ours").config.model.attentions)
    if attention.name == "nystrom":  # which shows beside padding alone
        assert (attention.segments, attention.pinv_start) == ("padded", "batch")  # type: ignore[attr-defined]
    expected = foreign.authors_logits(section, foreign.authors_weights(section), tokens(2))
    assert_equal(logits_of(model, tokens(2)), expected)


def test_what_the_authors_config_says_otherwise(tmp_path: Path) -> None:
    """Swapped numbers, and the vocabulary's size, which is taken from the weights."""
    path = foreign.authors_folder(tmp_path / "theirs", AUTHORS | {"num_landmarks": LENGTH, "seq_len": LANDMARKS})
    config = path.parents[1] / "config.json"
    data = json.loads(config.read_text())
    data["model"]["vocab_size"] = 7
    config.write_text(json.dumps(data))
    said = import_model(path, tmp_path / "ours", tokenizer="none")
    assert any("are taken to be swapped" in line for line in said)
    model = open_experiment(tmp_path / "ours").config.model
    (attention,) = set(model.attentions)
    assert (attention.num_landmarks, model.vocab_size) == (LANDMARKS, VOCABULARY)  # type: ignore[attr-defined]
