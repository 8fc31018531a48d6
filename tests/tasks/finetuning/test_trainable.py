"""What the loop is given of a fine-tuning run."""

from collections import Counter

import numpy as np
import pytest
import torch
from finetuning import a_finetuning
from small import small_config
from torch import Tensor

from nystromformer.data.tokenizer import train_tokenizer
from nystromformer.runs.settings import Settings
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.target import Classes
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.training import Group

TOKENIZER = train_tokenizer(["a landmark is a mean of a segment of tokens"] * 20, 300)
COUNT, BATCH = 22, 4


def examples(count: int = COUNT) -> EncodedTexts:
    texts = ["token " * (1 + number % 7) + f"{number}" for number in range(count)]
    return EncodedTexts(Texts("made-up train", texts, None, np.arange(count) % 2), TOKENIZER, 32, False)


def finetuning(group: Group = Group(), budget: int = 10**6, **changes: object) -> Finetuning:  # noqa: B008  # immutable
    settings: dict[str, object] = {"batch_size": BATCH, "learning_rate": 1e-3, "epochs": 2, "seed": 0, "warmup": 0.1}
    run = Settings(**settings | {"bucket": 2, "pad_to": None} | changes)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = Classes(2).build(small_config(model__dropout_prob=0.0).model)
    rows = examples()
    return a_finetuning(model, Classes(2), rows, run, budget, group)


def rows_of(batch: dict[str, Tensor]) -> list[tuple[int, ...]]:
    return [
        tuple(row[mask].tolist())
        for row, mask, weight in zip(batch["tokens_BN"], batch["mask_BN"], batch["weights"], strict=True)
        if weight
    ]


def seen(run: Finetuning, first: int, last: int) -> list[list[tuple[int, ...]]]:
    return [[row for batch in step.micro_batches for row in rows_of(dict(batch))] for step in run.steps(first, last)]


def test_every_epoch_sees_all_rows_in_an_order_of_its_own() -> None:
    per_epoch = -(-COUNT // BATCH)
    assert per_epoch == 6
    epochs = [seen(finetuning(), epoch * per_epoch, (epoch + 1) * per_epoch) for epoch in (0, 1)]
    everything = Counter(tuple(examples().tokens_of(number).tolist()) for number in range(COUNT))
    for epoch in epochs:
        assert Counter(row for step in epoch for row in step) == everything
    assert epochs[0] != epochs[1]
    assert seen(finetuning(), 4, 9) == [*epochs[0][4:], *epochs[1][:3]], "a resumed run goes on with the same steps"
    assert seen(finetuning(seed=1), 0, per_epoch) != epochs[0]


@pytest.mark.parametrize("budget", [10**6, 40])
@pytest.mark.parametrize("processes", [2, 3, 5])
def test_processes_share_each_step(processes: int, budget: int) -> None:
    alone = seen(finetuning(budget=budget), 0, 6)
    steps = [list(finetuning(Group(rank, processes), budget).steps(0, 6)) for rank in range(processes)]
    for number in range(6):
        counts = {len(of_process[number].micro_batches) for of_process in steps}
        assert len(counts) == 1, "every process computes as many micro-batches"
        together = [
            row for of_process in steps for batch in of_process[number].micro_batches for row in rows_of(dict(batch))
        ]
        assert sorted(together) == sorted(alone[number])


def test_the_losses_of_all_parts_add_up_to_the_batches_mean() -> None:
    whole = finetuning()
    sizes = [len(rows) for rows in seen(whole, 0, 6)]
    assert min(sizes) == 2, "which leaves a process of three without any"
    for step_number in (sizes.index(4), sizes.index(2)):
        (step,) = whole.steps(step_number, step_number + 1)
        expected, sums = whole.loss(step.micro_batches[0])
        parts = [finetuning(Group(rank, 3)) for rank in range(3)]
        results = [
            part.loss(batch)
            for part in parts
            for step in part.steps(step_number, step_number + 1)
            for batch in step.micro_batches
        ]
        torch.testing.assert_close(sum(loss for loss, _ in results), expected)
        torch.testing.assert_close(sum(part_sums for _, part_sums in results), sums)
        assert sums[2] == len(step.micro_batches[0]["tokens_BN"])
    metrics = whole.metrics(sums.tolist())
    assert metrics["loss"] == pytest.approx(expected.item())
    assert 0 <= metrics["accuracy"] <= 1


@pytest.mark.parametrize("budget", [10**6, 40])
def test_scores_are_in_the_examples_order(budget: int) -> None:
    run = finetuning(budget=budget)
    run.model.eval()
    with torch.no_grad():
        scores = run.scores(run.opened.splits.train)
        for number in range(COUNT):
            alone = run.opened.task.target.scores(run.model, run.opened.splits.train.batch(np.array([number])))
            torch.testing.assert_close(scores[number : number + 1], alone, rtol=1e-4, atol=1e-5)
        metrics = run.validate()
    assert run.opened.splits.train.labels is not None
    labels = torch.from_numpy(run.opened.splits.train.labels)
    assert metrics["accuracy"] == pytest.approx(float((scores.argmax(-1) == labels).float().mean()))
    assert metrics["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, labels)))


def test_a_run_that_has_diverged_reports_its_loss_alone() -> None:
    """The metrics refuse scores that are not finite; the loop says what has happened."""
    run = finetuning()
    with torch.no_grad():
        next(run.model.parameters()).fill_(float("nan"))
        assert list(run.validate()) == ["loss"]
