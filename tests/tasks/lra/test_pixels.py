"""Pathfinder with a label of each pixel: what is labelled, and a run for IoU from drawing to predictions."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arena import Lra, experiment
from sklearn.metrics import jaccard_score

from nystromformer.tasks.lra.examples import PathExamples
from nystromformer.tasks.lra.pathfinder import PATH_PIXELS, draw, draw_pathfinder, find_style, pixels_of_path
from nystromformer.tasks.lra.store import Stored, open_stored

STYLE = find_style(32, contour=5)
SIZES = {"train": 12, "validation": 6, "test": 5}
ROWS = ("model.mixed_precision=false", "model.num_layers=1", "model.attn_type.num_landmarks=16")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Stored]:
    folder = tmp_path_factory.mktemp("pixels")
    return folder, draw_pathfinder(folder, STYLE, SIZES, 0, 1, PATH_PIXELS)


def test_labelled_pixels_are_those_near_the_marked_path() -> None:
    for seed in range(5):
        drawing = draw(random.Random(seed), STYLE)
        labels = pixels_of_path(drawing, STYLE)
        path = drawing.paths[drawing.marked[0]]
        points = np.concatenate([np.linspace(*dash, 50) for dash in path])
        places = np.stack(np.nonzero(labels), 1)
        between = 2 * drawing.margin  # a gap's middle is as far as its margin from both dashes
        assert np.sqrt(((places[:, None] - points) ** 2).sum(-1)).min(1).max() <= 1 + between / 2 + 0.1
        assert all(labels[tuple(np.rint(point).astype(int))] for point in points)
        others = np.concatenate([dash for path in drawing.distractors for dash in path])
        assert not any(labels[tuple(np.rint(point).astype(int))] for point in others)


def test_examples_have_one_marked_path_and_a_label_of_each_pixel(drawn: tuple[Path, Stored]) -> None:
    split = drawn[1].split("train")
    assert split.labels.tolist() == [1] * 12
    whole, some = PathExamples("train", split, 1024), PathExamples("train", split, 1024, np.array([2, 5]))
    batch, same = whole.batch(np.array([5])), some.batch(np.array([1]), pad_to=1030)
    assert batch["tokens_BN"].shape == batch["labels"].shape == (1, 1024)
    assert same["tokens_BN"].shape == (1, 1030)
    assert int(same["mask_BN"].sum()) == 1024
    assert batch["tokens_BN"].equal(same["tokens_BN"][:, :1024])
    assert batch["labels"].equal(same["labels"])
    assert whole.fingerprint != some.fingerprint


@pytest.fixture
def arena(drawn: tuple[Path, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Lra:
    experiment(tmp_path / "e", task="pathfinder_path")
    return Lra(tmp_path / "e", drawn[0], monkeypatch, capsys)


def test_a_run_for_iou(arena: Lra, drawn: tuple[Path, Stored]) -> None:
    steps = ("--steps", 4, "--every", 2, "--batch_size", 4, "--lr", 1e-2)
    (run,) = arena(*steps, "--baselines", task="pathfinder_path", settings=ROWS)
    assert run.main_metric == "iou"
    test = open_stored(drawn[0], "pathfinder_path").split("test").stacked()[:, 1]
    rows = (run.folder / "predictions" / "test.tsv").read_text().splitlines()[1:]
    assert len(rows) == len(test)
    nothing = run.baselines["no pixel"]["iou_test"].mean
    assert nothing == pytest.approx(jaccard_score(test.ravel(), 0 * test.ravel(), average="macro", zero_division=0))
    bright = run.baselines["bright pixels"]["iou_test"].mean
    assert nothing < bright < 1
    assert 0 < run.test_metrics["iou"] < 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--track", "modern"), "--task pathfinder_path: expected --track paper with it"),
        (("--objective", "auroc"), "--objective auroc: expected a task of two classes, found another kind of label"),
    ],
)
def test_what_it_cannot_be_is_refused(arena: Lra, flags: tuple[str, ...], expected: str) -> None:
    assert expected in arena.refuse("--steps", 2, "--every", 2, *flags, task="pathfinder_path", settings=ROWS)
