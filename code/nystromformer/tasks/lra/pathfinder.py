"""Pathfinder: are two marks at the ends of one dashed path, or of two (Linsley et al. 2018), drawn with the parameters
of the Long Range Arena; two paths grow side by side, and short ones distract. Geometry is continuous here, where the
original searches pixels; what a path may cross or touch, how it turns and how bright it is, are its rules.

Shapes: P dashes, C candidates, N pixels of a side. A dash is (y, x) of its two ends: (2, 2).
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.tasks.lra.declaration import PATH
from nystromformer.tasks.lra.store import Stored, TaskData, compare_sizes, prepare_drawn

Floats = NDArray[np.float64]

_TURNS = np.radians(np.arange(-87.5, 90, 5))
"""Of one dash against the one before."""
_MOST_ATTEMPTS = 100
_STARTS = 40
"""Places that are tried for the first dash of a path."""
_SETBACK, _MOST_SETBACKS = 4, 25
"""Dashes that a path loses at a dead end, and how often before both begin anew."""
_DISTRACTOR_ATTEMPTS = 5
"""As in the original, one that finds no room is left out."""
_MORE_ROOM = 0.3
"""Pixels by which two dashes that do not follow each other are further apart than two that do."""


@dataclass(frozen=True)
class Style:
    """How pictures are drawn, in pixels.

    margins: of which each picture has one: two dashes that follow each other are twice as far apart.
    contrasts: of the long paths, the distractors and the marks; the brightest pixel of a picture becomes 255.
    continuity: the probability of a turn by an angle a falls with cos²(continuity · a).
    contour, distractor: dashes of a long path and of a distractor; distractor_dashes: of all of these, at most.
    """

    size: int
    border: int
    margins: tuple[int, ...]
    dash: float
    thickness: float
    mark_radius: float
    seed_distance: float
    continuity: float
    contrasts: tuple[float, float, float]
    contour: int = 14
    distractor_dashes: int = 0
    distractor: int = 4

    @property
    def distractors(self) -> int:
        """How many there are, where they find room."""
        return self.distractor_dashes // self.distractor


STYLES = {
    32: Style(32, 1, (1,), 2, 0.5, 1.5, 7, 1.0, (1.5, 2.0, 1.0), distractor_dashes=20),
    64: Style(64, 1, (1,), 5, 1, 2.5, 12, 1.8, (0.8, 0.8, 1.0), distractor_dashes=22),
    128: Style(128, 1, (2, 3), 5, 1.5, 3, 20, 1.8, (0.9, 0.9, 1.0), distractor_dashes=35),
    256: Style(256, 22, (3,), 5, 2, 5, 27, 1.8, (1.0, 1.0, 1.0), distractor_dashes=30),
}
"""By size: the parameters with which the Long Range Arena made its hard pictures. With 32 pixels its paths are drawn
with three quarters of the distractors' contrast, and its marks with half of it."""


def find_style(size: int, contour: int = 14, distractors: bool = True) -> Style:
    """The style of a size, with paths of another length, distractors a third of it, or none."""
    style = STYLES[size]
    dashes = style.distractor_dashes if distractors else 0
    return replace(style, contour=contour, distractor=max(1, contour // 3), distractor_dashes=dashes)


@dataclass(frozen=True)
class Drawing:
    """The geometry of a picture; marked are the path whose first end has a mark, and the one whose last end has one."""

    margin: int
    paths: list[list[Floats]]
    distractors: list[list[Floats]]
    marked: tuple[int, int]

    @property
    def label(self) -> int:
        """1 where both marks are on one path."""
        return int(self.marked[0] == self.marked[1])

    @property
    def mark_places(self) -> tuple[Floats, Floats]:
        """(y, x) of both."""
        first, last = self.marked
        return self.paths[first][0][0], self.paths[last][-1][1]


def draw(generator: random.Random, style: Style) -> Drawing:
    """A picture's geometry; attempts that come to a dead end are thrown away."""
    for _ in range(_MOST_ATTEMPTS):
        growth = _Growth(generator, style, generator.choice(style.margins))
        paths = growth.two_paths()
        if paths is None:
            continue
        distractors: list[list[Floats]] = []
        for _ in range(style.distractors):
            others = [dash for path in (*paths, *distractors) for dash in path]
            attempts = (growth.distractor(others) for _ in range(_DISTRACTOR_ATTEMPTS))
            path = next(filter(None, attempts), None)
            if path is not None:
                distractors.append(path)
        origin = generator.randrange(2)
        is_positive = generator.randrange(2)
        return Drawing(growth.margin, paths, distractors, (origin, origin if is_positive else 1 - origin))
    raise UserError(
        f"--contour {style.contour}: {_MOST_ATTEMPTS:,} attempts found no room for two such paths in {style.size} x "
        f"{style.size} pixels: ask for fewer dashes"
    )


@dataclass(frozen=True)
class _Growth:
    """How the paths of one picture grow."""

    generator: random.Random
    style: Style
    margin: int

    def two_paths(self) -> list[list[Floats]] | None:
        """The long ones, side by side; None: they came to a dead end."""
        style, uniform = self.style, self.generator.uniform
        # As in the original the first one begins in the middle of the picture.
        first = self._first_dash([], min(2 * style.seed_distance, style.size / 2 - 1))
        if first is None:
            return None
        for _ in range(_STARTS):
            start = first[0] + style.seed_distance * _direction(uniform(-math.pi, math.pi))
            second = _dash_from(start, uniform(-math.pi, math.pi), style.dash)
            if self._is_allowed(second[None], [first])[0]:
                break
        else:
            return None
        paths = [[first], [second]]
        setbacks = 0
        while min(map(len, paths)) < style.contour:
            number = int(len(paths[1]) < len(paths[0]))
            path = paths[number]
            dash = self._next_dash(path[-1], [*paths[1 - number], *path[:-1]])
            if dash is not None:
                path.append(dash)
                continue
            setbacks += 1
            if setbacks > _MOST_SETBACKS or len(path) == 1:
                return None
            del path[max(1, len(path) - _SETBACK) :]
        return paths

    def distractor(self, others: list[Floats]) -> list[Floats] | None:
        """A short path; None: it found no room."""
        dash = self._first_dash(others, self.style.border)
        path: list[Floats] = []
        while dash is not None:
            path.append(dash)
            if len(path) == self.style.distractor:
                return path
            dash = self._next_dash(dash, [*others, *path[:-1]])
        return None

    def _first_dash(self, others: Sequence[Floats], inset: float) -> Floats | None:
        style, uniform = self.style, self.generator.uniform
        starts = np.array([uniform(inset, style.size - 1 - inset) for _ in range(2 * _STARTS)]).reshape(-1, 2)
        angles = [uniform(-math.pi, math.pi) for _ in range(_STARTS)]
        dashes = np.stack([_dash_from(*each, style.dash) for each in zip(starts, angles, strict=True)])
        allowed = self._is_allowed(dashes, others)
        return dashes[int(np.argmax(allowed))] if allowed.any() else None

    def _next_dash(self, last: Floats, others: Sequence[Floats]) -> Floats | None:
        """A dash behind the last one of a path, in one of the directions in which nothing is in its way."""
        style, margin = self.style, self.margin
        along = last[1] - last[0]
        before = math.atan2(along[0], along[1])
        pivot = last[1] + margin * _direction(before)
        angles = before + _TURNS + math.radians(self.generator.uniform(-2.5, 2.5))
        ways = np.stack([np.sin(angles), np.cos(angles)], axis=1)
        starts = pivot + margin * ways
        dashes = np.stack([starts, starts + style.dash * ways], axis=1)
        if others:
            all_others = np.array(others)
            farthest = 3 * margin + 1.5 * style.dash + 1
            others = all_others[((all_others.sum(1) / 2 - pivot) ** 2).sum(1) <= farthest * farthest]
        # A sharp turn would bring it next to the one that it follows.
        allowed = self._is_allowed(dashes, others) & (_distances(dashes, last[None])[:, 0] >= margin)
        weights = np.cos(np.minimum(style.continuity * np.abs(angles - before), math.pi / 2)) ** 2 * allowed
        total = weights.sum()
        if total < 1e-4:
            return None
        chosen = int(np.searchsorted(np.cumsum(weights), self.generator.random() * total))
        dash: Floats = dashes[min(chosen, len(dashes) - 1)]
        return dash

    def _is_allowed(self, dashes_C22: Floats, others: Sequence[Floats] | Floats) -> NDArray[np.bool_]:
        """Whether a dash is inside the picture, and far enough from others."""
        border, size = self.style.border, self.style.size
        allowed: NDArray[np.bool_] = np.logical_and.reduce(
            (dashes_C22 >= border) & (dashes_C22 <= size - 1 - border), axis=(1, 2)
        )
        if len(others):
            is_far = _distances(dashes_C22, np.asarray(others)) >= 2 * self.margin + _MORE_ROOM
            allowed &= np.logical_and.reduce(is_far, axis=1)
        return allowed


def _direction(angle: float) -> Floats:
    return np.array([math.sin(angle), math.cos(angle)])


def _dash_from(start: Floats, angle: float, length: float) -> Floats:
    return np.stack([start, start + length * _direction(angle)])


def _distances(a_C22: Floats, b_P22: Floats) -> Floats:
    """(C, P): between each two dashes; zero where they cross."""
    a, b = a_C22[:, None], b_P22[None]
    ends_of_a, ends_of_b = (np.moveaxis(each, -2, 0) for each in (a, b))
    nearest = np.minimum(_distances_to(ends_of_a, b[None]).min(0), _distances_to(ends_of_b, a[None]).min(0))
    distances: Floats = np.where(_cross(a, b), 0.0, nearest)
    return distances


def _distances_to(points: Floats, dashes: Floats) -> Floats:
    """From points (…, 2) to dashes (…, 2, 2)."""
    start, along = dashes[..., 0, :], dashes[..., 1, :] - dashes[..., 0, :]
    share = ((points - start) * along).sum(-1) / np.maximum((along * along).sum(-1), 1e-12)
    nearest = start + np.clip(share, 0, 1)[..., None] * along
    distances: Floats = np.sqrt(((points - nearest) ** 2).sum(-1))
    return distances


def _cross(a: Floats, b: Floats) -> NDArray[np.bool_]:
    def side(start: Floats, end: Floats, point: Floats) -> Floats:
        along, across = end - start, point - start
        return along[..., 0] * across[..., 1] - along[..., 1] * across[..., 0]

    a0, a1, b0, b1 = a[..., 0, :], a[..., 1, :], b[..., 0, :], b[..., 1, :]
    return (side(a0, a1, b0) * side(a0, a1, b1) < 0) & (side(b0, b1, a0) * side(b0, b1, a1) < 0)


def paint(drawing: Drawing, style: Style) -> NDArray[np.uint8]:
    """The picture, (N, N): dashes and marks with smooth edges, the brightest pixel 255."""
    image = np.zeros((style.size, style.size))
    of_paths, of_distractors, of_marks = style.contrasts
    for paths, contrast in ((drawing.paths, of_paths), (drawing.distractors, of_distractors)):
        for path in paths:
            for dash in path:
                _paint(image, dash, style.thickness / 2, contrast)
    for place in drawing.mark_places:
        _paint(image, np.stack([place, place]), style.mark_radius, of_marks)
    levels: NDArray[np.uint8] = np.rint(255 * image / image.max()).astype(np.uint8)
    return levels


def pixels_of_path(drawing: Drawing, style: Style) -> NDArray[np.uint8]:
    """1 within a pixel of the path whose first end is marked, its dashes and the gaps between them, (N, N)."""
    image, path = np.zeros((style.size, style.size)), drawing.paths[drawing.marked[0]]
    gaps = [np.stack([before[1], after[0]]) for before, after in pairwise(path)]
    for part in (*path, *gaps):
        _paint(image, part, 1.0, 1.0)
    return (image >= 0.5).astype(np.uint8)


def _paint(image: Floats, dash: Floats, radius: float, contrast: float) -> None:
    low = np.maximum(np.floor(dash.min(0) - radius - 1), 0).astype(int)
    high = np.minimum(np.ceil(dash.max(0) + radius + 1), len(image) - 1).astype(int) + 1
    part: Any = np.s_[low[0] : high[0], low[1] : high[1]]
    points = np.moveaxis(np.asarray(np.mgrid[part], dtype=float), 0, -1)
    distance = _distances_to(points, dash[None, None])
    image[part] = np.maximum(image[part], contrast * np.clip(0.5 + radius - distance, 0, 1))


PATHFINDER = TaskData("pathfinder", 2, {"train": 160_000, "validation": 20_000, "test": 20_000})
PATH_PIXELS = replace(PATHFINDER, task=PATH, sequences=2)


def draw_pathfinder(
    folder: Path, style: Style, sizes: Mapping[str, int], seed: int, workers: int, data: TaskData = PATHFINDER
) -> Stored:
    """Draw pictures into a folder, so many examples of each split: of PATHFINDER or of PATH_PIXELS."""
    usual = find_style(style.size)
    warning = "drawn here with the Long Range Arena's parameters: its own pictures are others"
    if style != usual:
        shown = f"paths of {style.contour} dashes " + ("and" if style.distractors else "without") + " distractors"
        official = f"the Long Range Arena's have {usual.contour} and distractors"
        warning = f"not the Long Range Arena's Pathfinder: {shown}; {official}"
    warnings = [warning, *compare_sizes(sizes, data.official)]
    if data.task == PATH:
        warnings = ["not a task of the Long Range Arena"]
    settings = {"seed": seed, **asdict(style)}
    return prepare_drawn(
        folder, data, partial(draw_example, data.task, style, seed), settings, sizes, workers, warnings
    )


def draw_example(task: str, style: Style, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
    """Pixels and label of a picture of a split; of PATH_PIXELS also which pixels are on the marked path, and the label
    is 1: one path has both marks.
    """
    drawing = draw(random.Random(f"{task} {seed} {split} {number} {attempt}"), style)
    if task != PATH:
        return paint(drawing, style).tobytes(), drawing.label
    drawing = replace(drawing, marked=(drawing.marked[0], drawing.marked[0]))
    return paint(drawing, style).tobytes() + pixels_of_path(drawing, style).tobytes(), drawing.label
