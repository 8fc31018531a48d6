"""WikiHop's runs from files to predictions: what they learn, what their scores depend on, what they keep."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetuning import a_finetuning, copy_of, finetune
from small import LENGTH, VOCABULARY, run_here
from torch import Tensor
from wikihop_files import write_wikihop

from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.runs.record import Run, read_run
from nystromformer.runs.settings import Settings
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning.definition import Loading
from nystromformer.tasks.finetuning.opening import with_room
from nystromformer.tasks.finetuning.target import Candidates
from nystromformer.tasks.wikihop.examples import WikiHopExamples
from nystromformer.tasks.wikihop.task import WikiHop
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.log import read_log

SCRIPT = "code/run_wikihop.py"
WORDS = "encoder.embeddings.word.weight"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wikihop(tmp_path_factory.mktemp("wikihop"))


def run(experiment: Experiment, data: Path, validation: float | None = None, **changes: Any) -> Run:
    (result,) = finetune(experiment, WikiHop(data, validation, 0), **changes).results
    return result


def load(experiment: Experiment, data: Path, length: int = LENGTH) -> tuple[WikiHop, Loading]:
    task = WikiHop(data, None, 0)
    tokenizer = task.tokenizer(load_tokenizer(experiment.checkpoints / "tokenizer"))
    return task, Loading(tokenizer, length, False, None)


def predictions(result: Run, name: str) -> dict[str, str]:
    answers: dict[str, str] = json.loads((Path(result.folder) / "predictions" / f"{name}.json").read_text())
    return answers


def records_of(data: Path, split: str) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in json.loads((data / f"{split}.json").read_text())}


def share_right(answers: dict[str, str], given: dict[str, dict[str, Any]]) -> float:
    return float(np.mean([answer == given[name]["answer"] for name, answer in answers.items()]))


def test_from_files_to_predictions(
    experiment: Experiment, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--model", experiment.folder, "--wikihop", data, "--batch_size", 4, "--epoch", 2, "--device", "cpu")
    assert run_here(monkeypatch, SCRIPT, *flags) == 0
    (folder,) = experiment.checkpoints.glob("wikihop/cp-*")
    result = read_run(folder)
    assert result is not None
    assert list(result.tested.files) == ["predictions/dev.json", "predictions/test.json"]
    assert result.rows == {"train": 9, "validation": 6}
    for split in ("dev", "test"):
        given, answers = records_of(data, split), predictions(result, split)
        assert answers.keys() == given.keys()
        assert all(answer in given[name]["candidates"] for name, answer in answers.items())
    right = share_right(predictions(result, "dev"), records_of(data, "dev"))
    assert result.best.metrics["accuracy"] == pytest.approx(right)
    assert result.test_metrics == {}, "the test file has no answers to score by"
    said = capsys.readouterr().out
    assert "wikihop, " in said
    assert "accuracy" in said


def test_it_learns_what_the_supports_mark(experiment: Experiment, tmp_path: Path) -> None:
    data = write_wikihop(tmp_path / "data", train=6)
    result = run(experiment, data, batch_size="3", epoch=24, lr="1e-2")
    reached = [one["accuracy"] for one in read_log(Path(result.folder) / "log.jsonl") if one["type"] == "train"]
    assert reached[0] < 0.9
    assert reached[-1] == 1.0


def test_scores_depend_on_no_other_instance_and_no_budget(experiment: Experiment, data: Path) -> None:
    task, loading = load(experiment, data)
    train = task.load(loading).train
    assert isinstance(train, WikiHopExamples)
    assert {1, 2} < set(train.rows.tolist())
    config = with_room(experiment, LENGTH, loading.tokenizer.get_vocab_size())
    model = Candidates().build(config.model).eval()
    settings = Settings(bucket=3)

    def scores(budget: int, pad_to: int | None = None) -> Tensor:
        made = a_finetuning(model, Candidates(), train, replace(settings, pad_to=pad_to), budget)
        with torch.no_grad():
            return made.scores(train)

    with torch.no_grad():
        alone = [Candidates().scores(model, train.batch(np.asarray([n])))[0] for n in range(len(train))]
    together = scores(10**6)
    assert together.shape == (9, 5)
    for number, expected in enumerate(alone):
        torch.testing.assert_close(together[number, : len(expected)], expected, rtol=0, atol=1e-5)
        assert together[number, len(expected) :].eq(float("-inf")).all()
    assert together.isfinite().sum(1).tolist() == [2 + number % 4 for number in range(9)]
    assert together[together.isfinite()].std() > 1e-3, "different scores"
    for budget in (1, 100, 200):
        torch.testing.assert_close(scores(budget), together, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores(100, pad_to=LENGTH), together, rtol=0, atol=1e-5)


def test_special_tokens_have_embeddings(experiment: Experiment, data: Path) -> None:
    tokens = load(experiment, data)[1].tokenizer
    assert tokens.get_vocab_size() == VOCABULARY + 4
    result = run(experiment, data, epoch=1, lr="1e-9")
    then = read_checkpoint(experiment.checkpoints / "cp-0001.model")["model"][WORDS]
    now = read_checkpoint(Path(result.folder) / "cp-0000.model")["model"][WORDS]
    assert len(now) == VOCABULARY + 4
    torch.testing.assert_close(now[:VOCABULARY], then[:VOCABULARY], rtol=0, atol=1e-6)
    added = now[VOCABULARY : VOCABULARY + 4]
    assert (added.std(dim=1) > 1e-3).all()
    assert len({tuple(row.tolist()) for row in added}) == 4, "each has its own"
    assert read_checkpoint(Path(result.folder) / "cp-0000.model")["config"]["model"]["vocab_size"] == len(now)


def test_attentions_with_global_tokens_take_the_prefix(
    source: Path, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = 'model.attn_type={"name": "longformer", "window": 4}'
    experiment = copy_of(source, tmp_path / "fits", setting, "model.num_landmarks=null", "model.conv_kernel_size=null")
    assert run(experiment, data, epoch=1).epochs[-1].metrics["accuracy"] >= 0
    few = setting.replace("}", ', "global_capacity": 2}')
    copy_of(source, tmp_path / "few")
    flags = ("--model", tmp_path / "few", "--wikihop", data, "--set", few, "--set", "model.num_landmarks=null")
    more = ("--set", "model.conv_kernel_size=null", "--epoch", 1, "--device", "cpu")
    assert run_here(monkeypatch, SCRIPT, *flags, *more) == 2
    assert not any((tmp_path / "few").rglob("run.json"))


def test_a_part_of_train_is_held_out(experiment: Experiment, data: Path) -> None:
    result = run(experiment, data, validation=0.3)
    assert result.rows == {"train": 6, "validation": 3}
    assert list(result.tested.files) == [f"predictions/{name}.json" for name in ("dev", "test", "validation")]
    held_out = predictions(result, "validation")
    assert len(held_out) == 3
    assert held_out.keys() < records_of(data, "train").keys()
    right = share_right(held_out, records_of(data, "train"))
    assert result.best.metrics["accuracy"] == pytest.approx(right)
    answers, given = predictions(result, "dev"), records_of(data, "dev")
    assert answers.keys() == given.keys()
    assert result.test_metrics == {"accuracy": pytest.approx(share_right(answers, given))}, "dev.json is the test"
