"""Which weights of a run are handed on, and which are refused."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exported import of_table
from finetuning import finetune, made_rows, pretrained
from small import run_here

import nystromformer
from nystromformer.errors import UserError
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.runs.record import EpochMetrics, Run
from nystromformer.training.checkpoint import read_checkpoint, write_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Run:
    """A run whose first epoch was the best, and both are kept."""
    folder = tmp_path_factory.mktemp("choice")
    few = {"pretraining_setting__epoch": 1, "pretraining_setting__batches_per_epoch": 1}
    made = pretrained(folder / "ours", dataset_folder, **few)
    task = of_table(folder, made_rows(24))
    (result,) = finetune(made, task).results
    metrics = [{**result.last.metrics, result.main_metric: value} for value in (0.9, 0.4)]
    result = replace(result, epochs=tuple(map(EpochMetrics, range(2), metrics)))
    result.write()
    content = read_checkpoint(result.folder / "cp-0001.model")
    weights = {key: weight + 0.5 for key, weight in content["model"].items()}
    write_checkpoint(content | {"epoch": 0, "model": weights}, result.folder / "cp-0000.model")
    return result


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Iterator[Path]:
    """A copy in the same place, of which a test may take something away."""
    folder = Path(trained.folder)
    shutil.copytree(folder, tmp_path / "copy")
    yield folder
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)


def test_last_is_the_last_and_best_the_best(trained: Run) -> None:
    words = {"last": "cp-0001.model", "best": "cp-0000.model"}
    for wanted, name in {**words, "1": words["last"], None: words["best"]}.items():
        opened = open_model(Path(trained.folder), wanted)
        assert opened.path.name == name
    models = {wanted: nystromformer.from_pretrained(trained.folder, wanted)[0] for wanted in words}
    contents = {wanted: read_checkpoint(Path(trained.folder) / name) for wanted, name in words.items()}
    for wanted, content in contents.items():
        temperature = content["history"][-1]["metrics"].get("temperature", 1.0)
        bias = models[wanted].state_dict()["head.classifier.bias"]
        torch.testing.assert_close(bias * temperature, content["model"]["head.classifier.bias"])


def test_weights_that_a_run_did_not_keep(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(wanted: str, reason: str) -> None:
        flags = ("--format", "hf", "--checkpoint", wanted, "--out", tmp_path / "out")
        assert run_here(monkeypatch, "code/run_export.py", "export", run, *flags) == 2
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("error:") == 1
        assert not (tmp_path / "out").exists()

    refused("newest", "best, last or an epoch's number, of which the run has kept 0, 1; found 'newest'")
    (run / "cp-0001.model").unlink()
    for wanted in ("last", "1"):
        refused(wanted, f"of which the run has kept 0; found '{wanted}'")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers(run: Path, value: float) -> None:
    content = read_checkpoint(run / "cp-0001.model")
    content["model"]["encoder.layers.1.attention.query.bias"][3] = value
    write_checkpoint(content, run / "cp-0001.model")
    with pytest.raises(
        UserError, match=r"cp-0001.model: encoder.layers.1.attention.query.bias: expected finite weights"
    ):
        open_model(run, "last")
    open_model(run, "best")
