"""Conversion: what it begins with, that training brings it nearer, that it resumes to the bit, and what it refuses."""

import json
import random
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from exported import SOFTMAX
from finetuning import pretrained, sentence
from run_files import assert_same_weights
from small import LENGTH, run_here, stop_at
from transformers import AutoModel

from nystromformer.interop.experiments.convert import RECORD
from nystromformer.interop.experiments.export_model import MODULE_FILE, export_model
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.tasks.experiment.folder import open_experiment

NEAR = "near_far,block_size=4,neighbours=0,num_landmarks=2,num_selected=1"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """A softmax experiment, a BERT, and texts."""
    folder = tmp_path_factory.mktemp("conversion")
    pretrained(folder / "softmax", dataset_folder, **SOFTMAX)
    foreign.stored(foreign.bert(), folder / "bert", bert_tokens=True)
    (folder / "bert" / "1_Pooling").mkdir()
    (folder / "bert" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    texts = [" ".join(sentence(random.Random(number), 5, 60)) for number in range(40)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture
def convert(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`convert(dest, *flags)`: the command's exit status; flags after others of the same name take their place."""

    def run(
        dest: str, *flags: object, source: str = "bert", text: str = "texts.jsonl", steps: int = 4, every: int = 2
    ) -> int:
        common = ("--input", place / text, "--rows", 4, "--held_out", 5, "--steps", steps, "--validate_every", every)
        named = flags if "--attention" in flags else ("--attention", NEAR, *flags)
        return run_here(monkeypatch, "code/run_export.py", "convert", place / source, tmp_path / dest, *common, *named)

    return run


def figures(folder: Path) -> Any:
    return json.loads((folder / RECORD).read_text())


def test_training_brings_it_nearer(convert: Any, place: Path, tmp_path: Path) -> None:
    rates = ("--learning_rate", 2e-3, "--end_to_end_learning_rate", 2e-3)
    flags = ("--end_to_end_steps", 30, *rates, "--set", "model.conv_kernel_size=3")
    assert convert("new", *flags, source="softmax", steps=30, every=30) == 0
    data = figures(tmp_path / "new")
    assert sum(data["after"]["attention_errors"]) < sum(data["before"]["attention_errors"])
    assert data["after"]["hidden_errors"][-1] < 0.9 * data["before"]["hidden_errors"][-1]
    assert data["after"]["cosine"] > data["before"]["cosine"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new"]
    before, after = (open_model(folder).weights for folder in (place / "softmax", tmp_path / "new"))
    embedding, key = "encoder.embeddings.word.weight", "encoder.layers.0.attention.key.weight"
    assert torch.equal(before[embedding], after[embedding])
    assert not torch.equal(before[key], after[key])


def test_a_converted_folder_has_weights_of_its_own(
    convert: Any, place: Path, dataset_folder: Path, tmp_path: Path
) -> None:
    """Wherever the source has its checkpoints, and with the shape that `--set` gave it."""
    pretrained(place / "elsewhere", dataset_folder, **SOFTMAX)
    config = json.loads((place / "elsewhere" / "config.json").read_text())
    (place / "elsewhere" / "config.json").write_text(json.dumps(config | {"model_checkpoints": str(tmp_path / "far")}))
    (place / "elsewhere" / "model").rename(tmp_path / "far")
    assert convert("new", source="elsewhere", steps=0) == 0
    assert open_experiment(tmp_path / "new").checkpoints == tmp_path / "new" / "model"
    assert open_model(tmp_path / "new").path == tmp_path / "new" / "model" / "cp-0000.model"


def test_without_training_it_is_the_source_with_another_attention(convert: Any, place: Path, tmp_path: Path) -> None:
    assert convert("new", "--attention", "near_far,block_size=32,num_landmarks=4", steps=0) == 0
    data = figures(tmp_path / "new")
    assert max(data["before"]["hidden_errors"]) < 1e-5  # one block is all of the row
    ours = open_model(tmp_path / "new")
    assert ours.config.pooling == "mean"
    theirs = AutoModel.from_pretrained(place / "bert").eval()
    tokens = torch.randint(5, 15, (2, 20))
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    with torch.no_grad():
        wanted = theirs(tokens, attention_mask=mask.long()).last_hidden_state
        found = ours.build().encoder(tokens, mask)
    assert torch.allclose(found[mask], wanted[mask], atol=1e-4)
    assert convert("drawn", "--attention", "performer,num_features=8", steps=0) == 0
    open_model(tmp_path / "drawn").build()  # its seeds are integers


def test_an_interrupted_conversion_goes_on_to_the_same_weights(
    convert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--end_to_end_steps", 4)
    assert convert("whole", *flags) == 0
    for stop in (3, 1):
        with monkeypatch.context() as patched:
            stop_at(stop, patched)
            assert convert("cut", *flags) == 128 + 15
    assert not (tmp_path / "cut").exists()

    for other in ("learning_rate", "end_to_end_steps"):  # another conversion
        assert convert("cut", *flags, f"--{other}", 1) == 2
        assert f"{other}: found" in capsys.readouterr().err
    assert convert("cut", *flags) == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "cut", "cp-0000.model")
    one, other = figures(tmp_path / "whole"), figures(tmp_path / "cut")
    for when in ("before", "after"):
        assert one[when] == other[when]


def test_a_converted_model_goes_where_others_go(convert: Any, tmp_path: Path) -> None:
    flags = ("--attention", "local,block_size=8", "--set", "model.conv_kernel_size=3")
    assert convert("new", *flags, source="softmax") == 0
    opened = open_model(tmp_path / "new")
    export_model(tmp_path / "new", None, "hf", tmp_path / "theirs")
    assert (tmp_path / "theirs" / MODULE_FILE).is_file()
    model = AutoModel.from_pretrained(tmp_path / "theirs", trust_remote_code=True).eval()
    tokens = torch.randint(5, 300, (2, LENGTH))
    with torch.no_grad():
        assert torch.allclose(model(tokens).last_hidden_state, opened.build().encoder(tokens), atol=1e-5)


def test_positions_are_extended_on_the_way(convert: Any, place: Path, tmp_path: Path) -> None:
    flags = ("--set", "model.max_seq_len=96", "--length", 80)
    assert convert("new", *flags, steps=0) == 0
    table = open_model(tmp_path / "new").weights["encoder.embeddings.position.weight"]
    assert torch.equal(table[:32], table[64:])
    data = figures(tmp_path / "new")
    assert data["settings"]["length"] == 80
    assert f"run_export.py convert {place / 'bert'} {tmp_path / 'new'} " in data["command"]


WRONG: dict[str, tuple[tuple[object, ...], dict[str, Any], str]] = {
    "parameter": (("--attention", "linear,num_landmarks=3"), {}, "num_landmarks"),
    "column": (("--text", "review"), {}, "expected one column review, found 0"),
    "too little text": (("--held_out", 4000), {}, "beside 4000 (--held_out)"),
    "length": (("--length", 64), {}, "expected from 1 (--least_tokens) to 32 tokens"),
    "segments": (("--attention", "nystrom,num_landmarks=4,segments=padded", "--length", 30), {}, "4 equal segments"),
    "network": (("--set", "model.num_layers=3"), {}, "num_layers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_leave_nothing(case: str, convert: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, others, told = WRONG[case]
    assert convert("new", *flags, **others) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_convert_without_text_or_softmax(
    convert: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("convert", place / "bert", tmp_path / "x", "--attention", "local", "--steps", 1)
    assert run_here(monkeypatch, "code/run_export.py", *words) == 2
    assert "--input" in capsys.readouterr().err
    import_model(place / "bert", tmp_path / "nystrom", ImportSettings(attention="nystrom,num_landmarks=4"))
    assert convert("new", source=str(tmp_path / "nystrom")) == 2
    assert "with softmax in all layers, none of them reversible; found nystrom" in capsys.readouterr().err
