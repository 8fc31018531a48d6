"""Training on the Long Range Arena's tasks: from prepared data to tested weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arena import TINY, Lra, experiment, write_task
from finetuning import finetune

from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.finetuning.run import Done
from nystromformer.tasks.lra.examples import StoredExamples
from nystromformer.tasks.lra.store import open_stored
from nystromformer.tasks.lra.task import Arena
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.log import read_log


def train(folder: Path, data: Path, *overrides: str, task: str = "listops", **changes: Any) -> Done:
    arena = Arena(task, data, 10**6)
    return finetune(experiment(folder, *overrides, task=task), arena, **{"every": 3, "steps": 6} | changes)


def weights(result: Run, number: int) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = read_checkpoint(Path(result.folder) / f"cp-{number:04d}.model")["model"]
    return model


def test_a_batch_holds_the_stored_tokens(listops: Path) -> None:
    split = open_stored(listops, "listops").split("train")
    rows = StoredExamples("train", split, 32)
    numbers = np.array([4, 0, 7])
    batch = rows.batch(numbers)
    assert batch["tokens_BN"].shape == (3, max(rows.lengths[numbers]))
    for row, number in enumerate(numbers.tolist()):
        kept = batch["tokens_BN"][row][batch["mask_BN"][row]]
        assert (kept - 1).tolist() == split.tokens(number)[:32].tolist()
        assert not batch["tokens_BN"][row][~batch["mask_BN"][row]].any()
    assert batch["labels"].tolist() == split.labels[numbers].tolist()
    assert rows.batch(numbers, 50)["tokens_BN"].shape == (3, 50)
    cut = StoredExamples("train", split, 10)
    assert cut.truncated == int((split.lengths > 10).sum()) > 0
    assert cut.lengths.max() == 10
    assert cut.fingerprint != rows.fingerprint == StoredExamples("train", split, 32).fingerprint


def test_a_pair_takes_two_rows_the_first_ones_before_the_second_ones(tmp_path: Path) -> None:
    split = open_stored(write_task(tmp_path, "retrieval", 2), "retrieval").split("train")
    rows = StoredExamples("train", split, 32)
    assert set(rows.rows) == {2}
    batch = rows.batch(np.array([3, 5]))
    for row, (example, sequence) in enumerate(((3, 0), (5, 0), (3, 1), (5, 1))):
        kept = batch["tokens_BN"][row][batch["mask_BN"][row]]
        assert (kept - 1).tolist() == split.tokens(example, sequence).tolist()
    assert len(batch["labels"]) == 2


def test_steps_are_counted_and_the_best_validations_weights_are_tested(listops: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "a", listops)
    (result,) = done.results
    # 30 examples in batches of 8: the second pass begins after step 4, the second validation comes after step 6.
    records = [(r["step"], r["type"]) for r in read_log(Path(result.folder) / "log.jsonl")]
    assert [step for step, kind in records if kind == "validation"] == [3, 6]
    assert [step for step, kind in records if kind == "train"] == [1, 2, 3, 4, 5, 6]
    assert "step6" in Path(result.folder).name
    assert (result.origin.checkpoint, result.origin.sha256, result.task) == ("", "", "lra/listops")
    assert result.tested_epoch == result.best.epoch
    assert result.test_rows == {"test": 9}
    lines = (Path(result.folder) / "predictions" / "test.tsv").read_text().splitlines()
    cells = [line.split("\t") for line in lines[1:]]
    assert result.test_metrics["accuracy"] == sum(label == guess for _, label, guess in cells) / 9
    assert read_run(Path(result.folder)) == result


@pytest.mark.parametrize(
    ("attention", "parameters"),
    [
        ("reformer", {"num_hashes": 2}),
        ("nystrom,num_landmarks=16", {"num_landmarks": 16}),
    ],
)
def test_another_attention_trains_with_the_papers_parameters(
    attention: str, parameters: dict[str, int], lra: Lra
) -> None:
    tiny = [override for override in TINY if "attn_type" not in override and "max_seq_len" not in override]
    settings = [*tiny, "model.max_seq_len=512"]
    (result,) = lra("--steps", 1, "--every", 1, "--attention", attention, "--conv", 7, settings=settings)
    expected = parameters | {"name": attention.partition(",")[0], "conv_kernel_size": 7}
    assert all(expected.items() <= layer.items() for layer in result.attention)


@pytest.mark.parametrize(("steps", "every", "validated"), [(3, 50, [3]), (5, 2, [2, 4, 5])])
def test_the_last_step_is_validated(lra: Lra, steps: int, every: int, validated: list[int]) -> None:
    (result,) = lra("--steps", steps, "--every", every)
    records = read_log(result.folder / "log.jsonl")
    assert [record["step"] for record in records if record["type"] == "validation"] == validated
    assert result.best_step in validated
    assert len(result.epochs) == result.settings.epochs == len(validated)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            ("--task", "chess"),
            "'chess' is not one of 'listops', 'text', 'retrieval', 'image', 'pathfinder'",
        ),
        (("--attention", "nystrom,landmarks=7"), "landmarks: expected"),
        (("--data", "missing"), "missing: no prepared data: run `python experiments/lra/prepare.py listops` first"),
        (("--task", "text"), "expected data of text, found that of listops"),
        (("--attention", "softmax", "--set", "model.attn_type.num_landmarks=8"), "num_landmarks"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(given: tuple[object, ...], expected: str, lra: Lra) -> None:
    settings = [override for override in TINY if "--attention" not in given or "attn_type" not in override]
    task, given = (given[1], ()) if given[0] == "--task" else ("listops", given)
    assert expected in lra.refuse(*given, task=task, settings=settings)
    assert [path.name for path in lra.folder.rglob("*")] == ["config.json"]
