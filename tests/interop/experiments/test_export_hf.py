"""Exported folders as transformers loads them: equal logits, and a user's flow without this package."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import MADE, WITHOUT_FILE, assert_equal, experiment, given, logits, of_table, rows
from finetuning import finetune, made_rows, pretrained
from small import LENGTH, run_here
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from nystromformer.errors import UserError
from nystromformer.interop.experiments.export_model import MODULE_FILE, export_model
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.prediction.predictor import Predictor
from nystromformer.tasks.documents.task import Documents
from nystromformer.training.checkpoint import read_checkpoint


@pytest.mark.parametrize("case", MADE)
def test_masked_tokens(tmp_path: Path, dataset_folder: Path, case: str) -> None:
    made = experiment(tmp_path / "ours", dataset_folder, **MADE[case])
    export_model(made.folder, "0", "hf", tmp_path / "hf")
    has_file = (tmp_path / "hf" / MODULE_FILE).is_file()
    assert has_file == (case not in WITHOUT_FILE)
    theirs, loading = AutoModelForMaskedLM.from_pretrained(
        tmp_path / "hf", trust_remote_code=has_file, output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model = open_model(made.folder).build()
    types = made.config.model.num_sen_type > 1
    for batch, length in ((1, 1), (3, 7), (4, 8), (4, 21), (2, LENGTH)):
        inputs = rows(batch, length)
        with torch.no_grad():
            out = theirs(**given(inputs, types)).logits
        mask = inputs[1]
        assert_equal(out[mask], logits(model, inputs, types)[mask])


@pytest.mark.parametrize(
    "attention",
    [
        {},
        {"name": "performer", "num_features": 8},
        {"name": "linformer", "projected_length": 8, "sharing": "model"},
    ],
    ids=lambda each: each.get("name", "nystrom"),
)
def test_an_exported_file_is_imported_again(tmp_path: Path, dataset_folder: Path, attention: dict[str, Any]) -> None:
    changes = {"model__attn_type": attention, "model__num_landmarks": None} if attention else {}
    made = experiment(tmp_path / "ours", dataset_folder, pretraining_setting__objectives=["mlm"], **changes)
    export_model(made.folder, "last", "hf", tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "again", ImportSettings())
    first, second = (read_checkpoint(tmp_path / each / "model" / "cp-0000.model") for each in ("ours", "again"))
    assert first["model"].keys() == second["model"].keys()
    assert all(torch.equal(weight, second["model"][key]) for key, weight in first["model"].items())
    assert first["tokenizer"] == second["tokenizer"]
    assert open_model(tmp_path / "again").config.attentions == made.config.model.attentions


PROGRAM = """
import sys
sys.modules["nystromformer"] = None  # an import of it fails
from transformers import pipeline
model = pipeline("fill-mask", sys.argv[1], trust_remote_code=True)
found = model(f"landmark segment {model.tokenizer.mask_token} token matrix")
print([guess["token_str"] for guess in found])
"""


@pytest.mark.slow
def test_a_users_flow_by_transformers_alone(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder)
    export_model(made.folder, "1", "hf", tmp_path / "hf")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # A fresh process in an empty folder; modules of a remote file are cached in one of the test's own.
    environment = {"PATH": "/usr/bin:/bin", "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", str(program), str(tmp_path / "hf")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'") == 10, done.stdout


def test_the_tokenizer_gives_the_rows_of_pretraining(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder)
    export_model(made.folder, "1", "hf", tmp_path / "hf")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf")
    opened = open_model(made.folder)
    assert opened.tokenizer is not None
    encoded = theirs("landmark segment", "token")
    assert encoded["input_ids"] == opened.tokenizer.encode("landmark segment", "token").ids
    second = encoded["input_ids"].index(theirs.sep_token_id) + 1
    assert encoded["token_type_ids"] == [int(place >= second) for place in range(len(encoded["input_ids"]))]
    assert (theirs.model_max_length, theirs.mask_token) == (LENGTH, "<mask>")


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *((kind, "nystrom") for kind in ("classes", "several", "value")),
        *((kind, case) for kind in ("classes", "value") for case in ("softmax", "pre-norm, rotary, mean")),
    ],
)
def test_a_finetuned_run(tmp_path: Path, dataset_folder: Path, kind: str, case: str) -> None:
    """By the names of its labels; values in their own units, though what was learned are deviations."""
    made = pretrained(tmp_path / "ours", dataset_folder, **MADE[case])
    texts = [text for text, _ in made_rows(24)]
    labels = {"classes": "no yes", "several": "a a;b", "value": "100.5 300"}[kind].split()
    task = of_table(tmp_path, [(text, labels[n % 2]) for n, text in enumerate(texts)], kind)
    (result,) = finetune(made, task, epoch=1).results
    export_model(result.folder, "best", "hf", tmp_path / "hf")
    has_file = (tmp_path / "hf" / MODULE_FILE).is_file()
    assert has_file == (case not in WITHOUT_FILE)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf", trust_remote_code=has_file)
    texts[1] += " </s> or <mask>"  # which texts may spell
    inputs = AutoTokenizer.from_pretrained(tmp_path / "hf")(
        texts[:3], return_tensors="pt", padding=True, truncation=True
    )
    told = Predictor(result.folder, "cpu")(texts[:3])
    answers = {"value": torch.tensor([100.0, 300.0, 100.0]), "classes": torch.tensor([0, 1, 0])}
    targets = answers.get(kind, torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]))
    with torch.no_grad():
        scores = theirs(**inputs).logits
        loss = theirs(**inputs, labels=targets).loss
    if kind == "value":
        assert scores[:, 0].tolist() == pytest.approx(told["prediction"], rel=1e-4)
        assert abs(float(scores.mean()) - 200) < 150
        assert theirs.config.num_labels == 1
        expected = torch.nn.functional.mse_loss(scores[:, 0], targets)
    else:
        chances = scores.softmax(1) if kind == "classes" else scores.sigmoid()
        ours = {name: column for name, column in told.items() if name.startswith("p_")}
        assert [f"p_{name}" for name in theirs.config.id2label.values()] == list(ours)
        for column, own in zip(chances.T, ours.values(), strict=True):
            torch.testing.assert_close(column, torch.from_numpy(own), rtol=1e-4, atol=1e-5)
        of_classes, of_several = torch.nn.functional.cross_entropy, torch.nn.functional.binary_cross_entropy_with_logits
        expected = of_classes(scores, targets) if kind == "classes" else of_several(scores, targets)
    torch.testing.assert_close(loss, expected)


def test_windows_are_not_part_of_an_exported_form(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder)
    task = of_table(tmp_path, [(text, "12"[n % 2]) for n, (text, _) in enumerate(made_rows(24))])
    in_windows = Documents(replace(task.question, cut="windows"))
    (result,) = finetune(made, in_windows, epoch=1, length=16).results
    said = export_model(result.folder, "best", "hf", tmp_path / "hf")
    sentence = "over a longer text's windows; this form reads only a text's first tokens, 16 at most."
    assert sentence in said
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["model_max_length"] == 16


def test_ordered_classes_have_no_exported_form(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder)
    task = of_table(tmp_path, [(text, "12"[n % 2]) for n, (text, _) in enumerate(made_rows(24))], "ordered")
    (result,) = finetune(made, task, epoch=1).results
    with pytest.raises(UserError, match="a model of ordered classes cannot be exported"):
        open_model(result.folder)


BAD: dict[str, tuple[dict[str, Any], list[object], str]] = {
    "another attention": (
        {"model__attn_type": {"name": "reformer", "chunk_length": 8}, "model__num_landmarks": None},
        [],
        "the file of code has no reformer attention",
    ),
    "reversible": ({"model__norm": "pre", "model__reversible": True}, [], "the file of code has no reversible layers"),
    "an unknown form": (
        {},
        ["--format", "tf"],
        "--format: expected one of hf, sentence-transformers, .*found 'tf'",
    ),
    "no such checkpoint": ({}, ["--checkpoint", 7], "expected --checkpoint last or one of 0; found '7'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    tmp_path: Path, dataset_folder: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, flags, message = BAD[case]
    few = {"pretraining_setting__epoch": 1, "pretraining_setting__batches_per_epoch": 1}
    made = pretrained(tmp_path / "ours", dataset_folder, **few | changes)
    out = tmp_path / "out"
    form = [] if "--format" in flags else ["--format", "hf"]
    assert run_here(monkeypatch, "code/run_export.py", "export", made.folder, *form, "--out", out, *flags) == 2
    assert re.search(message, capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_bad_folders(tmp_path: Path, dataset_folder: Path) -> None:
    made = pretrained(tmp_path / "ours", dataset_folder)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")

    def refused(folder: Path, message: str, dest: Path = tmp_path / "new") -> None:
        with pytest.raises(UserError, match=message):
            export_model(folder, "last", "hf", dest)
        assert not (tmp_path / "new").exists()

    refused(made.folder, "not an empty folder", out)
    refused(tmp_path / "nowhere", "no such folder")
    refused(out, "expected the folder of a finished fine-tuning run")
    assert (out / "mine.txt").read_text() == "mine"
