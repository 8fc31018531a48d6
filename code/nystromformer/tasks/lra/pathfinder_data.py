"""Pathfinder's data: drawn, or the Long Range Arena's pictures; each pixel a token from 0 to 255, row by row."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.errors import UserError
from nystromformer.files import write_figure
from nystromformer.tasks.lra.pathfinder import Style, draw, painted
from nystromformer.tasks.lra.sources import RELEASE
from nystromformer.tasks.lra.stored import Example, StoredSplit

KINDS, CLASSES = 256, 2
SIZES = {"train": 160_000, "validation": 20_000, "test": 20_000}
_LONGEST_LINE = 4096
_BASELINE = 6
"""Dashes of a long path in the release's curv_baseline."""


@dataclass(frozen=True)
class DrawnPathfinder:
    """Pictures of a seed's own."""

    style: Style
    seed: int
    kinds = KINDS
    classes = CLASSES

    def settings(self) -> Mapping[str, Any]:
        return {"task": "pathfinder", "seed": self.seed, **asdict(self.style)}

    def example(self, split: str, number: int, attempt: int) -> Example:
        drawing = draw(random.Random(f"pathfinder {self.seed} {split} {number} {attempt}"), self.style)
        return [painted(drawing, self.style).tobytes()], drawing.label


def release_folder(release: Path, size: int, contour: int) -> Path:
    """The folder of a release with the pictures of a size and length of path.

    Raises:
        UserError: it is not there, or has no metadata.
    """
    name = "curv_baseline" if contour == _BASELINE else f"curv_contour_length_{contour}"
    inside = Path(f"pathfinder{size}", name)
    places = [release / inside, release / RELEASE / inside, release / name, release]
    for place in places:
        if (place / "metadata").is_dir() and any((place / "metadata").glob("*.npy")):
            its_own = _contour_of(place.resolve().name)
            if its_own not in (None, contour):
                raise UserError(
                    f"{place}: has paths of {its_own} dashes by its name, and {contour} were asked for: give "
                    f"--contour {its_own}, or another folder"
                )
            return place
    raise UserError(
        f"{release}: expected pictures of Pathfinder, found none; looked for metadata/*.npy in "
        f"{', '.join(str(place) for place in places)}"
    )


def _contour_of(name: str) -> int | None:
    """The dashes of a long path in a folder of the release, by its name; None: another name."""
    found = re.fullmatch(r"curv_contour_length_(\d+)", name)
    return _BASELINE if name == "curv_baseline" else int(found[1]) if found else None


def listed_pictures(folder: Path) -> tuple[list[tuple[Path, int]], int]:
    """The pictures that the metadata name, and their labels; the metadata are lines of text, for all their ending.

    Returns:
        Those that are not empty, and how many are, which the Long Range Arena leaves out, too.

    Raises:
        UserError: a line without folder, file, number and label; says where.
    """
    found = []
    empty = 0
    for path in sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem)):
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
                continue
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


def draw_samples(split: StoredSplit, size: int, path: Path) -> None:
    """A picture of some examples: those of one path above, those of two below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = split.labels
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 5)
    for row, (label, title) in enumerate(((1, "one path"), (0, "two paths"))):
        chosen = np.flatnonzero(labels == label)[: axes.shape[1]]
        for axis in axes[row]:
            axis.axis("off")
        for axis, example in zip(axes[row], chosen.tolist(), strict=False):
            axis.imshow(split.tokens(example).reshape(size, size), cmap="gray", vmin=0, vmax=255)
            axis.set_title(title, fontsize=9)
    write_figure(path, figure, dpi=110, exclusive=True)
