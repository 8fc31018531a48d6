"""GLUE's catalogue of tasks."""

import pytest

from nystromformer.errors import UserError
from nystromformer.tasks.glue.catalog import TASKS, find_tasks


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SST2", "SST-2"),
        ("sst-2", "SST-2"),
        ("Sts_B", "STS-B"),
        ("rte, cola,RTE,", "RTE CoLA"),
        ("paper", "SST-2 MRPC QNLI QQP MNLI"),
        ("ALL", "CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI"),
    ],
)
def test_tasks_by_name(text: str, names: str) -> None:
    assert [each.name for each in find_tasks(text)] == names.split()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mrpc,mprc", r"--task: expected CoLA, .*WNLI, paper \(SST-2.*\) or all, found mprc"),
        (" , ", "--task: expected CoLA, .* found  , "),
    ],
)
def test_unknown_tasks(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_tasks(text)


def test_the_catalogue_is_in_step_with_itself() -> None:
    files = [split.prediction_file for each in TASKS for split in each.splits if split.prediction_file]
    expected = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm AX QNLI RTE WNLI"
    assert files == [f"{name}.tsv" for name in expected.split()]
    for each in TASKS:
        assert {"train", *each.dev_splits, *each.test_splits} == {split.name for split in each.splits}
