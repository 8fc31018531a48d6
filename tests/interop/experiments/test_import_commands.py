"""What an imported experiment is good for: every command takes it."""

import json
import shutil
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from corpora import write_unified
from finetuning import made_rows, write_sst2, write_table
from small import LENGTH, SHIPPED, run_here
from transformers import AutoTokenizer

import nystromformer
from nystromformer.config import experiment_config
from nystromformer.data.dataset import open_dataset
from nystromformer.data.preprocessing.build import DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpus import Document
from nystromformer.interop.experiments.import_model import import_model
from nystromformer.interop.experiments.settings import ImportSettings
from nystromformer.model import PretrainingModel
from nystromformer.training.checkpoint import read_checkpoint

SHAPE = {"objectives": ["mlm"], "batch_size": 8, "batches_per_epoch": 2, "epoch": 1, "validate_batches_per_epoch": 1}


@pytest.fixture
def roberta(tmp_path: Path, dataset_folder: Path) -> Path:
    """A RoBERTa in the dataset's tokens."""
    folder = foreign.stored(foreign.roberta(), tmp_path / "roberta")
    for path in (dataset_folder / "tokenizer").iterdir():
        shutil.copy(path, folder)
    return folder


def overrides(**changes: Any) -> list[str]:
    setting = SHAPE | changes
    return [
        part for key, value in setting.items() for part in ("--set", f"pretraining_setting.{key}={json.dumps(value)}")
    ] + ["--set", "gpu_setting.inst_per_gpu=4", "--set", "model.mixed_precision=false"]


def test_every_command_takes_an_import(
    tmp_path: Path, roberta: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "ours"
    assert (
        run_here(monkeypatch, "code/run_export.py", "import", roberta, ours, "--attention", "nystrom,num_landmarks=8")
        == 0
    )
    own = ["--model", ours, "--device", "cpu", *overrides()]
    assert run_here(monkeypatch, "code/run_validation.py", *own, "--dataset", dataset_folder) == 0
    assert "cp-0000" in (ours / "model" / "validation.json").read_text()
    glue = write_sst2(tmp_path / "glue")
    flags = ["--glue", glue, "--task", "SST-2", "--batch_size", 8, "--lr", 1e-3, "--epoch", 1]
    assert run_here(monkeypatch, "code/run_glue.py", *own, *flags) == 0
    assert list((ours / "model" / "glue" / "SST-2").glob("cp-0000-*/run.json"))
    table = write_table(tmp_path / "reviews.csv", ("body", "label"), made_rows(24))
    flags = ["--train", table, "--text", "body", "--label", "label", "--batch_size", 8, "--lr", 1e-3, "--epoch", 1]
    assert run_here(monkeypatch, "code/run_classify.py", *own, *flags) == 0
    (run,) = (path.parent for path in (ours / "model" / "documents" / "reviews").glob("cp-0000-*/run.json"))
    assert set(nystromformer.Predictor(run)(["softmax of rows", "rows"])["prediction"]) <= {"yes", "no"}


def test_rows_in_berts_tokens(tmp_path: Path) -> None:
    """Preprocessing takes BERT's tokenizer, and what it writes is the imported model's."""
    source = foreign.stored(foreign.bert(), tmp_path / "bert", bert_tokens=True)
    import_model(source, tmp_path / "ours", ImportSettings(length=LENGTH))
    sentences = tuple(f"the small {first} reads {second}." for first in foreign.WORDS for second in foreign.WORDS)
    documents = [Document(f"{n}", split, sentences) for split in ("train", "validation") for n in range(3)]
    write_unified(tmp_path / "corpora", "made-up", documents)
    settings = DatasetSettings(LENGTH, ("made-up",), str(source), None)
    build_dataset(tmp_path / "corpora", tmp_path / "rows", settings)
    dataset = open_dataset(tmp_path / "rows")
    content = read_checkpoint(tmp_path / "ours" / "model" / "cp-0000.model")
    assert dataset.manifest.tokenizer_sha256 == content["tokenizer"]
    theirs = AutoTokenizer.from_pretrained(source)
    row = dataset.train.tokens[0]
    assert (row[0], row[row != 0][-1]) == (theirs.cls_token_id, theirs.sep_token_id)
    assert theirs.decode(row[1:4]) == "the small " + theirs.decode(row[3:4])


def test_the_shipped_experiment_is_berts_network(tmp_path: Path) -> None:
    """`nystrom-512-from-bert` takes BERT-base: every weight finds its place, checked on shapes alone."""
    config = json.loads(SHIPPED["nystrom-512-from-bert"].read_text())

    from transformers import BertConfig, BertForMaskedLM

    from nystromformer.interop.formats.table import BERT

    with torch.device("meta"):
        ours = PretrainingModel(experiment_config(config, "shipped").model, ["mlm"]).state_dict()
        theirs = BertForMaskedLM(BertConfig()).state_dict()
    for name, weight in ours.items():
        if "core.skip" not in name:
            assert theirs[BERT.named(name)].shape == weight.shape
