"""Pathfinder's data: drawn, or the Long Range Arena's pictures; each pixel a token from 0 to 255, row by row."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial as partial_of
from pathlib import Path

import numpy as np

from nystromformer.errors import UserError
from nystromformer.tasks.lra.pathfinder import Style, draw, find_style, paint, pixels_of_path
from nystromformer.tasks.lra.prepare import RELEASE, carve, compare_sizes, prepare_drawn, prepare_read
from nystromformer.tasks.lra.recipe import PATH
from nystromformer.tasks.lra.store import SPLITS, Example, Manifest, TaskData
from nystromformer.wording import number_of

PATHFINDER = TaskData("pathfinder", 2, {"train": 160_000, "validation": 20_000, "test": 20_000})
PATH_PIXELS = replace(PATHFINDER, task=PATH, sequences=2)
_BASELINE = 6
"""Dashes of a long path in the release's curv_baseline."""


def draw_pathfinder(folder: Path, style: Style, sizes: Mapping[str, int], seed: int, workers: int) -> Manifest:
    """Draw Pathfinder into a folder.

    Args:
        sizes: examples of each split.

    Raises:
        UserError: as `prepare_drawn`.
    """
    usual = find_style(style.size)
    warning = "drawn here with the Long Range Arena's parameters: its own pictures are others"
    if style != usual:
        shown = f"paths of {style.contour} dashes " + ("and" if style.distractors else "without") + " distractors"
        official = f"the Long Range Arena's have {usual.contour} and distractors"
        warning = f"not the Long Range Arena's Pathfinder: {shown}; {official}"
    warnings = [warning, *compare_sizes(sizes, PATHFINDER.official)]
    drawing, settings = partial_of(draw_example, style, seed), {"seed": seed, **asdict(style)}
    return prepare_drawn(folder, PATHFINDER, drawing, settings, sizes, workers, warnings)


def draw_example(style: Style, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
    """Pixels and label of a picture of a split."""
    drawing = draw(random.Random(f"pathfinder {seed} {split} {number} {attempt}"), style)
    return paint(drawing, style).tobytes(), drawing.label


def draw_path_pixels(folder: Path, style: Style, sizes: Mapping[str, int], seed: int, workers: int) -> Manifest:
    """The same with a label of each pixel."""
    drawing, settings = partial_of(draw_path_example, style, seed), {"seed": seed, **asdict(style)}
    warnings = ["not a task of the Long Range Arena"]
    return prepare_drawn(folder, PATH_PIXELS, drawing, settings, sizes, workers, warnings)


def draw_path_example(style: Style, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
    """Pixels, and which of them are on the marked path, of a picture of a split; its label is 1: one path has both
    marks.
    """
    drawing = draw(random.Random(f"{PATH} {seed} {split} {number} {attempt}"), style)
    drawing = replace(drawing, marked=(drawing.marked[0], drawing.marked[0]))
    return paint(drawing, style).tobytes() + pixels_of_path(drawing, style).tobytes(), drawing.label


def read_pathfinder(folder: Path, release: Path, size: int, contour: int, partial: bool, seed: int) -> Manifest:
    """Take Pathfinder from the release into a folder: four fifths of the pictures are training data, a tenth each the
    others.

    Args:
        partial: take fewer pictures than the release has.

    Raises:
        UserError: metadata or pictures are missing or malformed; as `prepare_read`.
    """
    name = "curv_baseline" if contour == _BASELINE else f"curv_contour_length_{contour}"
    inside = Path(f"pathfinder{size}", name)
    places = [release / inside, release / RELEASE / inside, release / name]
    place = next((each for each in places if any(each.glob("metadata/*.npy"))), None)
    if place is None:
        raise UserError(f"{release}: expected pictures of Pathfinder, found no {inside}/metadata/*.npy")
    pictures, empty = list_pictures(place)
    official = sum(PATHFINDER.official.values())
    if len(pictures) + empty != official and not partial:
        raise UserError(
            f"{release}: expected {official:,} pictures, found {len(pictures):,}. --partial accepts them, and then "
            "every result says so."
        )
    parts = zip(SPLITS, carve(len(pictures), 2, seed, 3), strict=True)
    chosen = {split: read_pictures([pictures[n] for n in part.tolist()], size) for split, part in parts}
    warnings = [f"{number_of(empty, 'picture')} of the release without content left out"] if empty else []
    usual = find_style(size).contour
    if contour != usual:
        warnings.insert(
            0, f"not the Long Range Arena's Pathfinder: paths of {contour} dashes; it takes those with {usual}"
        )
    settings = {"size": size, "contour": contour}
    # Their number was checked above, with those that are left out.
    return prepare_read(folder, PATHFINDER, release, chosen, settings, True, seed, warnings=warnings)


def list_pictures(folder: Path) -> tuple[list[tuple[Path, int]], int]:
    """The pictures that the metadata name, and their labels; the metadata are lines of text, for all their ending.

    Returns:
        Those that are not empty, and how many are, which the Long Range Arena leaves out, too.

    Raises:
        UserError: a line without folder, file, number and label; says where.
    """
    found, empty = [], 0
    for path in sorted(folder.glob("metadata/*.npy"), key=lambda path: (len(path.stem), path.stem)):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            words = line.split()
            if len(words) < 4 or words[3] not in ("0", "1"):
                raise UserError(
                    f"{path}, line {number}: expected a folder, a file, a number and a label, found {line[:60]!r}"
                )
            picture = folder / words[0] / words[1]
            if picture.is_file() and not picture.stat().st_size:
                empty += 1
            else:
                found.append((picture, int(words[3])))
    return found, empty


def read_pictures(pictures: Sequence[tuple[Path, int]], size: int) -> Iterator[Example]:
    """Pixels and labels.

    Raises:
        UserError: a picture is missing, damaged, or of another size.
    """
    from matplotlib.image import imread

    for path, label in pictures:
        try:
            pixels = np.asarray(imread(path))
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{path}: expected a PNG: {error}") from None
        if pixels.ndim == 3:
            pixels = pixels[..., 0]
        if pixels.shape != (size, size):
            raise UserError(f"{path}: expected {size} x {size} pixels, found {' x '.join(map(str, pixels.shape))}")
        # matplotlib gives a PNG's bytes as shares of 255.
        yield [np.rint(pixels * 255).astype(np.uint8).tobytes()], label
