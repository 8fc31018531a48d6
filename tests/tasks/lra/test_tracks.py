"""The track modern: what training does to batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from arena import Lra, write_task
from small import small_config

from nystromformer.model import SequenceModel
from nystromformer.tasks.lra.examples import IGNORED, StoredExamples, mask_tokens, move_pictures
from nystromformer.tasks.lra.store import open_stored
from nystromformer.tasks.lra.task import SequenceClasses
from nystromformer.training.checkpoint import read_checkpoint

MASK = 250


@pytest.fixture
def pairs(tmp_path: Path) -> StoredExamples:
    return StoredExamples(
        "train", open_stored(write_task(tmp_path / "d", "retrieval", 2), "retrieval").split("train"), 32
    )


def test_masked_tokens_are_told_and_nothing_else_changes(pairs: StoredExamples) -> None:
    numbers = np.arange(10)
    plain = pairs.batch(numbers)
    masked = mask_tokens(plain, numbers, 0.3, 0.5, MASK, seed=1, step=2)
    changed_BN = masked["tokens_BN"] != plain["tokens_BN"]
    assert (masked["tokens_BN"][changed_BN] == MASK).all()
    told_BN = torch.zeros_like(changed_BN)
    for row, (positions, guessed) in enumerate(zip(masked["positions_BK"], masked["guessed_BK"], strict=True)):
        counted = guessed != IGNORED
        told_BN[row, positions[counted]] = True
        assert plain["tokens_BN"][row, positions[counted]].tolist() == guessed[counted].tolist()
    assert torch.equal(told_BN, changed_BN)
    assert not (changed_BN & ~plain["mask_BN"]).any(), "no padding"
    hidden_B = masked["hidden"].repeat(2)
    assert torch.equal(changed_BN.any(1), hidden_B), "both rows of a hidden pair, and of no other"
    assert 0 < int(masked["hidden"].sum()) < 10
    assert torch.equal(masked["labels"], plain["labels"])


def test_what_is_masked_follows_from_seed_step_and_number_alone(pairs: StoredExamples) -> None:
    numbers = np.array([0, 3, 5, 8])
    whole = mask_tokens(pairs.batch(numbers), numbers, 0.3, 1.0, MASK, 1, 4)["tokens_BN"]
    for place, number in enumerate(numbers.tolist()):
        alone = mask_tokens(pairs.batch(np.array([number])), np.array([number]), 0.3, 1.0, MASK, 1, 4)["tokens_BN"]
        for tower in (0, 1):
            assert torch.equal(whole[place + 4 * tower][: alone.shape[1]], alone[tower]), "in any batch"
    for seed, step in ((2, 4), (1, 5)):
        assert not torch.equal(
            mask_tokens(pairs.batch(numbers), numbers, 0.3, 1.0, MASK, seed, step)["tokens_BN"], whole
        )


def test_a_batch_without_a_hidden_example_has_nothing_to_guess(pairs: StoredExamples) -> None:
    numbers = np.array([0, 3])
    batch = mask_tokens(pairs.batch(numbers), numbers, 0.3, 0.0, MASK, 0, 0)
    assert batch["guessed_BK"].shape == (4, 0)
    target = SequenceClasses(2, 2, guesses_tokens=True)
    config = small_config(model__pooling="mean", model__dropout_prob=0.0).model
    model = target.build(config)
    scores_IC, losses_I = target.learn(model, batch)
    torch.testing.assert_close(losses_I, F.cross_entropy(scores_IC, batch["labels"], reduction="none"))
    losses_I.sum().backward()
    assert all(p.grad is not None for p in model.mlm.parameters()), "every process has a gradient of every weight"  # type: ignore[union-attr]


def test_a_hidden_example_learns_its_tokens_and_another_its_class(pairs: StoredExamples) -> None:
    torch.manual_seed(0)
    config = small_config(model__pooling="mean", model__dropout_prob=0.0).model
    target, numbers = SequenceClasses(2, 2, guesses_tokens=True), np.arange(6)
    model = target.build(config).eval()
    assert isinstance(model, SequenceModel)
    batch = mask_tokens(pairs.batch(numbers), numbers, 0.3, 0.5, MASK, 0, 1)
    scores_IC, losses_I = target.learn(model, batch)
    hidden_BNE = model.encoder(batch["tokens_BN"], batch["mask_BN"])
    classes_I = F.cross_entropy(scores_IC, batch["labels"], reduction="none")
    for place in range(6):
        if not batch["hidden"][place]:
            torch.testing.assert_close(losses_I[place], classes_I[place])
            continue
        each = []
        for row in (place, place + 6):
            counted = batch["guessed_BK"][row] != IGNORED
            at = hidden_BNE[row, batch["positions_BK"][row][counted]][None]
            logits = model.mlm(at, model.encoder.embeddings.word.weight)[0]  # type: ignore[misc]
            each.append(F.cross_entropy(logits, batch["guessed_BK"][row][counted], reduction="none"))
        torch.testing.assert_close(losses_I[place], torch.cat(each).mean())


def test_pictures_move_as_their_class_allows() -> None:
    numbers = np.arange(64)
    picture = torch.arange(1, 65).view(1, 64)
    batch = {"tokens_BN": picture.repeat(64, 1), "mask_BN": torch.ones(64, 64, dtype=torch.bool)}
    square = picture.view(8, 8)
    symmetries = {
        tuple(torch.rot90(each, turns).flatten().tolist()) for each in (square, square.flip(1)) for turns in range(4)
    }
    moved = move_pictures(batch, numbers, "pathfinder", 0, 0)["tokens_BN"]
    assert {tuple(row.tolist()) for row in moved} == symmetries
    moved = move_pictures(batch, numbers, "image", 0, 0)["tokens_BN"]
    assert len({tuple(row.tolist()) for row in moved}) > 30
    for row in moved:
        kept = row[row > 1]
        assert len(set(kept.tolist())) == len(kept), "no pixel is there twice"
        assert len(kept) >= 15, "shifted by 4 each way at most"
    assert torch.equal(move_pictures(batch, numbers, "image", 0, 0)["tokens_BN"], moved)


def test_modern_trains_with_rotary_positions(lra: Lra, tmp_path: Path) -> None:
    data = write_task(tmp_path / "d", "image", 1)
    longest = int(open_stored(data, "image").split("train").lengths.max())
    said = lra.refuse("--track", "modern", "--length", longest - 1, data=data, task="image")
    assert f"expected rows of at least as many tokens, found {longest - 1}" in said, "pictures are moved as a whole"
    (result,) = lra("--track", "modern", "--steps", 4, "--every", 2)
    assert result.task == "lra/listops-modern"
    assert result.model["positions"] == "rotary"
    assert result.test_metrics.keys() == {"accuracy"}
    weights = read_checkpoint(Path(result.folder) / "cp-0001.model")["model"]
    assert any(name.startswith("mlm.") for name in weights)
