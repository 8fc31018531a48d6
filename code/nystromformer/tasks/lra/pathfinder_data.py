"""Pathfinder's data: drawn, or the Long Range Arena's pictures; each pixel a token from 0 to 255, row by row."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial as partial_of
from itertools import zip_longest
from pathlib import Path

import numpy as np

from nystromformer.errors import UserError
from nystromformer.files.writing import write_figure
from nystromformer.tasks.lra.pathfinder import Style, draw, find_style, paint
from nystromformer.tasks.lra.prepare import (
    RELEASE,
    TaskData,
    carve,
    compare_sizes,
    prepare_drawn,
    prepare_read,
)
from nystromformer.tasks.lra.store import SPLITS, Example, Manifest, StoredSplit
from nystromformer.wording import number_of

PATHFINDER = TaskData("pathfinder", 2, {"train": 160_000, "validation": 20_000, "test": 20_000})
_LONGEST_LINE = 4096
_BASELINE = 6
"""Dashes of a long path in the release's curv_baseline."""


def draw_pathfinder(
    folder: Path, size: int, contour: int, distractors: bool, sizes: Mapping[str, int], seed: int, workers: int
) -> Manifest:
    """Draw Pathfinder into a folder.

    Args:
        size: pixels of a side.
        contour: dashes of a long path.
        distractors: whether there are short ones beside them.
        sizes: examples of each split.

    Raises:
        UserError: as `prepare_drawn`.
    """
    style = find_style(size, contour, distractors)
    warning = "drawn here with the Long Range Arena's parameters: its own pictures are others"
    if style != find_style(size):
        shown = f"paths of {contour} dashes " + ("and distractors" if distractors else "without distractors")
        official = f"the Long Range Arena's have {find_style(size).contour} and distractors"
        warning = f"not the Long Range Arena's Pathfinder: {shown}; {official}"
    warnings = [warning, *compare_sizes(sizes, PATHFINDER.official)]
    settings = {"seed": seed, **asdict(style)}
    drawing = partial_of(draw_example, style, seed)
    return prepare_drawn(folder, PATHFINDER, drawing, settings, sizes, workers, warnings, draw_samples)


def draw_example(style: Style, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
    """Pixels and label of a picture of a split."""
    drawing = draw(random.Random(f"pathfinder {seed} {split} {number} {attempt}"), style)
    return paint(drawing, style).tobytes(), drawing.label


def read_pathfinder(folder: Path, release: Path, size: int, contour: int, partial: bool, seed: int) -> Manifest:
    """Take Pathfinder from the release into a folder: four fifths of the pictures are training data, a tenth each the
    others.

    Args:
        partial: take fewer pictures than the release has.

    Raises:
        UserError: metadata or pictures are missing or malformed; as `prepare_read`.
    """
    pictures, empty = list_pictures(find_pictures(release, size, contour))
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
    return prepare_read(
        folder, PATHFINDER, release, "release", chosen, settings, True, seed, warnings=warnings, picture=draw_samples
    )


def find_pictures(release: Path, size: int, contour: int) -> Path:
    """The folder of a release with the pictures of a size and length of path.

    Raises:
        UserError: it is not there, or has no metadata.
    """
    name = "curv_baseline" if contour == _BASELINE else f"curv_contour_length_{contour}"
    inside = Path(f"pathfinder{size}", name)
    places = [release / inside, release / RELEASE / inside, release / name, release]
    place = next((each for each in places if any(each.glob("metadata/*.npy"))), None)
    if place is None:
        raise UserError(
            f"{release}: expected pictures of Pathfinder, found none; looked for metadata/*.npy in "
            f"{', '.join(str(place) for place in places)}"
        )
    own_name = place.resolve().name
    if own_name != name and (found := re.fullmatch(r"curv_(baseline|contour_length_(\d+))", own_name)):
        own = found[2] or _BASELINE
        raise UserError(
            f"{place}: its name says paths of {own} dashes, expected {contour}: give --contour {own}, or another folder"
        )
    return place


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
            words = line[:_LONGEST_LINE].split()
            if len(words) < 4 or words[3] not in ("0", "1"):
                raise UserError(
                    f"{path}, line {number}: expected a folder, a file, a number and a label, found {line[:60]!r}"
                )
            picture = folder / words[0] / words[1]
            if not picture.resolve().is_relative_to(folder.resolve()):
                raise UserError(f"{path}, line {number}: names a file outside of {folder}: {words[0]}/{words[1]}")
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
        except FileNotFoundError:
            raise UserError(f"{path}: no such picture, but the metadata name it") from None
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{path}: expected a PNG, found something else: {error}") from None
        if pixels.ndim == 3:
            pixels = pixels[..., 0]
        if pixels.shape != (size, size):
            raise UserError(f"{path}: expected {size} x {size} pixels, found {' x '.join(map(str, pixels.shape))}")
        # matplotlib gives a PNG's bytes as shares of 255.
        yield [np.rint(pixels * 255).astype(np.uint8).tobytes()], label


def draw_samples(path: Path, split: StoredSplit) -> None:
    """Draw some examples: those of one path above, those of two below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, label, title in zip(figure.subplots(2, 5), (1, 0), ("one path", "two paths"), strict=True):
        chosen = np.flatnonzero(split.labels == label).tolist()
        for axis, example in zip_longest(axes, chosen[: len(axes)]):
            axis.axis("off")
            if example is not None:
                pixels = split.tokens(example)
                side = round(len(pixels) ** 0.5)
                axis.imshow(pixels.reshape(side, side), cmap="gray", vmin=0, vmax=255)
                axis.set_title(title, fontsize=9)
    write_figure(path, figure, dpi=110)
