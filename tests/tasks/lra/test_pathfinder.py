"""Pathfinder: paths that can be followed, marks that say what the label says, and pictures of them."""

import random

import numpy as np
import pytest

from nystromformer.tasks.lra.pathfinder import STYLES, Drawing, Style, draw, find_style, paint

QUICK = find_style(32, contour=6)


def distance(a: np.ndarray, b: np.ndarray, steps: int = 200) -> float:
    """Between two dashes, by many points of each."""
    shares = np.linspace(0, 1, steps)[:, None]
    first, second = (dash[0] + shares * (dash[1] - dash[0]) for dash in (a, b))
    return float(np.sqrt(((first[:, None] - second[None]) ** 2).sum(-1)).min())


def dashes_of(drawing: Drawing) -> list[np.ndarray]:
    return [dash for path in (*drawing.paths, *drawing.distractors) for dash in path]


def follow(drawing: Drawing, start: np.ndarray) -> list[np.ndarray]:
    """The dashes that are reached from a place by gaps that only dashes which follow each other have."""
    left = dashes_of(drawing)
    reached = [dash for dash in left if distance(dash, np.stack([start, start])) < 1e-6]
    assert len(reached) == 1, "one dash is marked"
    fresh = list(reached)
    while fresh:
        last = fresh.pop()
        for dash in left:
            is_known = any(dash is other for other in reached)
            if not is_known and distance(last, dash) <= 2 * drawing.margin + 0.05:
                reached.append(dash)
                fresh.append(dash)
    return reached


@pytest.mark.parametrize(
    "style",
    [QUICK, find_style(32), find_style(64, contour=6), find_style(128, contour=6)],
    ids=lambda style: f"{style.size}-{style.contour}",
)
@pytest.mark.slow
def test_the_path_from_one_mark_leads_to_the_other_where_the_label_says_so(style: Style) -> None:
    labels = set()
    for seed in range(6):
        drawing = draw(random.Random(seed), style)
        first, last = drawing.mark_places
        reached = follow(drawing, first)
        assert len(reached) == style.contour, "the whole path, and no other"
        leads = any(distance(dash, np.stack([last, last])) < 1e-6 for dash in reached)
        assert leads == bool(drawing.label)
        labels.add(drawing.label)
    assert labels == {0, 1}


@pytest.mark.parametrize("size", STYLES)
def test_paths_stay_inside_and_apart(size: int) -> None:
    style = find_style(size, contour=5)
    drawing = draw(random.Random(1), style)
    places = np.concatenate(dashes_of(drawing))
    assert style.border <= places.min()
    assert places.max() <= size - 1 - style.border
    assert [len(path) for path in drawing.paths] == [5, 5]
    assert len(drawing.distractors) <= style.distractors
    for dash in dashes_of(drawing):
        assert np.linalg.norm(dash[1] - dash[0]) == pytest.approx(style.dash)
    one, other = drawing.paths
    assert min(distance(a, b) for a in one for b in other) > 2 * drawing.margin


def test_pictures_show_the_dashes_and_marks() -> None:
    drawing = draw(random.Random(3), QUICK)
    image = paint(drawing, QUICK)
    assert image.shape == (32, 32)
    assert image.max() == 255
    for place in drawing.mark_places:
        y, x = np.rint(place).astype(int)
        assert image[y, x] >= 120, "marked"
    points = np.stack(np.mgrid[:32, :32], axis=-1).reshape(-1, 2).astype(float)
    nearest = np.min([[distance(dash, np.stack([p, p]), 20) for p in points] for dash in dashes_of(drawing)], axis=0)
    marks = np.min([np.linalg.norm(points - place, axis=1) for place in drawing.mark_places], axis=0)
    empty = (nearest > 1.2) & (marks > 2.2)
    assert (image.reshape(-1)[empty] == 0).all(), "nothing else is drawn"
    assert (image.reshape(-1)[nearest < 0.2] > 0).all()


def test_the_same_seed_draws_the_same() -> None:
    pictures = [paint(draw(random.Random(seed), QUICK), QUICK) for seed in (5, 5, 6)]
    assert (pictures[0] == pictures[1]).all()
    assert (pictures[0] != pictures[2]).any()
