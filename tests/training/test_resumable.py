"""A whole file with another content than this run can have written is refused before anything of it is loaded."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import Scripted, settings
from small import CPU

from nystromformer.errors import UserError
from nystromformer.training import Trainer
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.optim import learning_rate

Content = dict[str, Any]


def put(*keys: Any, value: Any) -> Callable[[Content], None]:
    """An edit that replaces what stands at some keys, or removes it (`...`)."""

    def edit(content: Content) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        if value is ...:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value

    return edit


NAN, INF = float("nan"), float("inf")
EDITS = {
    "no optimizer": (put("optimizer", value=...), "holds weights only"),
    "optimizer is no dict": (put("optimizer", value=[]), "expected its state and param_groups"),
    "no moments": (put("optimizer", "state", value={}), "no moments of 1 of 1"),
    "moments of another parameter": (put("optimizer", "state", 7, value={}), "7 is no parameter"),
    "a moment's shape": (put("optimizer", "state", 0, "exp_avg", value=torch.ones(3, 3)), r"exp_avg: .*\(3, 3\)"),
    "a moment's kind": (put("optimizer", "state", 0, "exp_avg_sq", value=torch.ones(1, 1).int()), "torch.int32"),
    "a moment is no tensor": (put("optimizer", "state", 0, "exp_avg", value=1.0), "float"),
    "a sparse moment": (put("optimizer", "state", 0, "exp_avg", value=torch.ones(1, 1).to_sparse()), "exp_avg"),
    "a moment is missing": (put("optimizer", "state", 0, "exp_avg", value=...), "expected step, exp_avg"),
    "the moments' step": (put("optimizer", "state", 0, "step", value=torch.tensor(99.0)), "at most the run's"),
    "the moments' step is infinite": (put("optimizer", "state", 0, "step", value=torch.tensor(NAN)), "step: nan"),
    "other groups": (put("optimizer", "param_groups", value=[]), "param_groups: expected"),
    "other parameters": (put("optimizer", "param_groups", 0, "params", value=[1]), "param_groups: expected"),
    "no progress": (put("progress", value=None), "progress: expected a dict"),
    "a progress without a step": (put("progress", "step", value=...), "progress.step: missing"),
    "a progress with more": (put("progress", "luck", value=1), "progress.luck: not known"),
    "another step": (put("progress", "step", value=1), "step: 2 beside progress.step 1"),
    "a negative count": (put("progress", "tokens", value=-1), "progress.tokens: expected a count"),
    "a huge count": (put("progress", "tokens", value=10**30), "progress.tokens: expected a count"),
    "a boolean count": (put("progress", "left_out", value=True), "progress.left_out: expected a count"),
    "a report beyond the step": (put("progress", "reported_at", value=9), "reported_at: beyond"),
    "sums of words": (put("progress", "sums", value=["a"]), "progress.sums"),
    "sums without end": (put("progress", "sums", value=[INF]), "progress.sums"),
    "half a best": (put("progress", "best", value=[1.0]), "progress.best"),
    "a history of words": (put("progress", "history", value=["a"]), "progress.history"),
    "a history of what is to come": (put("progress", "history", 1, "step", value=9), "progress.history"),
    "no history": (put("progress", "history", value=...), "progress.history: missing"),
    "another epoch": (put("epoch", value=3), "epoch: 3 at step 2"),
    "step is a word": (put("step", value="2"), "step: '2'"),
    "no scaler": (put("scaler", value=None), "scaler: expected a dict"),
    "another scaler": (put("scaler", value={"scale": 1.0}), "scaler: expected _growth_tracker"),
    "a weight's shape": (put("model", "weight", value=torch.ones(2, 2)), "the checkpoint \\(2, 2\\)"),
    "a weight's kind": (put("model", "weight", value=torch.ones(1, 1).half()), "torch.float16"),
    "a weight is no tensor": (put("model", "weight", value=[1.0]), "a tensor, the checkpoint a list"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Content:
    folder = tmp_path_factory.mktemp("run")
    trainer(folder).run()
    return read_checkpoint(folder / "cp-0001.cp")


def trainer(folder: Path) -> Trainer:
    return Trainer(Scripted([1.0] * 4), settings(2), folder, CPU, {})


@pytest.mark.parametrize("name", EDITS)
def test_it_is_refused_whole(written: Content, tmp_path: Path, name: str) -> None:
    edit, words = EDITS[name]
    content = copy.deepcopy(written)
    edit(content)
    run = trainer(tmp_path)
    before = copy.deepcopy((run.trainable.model.state_dict(), run.optimizer.state_dict(), run.state))
    with pytest.raises(UserError, match=words) as error:
        run.resume(content, Path("cp-0001.cp"))
    assert "cp-0001.cp" in str(error.value)
    after = (run.trainable.model.state_dict(), run.optimizer.state_dict(), run.state)
    assert str(before) == str(after)


def test_all_that_is_wrong_is_said_at_once(written: Content, tmp_path: Path) -> None:
    content = copy.deepcopy(written)
    for name in ("no moments", "another epoch", "no scaler"):
        EDITS[name][0](content)
    with pytest.raises(UserError, match=r"epoch: 3(.|\n)*no moments(.|\n)*scaler"):
        trainer(tmp_path).resume(content, Path("cp-0001.cp"))


def test_what_the_checkpoint_says_of_the_optimizers_ways_is_not_believed(written: Content, tmp_path: Path) -> None:
    content = copy.deepcopy(written)
    content["optimizer"]["param_groups"][0] |= {"maximize": True, "amsgrad": True, "lr": 1e9, "fused": None}
    run = trainer(tmp_path)
    own = {key: value for key, value in run.optimizer.param_groups[0].items() if key != "params"}
    run.resume(content, Path("cp-0001.cp"))
    own["lr"] = learning_rate(run.state.step - 1, run.settings)
    assert {key: value for key, value in run.optimizer.param_groups[0].items() if key != "params"} == own


def test_the_untouched_one_is_taken(written: Content, tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.resume(copy.deepcopy(written), Path("cp-0001.cp"))
    assert run.state.step == 2
