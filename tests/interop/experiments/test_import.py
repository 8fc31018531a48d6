"""Models of others as experiments: what they compute is compared with transformers' own modules and the authors'."""

import json
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from foreign import AUTHORS, LANDMARKS, LENGTH, SIZES, VOCABULARY
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.model import ClassificationModel, PretrainingModel
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.training.checkpoint import read_checkpoint

COMPATIBLE = ImportSettings(compatible=True)


def imported(source: Path, dest: Path, settings: ImportSettings = ImportSettings()) -> tuple[PretrainingModel, str]:  # noqa: B008
    """The model of the folder that the import has made, and what it said."""
    said = import_model(source, dest, settings)
    experiment = open_experiment(dest)
    content = read_checkpoint(dest / "model" / "cp-0000.model")
    assert content["config"] == experiment.config.model_dump(mode="json", by_alias=True)
    model = PretrainingModel(experiment.config.model, ["mlm"])
    model.load_state_dict(content["model"])
    return model.eval(), "\n".join(said)


def tokens(batch: int, length: int = LENGTH) -> Tensor:
    return torch.randint(5, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def all_logits(model: PretrainingModel, tokens_BN: Tensor, mask: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        hidden = model.encoder(tokens_BN, mask)
        logits: Tensor = model.mlm(hidden, model.encoder.embeddings.word.weight)
    return logits


def theirs(model: PreTrainedModel, tokens_BN: Tensor, **more: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens_BN, **more).logits
    return logits


def assert_equal(ours: Tensor, expected: Tensor) -> None:
    """To the 1e-5 of float32: the same numbers, added in another order."""
    assert float((ours - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("size", SIZES)
def test_nystromformer(tmp_path: Path, size: str, act: str) -> None:
    source = foreign.nystromformer(size, hidden_act=act)
    model, said = imported(foreign.stored(source, tmp_path / "theirs"), tmp_path / "ours", COMPATIBLE)
    for batch in (1, 3):
        assert_equal(all_logits(model, tokens(batch)), theirs(source, tokens(batch)))
    assert "softmax" not in said
    (attention,) = set(open_experiment(tmp_path / "ours").config.model.attentions)
    assert (attention.segments, attention.pinv_start) == ("padded_unmasked", "batch")  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", SIZES)
def test_nystromformer_with_our_attention_differs_by_the_inverses_start_alone(tmp_path: Path, size: str) -> None:
    """One divisor for the whole batch or one for each matrix: on a full row without padding all else is equal."""
    source = foreign.nystromformer(size)
    model, _ = imported(foreign.stored(source, tmp_path / "theirs"), tmp_path / "ours")
    ours, expected = all_logits(model, tokens(3)), theirs(source, tokens(3))
    error = float((ours - expected).norm() / expected.norm())
    assert error < 0.02
    for layer in model.encoder.layers:
        core = layer.attention.core
        core.config = core.config.model_copy(update={"pinv_start": "batch"})
    assert_equal(all_logits(model, tokens(3)), expected)


def test_transformers_default_of_64_and_64_is_softmax_and_is_reported(tmp_path: Path) -> None:
    source = foreign.nystromformer(segment_means_seq_len=64, num_landmarks=64)
    model, said = imported(foreign.stored(source, tmp_path / "theirs"), tmp_path / "ours")
    assert "num_landmarks = segment_means_seq_len = 64: the source computes exact softmax attention" in said
    (attention,) = set(open_experiment(tmp_path / "ours").config.model.attentions)
    assert (attention.name, attention.conv_kernel_size) == ("softmax", 5)
    for length in (1, 7, LENGTH):
        assert_equal(all_logits(model, tokens(2, length)), theirs(source, tokens(2, length)))


@pytest.mark.parametrize("size", SIZES)
def test_classification(tmp_path: Path, size: str) -> None:
    source = foreign.nystromformer(size, classes=3, id2label={0: "no", 1: "maybe", 2: "yes"})
    _, said = imported(foreign.stored(source, tmp_path / "theirs"), tmp_path / "ours", COMPATIBLE)
    assert "without a head for masked tokens" in said
    content = read_checkpoint(tmp_path / "ours" / "model" / "classification" / "cp-0000.model")
    assert content["head"] == {"between": "gelu_tanh", "labels": ["no", "maybe", "yes"]}
    config = open_experiment(tmp_path / "ours").config.model
    model = ClassificationModel(config, 3, content["head"]["between"]).eval()
    model.load_state_dict(content["model"])
    with torch.no_grad():
        assert_equal(model(tokens(4)), theirs(source, tokens(4)))


def test_bert_is_exact_where_tokens_are_no_more_than_landmarks(tmp_path: Path) -> None:
    source = foreign.bert()
    folder = foreign.stored(source, tmp_path / "theirs")
    model, said = imported(folder, tmp_path / "ours", ImportSettings(conv_kernel_size=7, num_landmarks=LANDMARKS))
    assert "its convolution of 7 taps begins at zero" in said
    config = open_experiment(tmp_path / "ours").config.model
    assert (config.position_offset, config.layer_norm_eps, config.activation) == (0, 1e-12, "gelu")
    assert not model.encoder.layers[0].attention.core.skip.weight.any()  # type: ignore[union-attr]
    short = tokens(3, LANDMARKS)
    mask = torch.arange(LANDMARKS) < torch.tensor([[LANDMARKS], [3], [1]])
    types = (torch.arange(LANDMARKS) > 2).long().expand(3, -1)
    expected = theirs(source, short, attention_mask=mask.long(), token_type_ids=types)
    with torch.no_grad():
        ours = model.mlm(model.encoder(short, mask, types), model.encoder.embeddings.word.weight)
    assert_equal(ours[mask], expected[mask])
    assert float((all_logits(model, tokens(1)) - theirs(source, tokens(1))).abs().max()) > 1e-3
    model, _ = imported(folder, tmp_path / "without", ImportSettings(conv_kernel_size=0, num_landmarks=LANDMARKS))
    assert model.encoder.layers[0].attention.core.skip is None  # type: ignore[union-attr]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_bert_and_roberta_with_their_softmax(tmp_path: Path, kind: str, size: str) -> None:
    source: PreTrainedModel = getattr(foreign, kind)(size)
    model, _ = imported(foreign.stored(source, tmp_path / "theirs"), tmp_path / "ours", COMPATIBLE)
    offset = open_experiment(tmp_path / "ours").config.model.position_offset
    assert offset == (2 if kind == "roberta" else 0)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [20]])
    tokens_BN = torch.where(mask, tokens(2), 1)
    expected = theirs(source, tokens_BN, attention_mask=mask.long())
    assert_equal(all_logits(model, tokens_BN, mask)[mask], expected[mask])


@pytest.mark.parametrize("part", ["encoder alone", "with a pooler", "old names"])
def test_parts_and_old_names_of_bert(tmp_path: Path, part: str) -> None:
    source = foreign.bert()
    folder = foreign.stored(source, tmp_path / "theirs")
    weights = load_file(folder / "model.safetensors")
    if part == "encoder alone":
        weights = {name.removeprefix("bert."): w for name, w in weights.items() if name.startswith("bert.")}
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    elif part == "with a pooler":
        weights |= {"bert.pooler.dense.weight": torch.ones(16, 16), "cls.seq_relationship.bias": torch.ones(2)}
    else:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, name in old.items():
            weights = {key.replace(new, name): weight for key, weight in weights.items()}
        weights["bert.embeddings.position_ids"] = torch.arange(LENGTH)
    save_file(weights, folder / "model.safetensors")
    model, said = imported(folder, tmp_path / "ours", COMPATIBLE)
    if part == "encoder alone":
        assert "without a head for masked tokens" in said
        with torch.no_grad():
            assert_equal(model.encoder(tokens(2)), source.base_model(tokens(2)).last_hidden_state)
        return
    assert ("bert.pooler.dense.weight, cls.seq_relationship.bias" in said) == (part == "with a pooler")
    assert_equal(all_logits(model, tokens(2)), theirs(source, tokens(2)))


@pytest.mark.parametrize("form", ["bin", "parts", "parts of bin", "bfloat16"])
def test_how_weights_are_stored(tmp_path: Path, form: str) -> None:
    source = foreign.nystromformer()
    folder = foreign.stored(source, tmp_path / "theirs")
    weights, file = load_file(folder / "model.safetensors"), folder / "model.safetensors"
    file.unlink()
    names = sorted(weights)
    halves = {name: int(number > len(names) // 2) for number, name in enumerate(names)}
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    elif form == "bfloat16":
        save_file({name: weight.bfloat16() for name, weight in weights.items()}, file)
        source = source.bfloat16().float()
    else:
        ending, save = ("safetensors", save_file) if form == "parts" else ("bin", torch.save)
        stem = "model" if form == "parts" else "pytorch_model"
        for half in (0, 1):
            save({n: weights[n] for n in names if halves[n] == half}, folder / f"{stem}-{half}.{ending}")
        table = {name: f"{stem}-{half}.{ending}" for name, half in halves.items()}
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": table}))
    model, said = imported(folder, tmp_path / "ours", COMPATIBLE)
    assert ("stored in bfloat16 are held in float32" in said) == (form == "bfloat16")
    assert_equal(all_logits(model, tokens(2)), theirs(source, tokens(2)))


CHANGES: dict[str, dict[str, Any]] = {
    "nystrom": {},
    "nystrom without convolution": {"conv_kernel_size": None},
    "softmax": {"attn_type": "softmax"},
    "landmarks as many as tokens": {"num_landmarks": LENGTH},
    "another embedding": {"embedding_dim": 12},
}


@pytest.mark.parametrize("name", ["cp-0003.model", "cp-0003.cp"])
@pytest.mark.parametrize("case", CHANGES)
def test_the_authors(tmp_path: Path, case: str, name: str) -> None:
    section = {key: value for key, value in (AUTHORS | CHANGES[case]).items() if value is not None}
    path = foreign.authors_folder(tmp_path / "theirs", section, name)
    foreign.stored(foreign.nystromformer(), tmp_path / "tokens")
    said = import_model(path, tmp_path / "ours", COMPATIBLE, tokenizer=str(tmp_path / "tokens"))
    assert any("exact softmax" in line for line in said) == (case == "landmarks as many as tokens")
    model = PretrainingModel(open_experiment(tmp_path / "ours").config.model, ["mlm"]).eval()
    model.load_state_dict(read_checkpoint(tmp_path / "ours" / "model" / "cp-0000.model")["model"])
    (attention,) = set(open_experiment(tmp_path / "ours").config.model.attentions)
    if attention.name == "nystrom":  # which shows beside padding alone
        assert (attention.segments, attention.pinv_start) == ("padded", "batch")  # type: ignore[attr-defined]
    expected = foreign.authors_logits(section, foreign.authors_weights(section), tokens(2))
    assert_equal(all_logits(model, tokens(2)), expected)


def test_the_authors_weights_as_data_parallel_names_them(tmp_path: Path) -> None:
    """Also the vocabulary's size, which is taken from the weights, whatever the file says."""
    path = foreign.authors_folder(tmp_path / "theirs", AUTHORS)
    content = torch.load(path, weights_only=True)
    content["model_state_dict"] = {f"module.{name}": weight for name, weight in content["model_state_dict"].items()}
    torch.save(content, path)
    config = path.parents[1] / "config.json"
    data = json.loads(config.read_text())
    data["model"]["vocab_size"] = 7
    config.write_text(json.dumps(data))
    import_model(path, tmp_path / "ours", COMPATIBLE, tokenizer="none")
    weights = read_checkpoint(tmp_path / "ours" / "model" / "cp-0000.model")["model"]
    expected = foreign.authors_weights(AUTHORS)
    assert len(weights["encoder.embeddings.word.weight"]) == VOCABULARY
    assert sum(any(torch.equal(weight, other) for other in expected.values()) for weight in weights.values()) > 20


def test_the_authors_swapped_numbers(tmp_path: Path) -> None:
    path = foreign.authors_folder(tmp_path / "theirs", AUTHORS | {"num_landmarks": LENGTH, "seq_len": LANDMARKS})
    said = import_model(path, tmp_path / "ours", ImportSettings(), tokenizer="none")
    assert any("are taken to be swapped" in line for line in said)
    (attention,) = set(open_experiment(tmp_path / "ours").config.model.attentions)
    assert attention.num_landmarks == LANDMARKS  # type: ignore[attr-defined]
