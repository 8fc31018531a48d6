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


EDITS = {
    "no optimizer": (put("optimizer", value=...), "holds weights only"),
    "a moment's shape": (put("optimizer", "state", 0, "exp_avg", value=torch.ones(3, 3)), r"exp_avg: .*\(3, 3\)"),
    "other groups": (put("optimizer", "param_groups", value=[]), "param_groups: expected"),
    "a progress without a step": (put("progress", "step", value=...), "progress.step: missing"),
    "a progress with more": (put("progress", "luck", value=1), "progress.luck: not known"),
    "another step": (put("progress", "step", value=1), "step: 2 beside progress.step 1"),
    "another epoch": (put("epoch", value=3), "epoch: 3 at step 2"),
    "a weight's shape": (put("model", "weight", value=torch.ones(2, 2)), "the checkpoint \\(2, 2\\)"),
    "a weight's kind": (put("model", "weight", value=torch.ones(1, 1).half()), "torch.float16"),
    "a weight is no tensor": (put("model", "weight", value=[1.0]), "a tensor, the checkpoint a list"),
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Content:
    folder = tmp_path_factory.mktemp("run")
    trainer(folder).run()
    return read_checkpoint(folder / "cp-0001.cp")


def trainer(folder: Path) -> Trainer:
    return Trainer(Scripted([1.0] * 4), settings(2), folder, CPU, {})


@pytest.mark.parametrize("name", EDITS)
def test_it_is_refused_whole(complete: Content, tmp_path: Path, name: str) -> None:
    edit, words = EDITS[name]
    content = copy.deepcopy(complete)
    edit(content)
    run = trainer(tmp_path)
    before = copy.deepcopy((run.trainable.model.state_dict(), run.optimizer.state_dict(), run.state))
    with pytest.raises(UserError, match=words) as error:
        run.resume(content, Path("cp-0001.cp"))
    assert "cp-0001.cp" in str(error.value)
    after = (run.trainable.model.state_dict(), run.optimizer.state_dict(), run.state)
    assert str(before) == str(after)


def test_all_that_is_wrong_is_said_at_once(complete: Content, tmp_path: Path) -> None:
    content = copy.deepcopy(complete)
    for name in ("a moment's shape", "another epoch"):
        EDITS[name][0](content)
    with pytest.raises(UserError, match=r"epoch: 3(.|\n)*exp_avg"):
        trainer(tmp_path).resume(content, Path("cp-0001.cp"))


def test_what_the_checkpoint_says_of_the_optimizers_ways_is_not_believed(complete: Content, tmp_path: Path) -> None:
    content = copy.deepcopy(complete)
    content["optimizer"]["param_groups"][0] |= {"maximize": True, "amsgrad": True, "lr": 1e9, "fused": None}
    run = trainer(tmp_path)
    own = {key: value for key, value in run.optimizer.param_groups[0].items() if key != "params"}
    run.resume(content, Path("cp-0001.cp"))
    own["lr"] = learning_rate(run.state.step - 1, run.settings)
    assert {key: value for key, value in run.optimizer.param_groups[0].items() if key != "params"} == own
