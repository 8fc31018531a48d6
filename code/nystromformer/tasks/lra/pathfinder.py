"""Pathfinder: are two marks at the ends of one dashed path, or of two (Linsley et al. 2018), drawn with the parameters
of the Long Range Arena.

Two paths of dashes (paddles) grow side by side, alternately; short paths distract. One mark is at the first end of one
of the two long ones, the other at the last end of the same one or of the other. Geometry is continuous here, where the
original searches pixels; what a path may cross or touch, how it turns and how bright it is, are its rules.

Shapes: P dashes, C candidates, N pixels of a side. A dash is (y, x) of its two ends: (2, 2).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError

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
    """Dashes of a long path."""
    distractor_dashes: int = 0
    """Of all distractors together, at most."""
    distractor: int = 4
    """Dashes of one."""

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


def styled(size: int, contour: int = 14, distractors: bool = True) -> Style:
    """The style of a size, with paths of another length, distractors a third of it, or none."""
    style = STYLES[size]
    dashes = style.distractor_dashes if distractors else 0
    return replace(style, contour=contour, distractor=max(1, contour // 3), distractor_dashes=dashes)


@dataclass
class Drawing:
    """The geometry of a picture."""

    margin: int
    paths: list[list[Floats]] = field(default_factory=list)
    """The two long ones."""
    distractors: list[list[Floats]] = field(default_factory=list)
    marks: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, -1))
    """Which path, and which of its dashes: the first's first end, the last's last one."""

    @property
    def label(self) -> int:
        """1 where both marks are on one path."""
        return int(self.marks[0][0] == self.marks[1][0])

    @property
    def mark_places(self) -> tuple[Floats, Floats]:
        """(y, x) of both."""
        (first, _), (last, _) = self.marks
        return self.paths[first][0][0], self.paths[last][-1][1]

    @property
    def dashes(self) -> list[Floats]:
        """All of them."""
        return [dash for path in (*self.paths, *self.distractors) for dash in path]


def draw(generator: random.Random, style: Style) -> Drawing:
    """A picture's geometry; attempts that come to a dead end are thrown away.

    Raises:
        UserError: all of them do, as the paths are too long for the picture.
    """
    for _ in range(_MOST_ATTEMPTS):
        margin = generator.choice(style.margins)
        drawing = Drawing(margin)
        paths = _two_paths(generator, style, margin)
        if paths is None:
            continue
        drawing.paths = paths
        others = [dash for path in paths for dash in path]
        for _ in range(style.distractors):
            attempts = (_one_path(generator, style, margin, others) for _ in range(_DISTRACTOR_ATTEMPTS))
            path = next((path for path in attempts if path is not None), None)
            if path is not None:
                drawing.distractors.append(path)
                others += path
        origin = generator.randrange(2)
        is_positive = generator.randrange(2)
        drawing.marks = (origin, 0), (origin if is_positive else 1 - origin, -1)
        return drawing
    raise UserError(
        f"--contour {style.contour}: {_MOST_ATTEMPTS:,} attempts found no room for two such paths in {style.size} x "
        f"{style.size} pixels: ask for fewer dashes"
    )


def _two_paths(generator: random.Random, style: Style, margin: int) -> list[list[Floats]] | None:
    # As in the original the first one begins in the middle of the picture.
    inset = min(2 * style.seed_distance, style.size / 2 - 1)
    first = _first_dash(generator, style, margin, [], inset)
    if first is None:
        return None
    second: Floats | None = None
    for _ in range(_STARTS):
        start = first[0] + style.seed_distance * _direction(generator.uniform(-math.pi, math.pi))
        found = _dash_from(start, generator.uniform(-math.pi, math.pi), style.dash)
        if _is_inside(found[None], style.border, style.size)[0] and _is_free(found[None], [first], margin)[0]:
            second = found
            break
    if second is None:
        return None
    paths = [[first], [second]]
    setbacks = 0
    while min(map(len, paths)) < style.contour:
        number = int(len(paths[1]) < len(paths[0]))
        path = paths[number]
        dash = _next_dash(generator, style, margin, path[-1], [*paths[1 - number], *path[:-1]])
        if dash is not None:
            path.append(dash)
            continue
        setbacks += 1
        if setbacks > _MOST_SETBACKS or len(path) == 1:
            return None
        del path[max(1, len(path) - _SETBACK) :]
    return paths


def _one_path(generator: random.Random, style: Style, margin: int, others: list[Floats]) -> list[Floats] | None:
    first = _first_dash(generator, style, margin, others, style.border)
    if first is None:
        return None
    path = [first]
    for _ in range(style.distractor - 1):
        dash = _next_dash(generator, style, margin, path[-1], [*others, *path[:-1]])
        if dash is None:
            return None
        path.append(dash)
    return path


def _first_dash(
    generator: random.Random, style: Style, margin: int, others: Sequence[Floats], inset: float
) -> Floats | None:
    starts = [generator.uniform(inset, style.size - 1 - inset) for _ in range(2 * _STARTS)]
    angles = [generator.uniform(-math.pi, math.pi) for _ in range(_STARTS)]
    dashes = np.stack([_dash_from(np.array(starts[2 * i : 2 * i + 2]), angles[i], style.dash) for i in range(_STARTS)])
    allowed = _is_inside(dashes, style.border, style.size) & _is_free(dashes, others, margin)
    return dashes[int(np.argmax(allowed))] if allowed.any() else None


def _next_dash(
    generator: random.Random, style: Style, margin: int, last: Floats, others: Sequence[Floats]
) -> Floats | None:
    """A dash behind the last one of a path, in one of the directions in which nothing is in its way."""
    along = last[1] - last[0]
    before = math.atan2(along[0], along[1])
    pivot = last[1] + margin * _direction(before)
    angles = before + _TURNS + math.radians(generator.uniform(-2.5, 2.5))
    ways = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    starts = pivot + margin * ways
    dashes = np.stack([starts, starts + style.dash * ways], axis=1)
    weights = np.cos(np.minimum(style.continuity * np.abs(angles - before), math.pi / 2)) ** 2
    reach = 3 * margin + 1.5 * style.dash + 1
    allowed = _is_inside(dashes, style.border, style.size)
    if others:
        all_others = np.array(others)
        near = all_others[((all_others.sum(1) / 2 - pivot) ** 2).sum(1) <= reach * reach]
        allowed &= _is_free(dashes, near, margin)
    # A sharp turn would bring it next to the one that it follows.
    allowed &= _distances(dashes, last[None])[:, 0] >= margin
    weights = weights * allowed
    total = weights.sum()
    if total < 1e-4:
        return None
    chosen = int(np.searchsorted(np.cumsum(weights), generator.random() * total))
    found: Floats = dashes[min(chosen, len(dashes) - 1)]
    return found


def _direction(angle: float) -> Floats:
    return np.array([math.sin(angle), math.cos(angle)])


def _dash_from(start: Floats, angle: float, length: float) -> Floats:
    return np.stack([start, start + length * _direction(angle)])


def _is_inside(dashes_C22: Floats, border: float, size: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.logical_and.reduce(
        (dashes_C22 >= border) & (dashes_C22 <= size - 1 - border), axis=(1, 2)
    )
    return found


def _is_free(dashes_C22: Floats, others: Sequence[Floats] | Floats, margin: int) -> NDArray[np.bool_]:
    if not len(others):
        return np.ones(len(dashes_C22), dtype=bool)
    free = _distances(dashes_C22, np.asarray(others)) >= 2 * margin + _MORE_ROOM
    found: NDArray[np.bool_] = np.logical_and.reduce(free, axis=1)
    return found


def _distances(a_C22: Floats, b_P22: Floats) -> Floats:
    """(C, P): between each two dashes; zero where they cross."""
    a, b = a_C22[:, None], b_P22[None]
    ends_of_a, ends_of_b = (np.moveaxis(each, -2, 0) for each in (a, b))
    nearest = np.minimum(_to_dash(ends_of_a, b[None]).min(0), _to_dash(ends_of_b, a[None]).min(0))
    found: Floats = np.where(_cross(a, b), 0.0, nearest)
    return found


def _to_dash(points: Floats, dashes: Floats) -> Floats:
    """From points (…, 2) to dashes (…, 2, 2)."""
    start, along = dashes[..., 0, :], dashes[..., 1, :] - dashes[..., 0, :]
    share = ((points - start) * along).sum(-1) / np.maximum((along * along).sum(-1), 1e-12)
    nearest = start + np.clip(share, 0, 1)[..., None] * along
    found: Floats = np.sqrt(((points - nearest) ** 2).sum(-1))
    return found


def _cross(a: Floats, b: Floats) -> NDArray[np.bool_]:
    def side(start: Floats, end: Floats, point: Floats) -> Floats:
        along, across = end - start, point - start
        found: Floats = along[..., 0] * across[..., 1] - along[..., 1] * across[..., 0]
        return found

    a0, a1, b0, b1 = a[..., 0, :], a[..., 1, :], b[..., 0, :], b[..., 1, :]
    parted: NDArray[np.bool_] = (side(a0, a1, b0) * side(a0, a1, b1) < 0) & (side(b0, b1, a0) * side(b0, b1, a1) < 0)
    return parted


def painted(drawing: Drawing, style: Style) -> NDArray[np.uint8]:
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


def _paint(image: Floats, dash: Floats, radius: float, contrast: float) -> None:
    low = np.maximum(np.floor(dash.min(0) - radius - 1), 0).astype(int)
    high = np.minimum(np.ceil(dash.max(0) + radius + 1), len(image) - 1).astype(int) + 1
    part: Any = np.s_[low[0] : high[0], low[1] : high[1]]
    points = np.moveaxis(np.asarray(np.mgrid[part], dtype=float), 0, -1)
    distance = _to_dash(points, dash[None, None])
    image[part] = np.maximum(image[part], contrast * np.clip(0.5 + radius - distance, 0, 1))
