"""What an import refuses: one error that names everything, and nothing written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from safetensors.torch import load_file, save_file
from small import VOCABULARY, run_here
from torch import Tensor

from nystromformer.data.tokenizer import save_tokenizer, train_tokenizer
from nystromformer.errors import UserError
from nystromformer.interop.experiments.import_model import import_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return foreign.stored(foreign.nystromformer(), tmp_path / "theirs")


def without(*beginnings: str) -> Callable[[dict[str, Tensor]], object]:
    """Weights without those whose names begin, or end, like this."""
    return lambda w: [w.pop(name) for name in list(w) if name.startswith(beginnings) or name.endswith(beginnings)]


def in_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def in_weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        path = folder / "model.safetensors"
        weights = load_file(path)
        change(weights)
        save_file(weights, path)

    return changed


def grow(weights: dict[str, Tensor]) -> None:
    weights["nystromformer.encoder.layer.1.intermediate.dense.weight"] = torch.ones(31, 16)
    weights["nystromformer.encoder.layer.2.output.dense.bias"] = torch.ones(16)


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code ran",)


def with_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Code()}, folder / "pytorch_model.bin")


def instead(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        if name != "config.json":
            (folder / "model.safetensors").unlink(missing_ok=True)
        (folder / name).write_bytes(content)

    return write


def big_tokenizer(folder: Path) -> None:
    save_tokenizer(train_tokenizer(["many more words than that in a longer text"] * 9, 330), folder)
    in_config(vocab_size=261)(folder)
    in_weights(
        lambda w: w.update(
            {name: each[:261] for name, each in w.items() if len(each) == VOCABULARY}  # the embedding and the bias
        )
    )(folder)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "another model": (in_config(model_type="gpt2"), "unsupported architecture, model_type 'gpt2'; supported: nystrom"),
    "no bias in any layer": (
        in_weights(without("output.dense.bias")),
        "missing: nystromformer.encoder.layer.0-1.attention",
    ),
    "no config": (lambda at: (at / "config.json").unlink(), r"no config.json there: expected a folder as transformers"),
    "text for a number": (in_config(hidden_size="many"), r"config.json: transformers cannot read it: .*hidden_size"),
    "another activation": (in_config(hidden_act="relu"), "activation: expected .*relu"),
    "no numbers": (
        in_weights(lambda w: [w[name].fill_(torch.nan) for name in w if name.endswith("output.dense.bias")]),
        "encoder.layers.0.attention.output.bias: expected finite weights, found NaN or infinity",
    ),
    "landmarks": (in_config(num_landmarks=7), "num_landmarks = 7 does not divide segment_means_seq_len = 32"),
    "even": (in_config(conv_kernel_size=4), "model.conv_kernel_size: "),
    "no weights": (lambda at: (at / "model.safetensors").unlink(), "no weights there: expected one of model.safe"),
    "weights cut short": (instead("model.safetensors", b"\x08"), "model.safetensors: truncated or damaged"),
    "a pickle with code": (with_code, "refused: the file holds more than tensors and plain data, .* run code"),
    "an output of its own": (
        in_weights(lambda w: w.update({"cls.predictions.decoder.weight": torch.ones(VOCABULARY, 16)})),
        "decoder.weight differs from .*not tied",
    ),
    "no tokenizer": (lambda at: (at / "tokenizer.json").unlink(), "expected a tokenizer: .*--tokenizer"),
    "too many tokens": (big_tokenizer, "the tokenizer has .* tokens, the model embeddings for 261"),
}


BERTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a decoder": (in_config(is_decoder=True), "is_decoder: expected false, found true"),
    "relative positions": (
        in_config(position_embedding_type="relative_key"),
        'position_embedding_type: expected "absolute"',
    ),
}
MODERNBERTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "unlike activations": (
        in_config(classifier_activation="silu"),
        'classifier_activation: expected "gelu", found',
    ),
    "other rotations": (
        in_config(rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0}}),
        "rope_parameters.full_attention: expected",
    ),
    "other layers": (in_config(layer_types=["full_attention"] * 3 + ["chunked_attention"]), "layer_types"),
    "some biases": (in_config(norm_bias=True), "norm_bias: expected false, found true"),
}
ROBERTAS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another gelu": (in_config(hidden_act="gelu_new"), 'hidden_act: expected "gelu", found "gelu_new"'),
}
SOURCES: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(BAD, foreign.nystromformer),
    **dict.fromkeys(BERTS, foreign.bert),
    **dict.fromkeys(ROBERTAS, foreign.roberta),
    **dict.fromkeys(MODERNBERTS, foreign.modernbert),
}


@pytest.mark.parametrize("case", SOURCES)
def test_a_bad_source(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, message = (BAD | BERTS | ROBERTAS | MODERNBERTS)[case]
    spoil(foreign.stored(SOURCES[case](), tmp_path / "theirs"))
    with pytest.raises(UserError, match=rf"(?s){message}"):
        import_model(tmp_path / "theirs", tmp_path / "new" / "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]
    assert "code ran" not in capsys.readouterr().out


def test_all_that_does_not_fit_is_named(tmp_path: Path, source: Path) -> None:
    in_weights(grow)(source)
    misfits = (
        "1.feed_forward.up.weight: the model has .32, 16., the checkpoint .31.*2.output.dense.bias: not in the model"
    )
    with pytest.raises(UserError, match=f"(?s)of another architecture.*{misfits}"):
        import_model(source, tmp_path / "ours")
    in_weights(without("0.output.dense.bias", "1.attention.self.conv.weight"))(source)
    names = "layer.0.output.dense.bias, nystromformer.encoder.layer.1.attention.self.conv.weight"
    with pytest.raises(UserError, match=f"weights are missing: nystromformer.encoder.{names}$"):
        import_model(source, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


AUTHORS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda at: (at.parents[1] / "config.json").unlink(), "no config.json that describes its.*--config"),
    "another attention": (lambda at: section(at, attn_type="reformer"), "expected nystrom or softmax, found 're"),
    "keys are missing": (lambda at: section(at, num_head=None, seq_len=None), "found no num_head, seq_len"),
    "something else": (lambda at: torch.save({"weights": 1}, at), "with a model_state_dict; found something else"),
    "a pickle with code": (lambda at: torch.save({"model_state_dict": Code()}, at), "refused: .* could run code"),
    "cut short": (lambda at: at.write_bytes(at.read_bytes()[:900]), "truncated or damaged"),
}


def section(path: Path, **changes: Any) -> None:
    model = {key: value for key, value in (foreign.AUTHORS | changes).items() if value is not None}
    (path.parents[1] / "config.json").write_text(json.dumps({"model": model}))


@pytest.mark.parametrize("case", AUTHORS)
def test_a_bad_checkpoint_of_the_authors(tmp_path: Path, case: str) -> None:
    spoil, message = AUTHORS[case]
    path = foreign.authors_folder(tmp_path / "theirs")
    spoil(path)
    with pytest.raises(UserError, match=rf"(?s){message}"):
        import_model(path, tmp_path / "ours", tokenizer="none")
    assert not (tmp_path / "ours").exists()


def test_the_command(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    ours, new = tmp_path / "ours", tmp_path / "new"
    ours.mkdir()
    (ours / "notes.txt").write_text("mine")
    for flags, message in [
        ((source, ours), "not an empty folder: choose another name"),
        ((source / "config.json", new), "expected a folder, or a .model or .cp file of the authors' code"),
        ((tmp_path / "nowhere", new), "no such folder or file. For a model on the Hugging Face hub, get"),
        ((source, ours / "notes.txt"), "not an empty folder"),
        ((source, new, "--config", "config.json"), "expected no --config with a folder"),
        ((source, new, "--attention", "nystrm"), 'unknown attention "nystrm"'),
        ((source, new, "--set", "model.num_layers=3"), "model.num_layers: 3 in config.json, 2 in the checkpoint"),
        ((source, new, "--set", "model.pool=mean"), "pooling"),
    ]:
        assert run_here(monkeypatch, "code/run_export.py", "import", *flags) == 2
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
    assert [path.name for path in ours.iterdir()] == ["notes.txt"]
