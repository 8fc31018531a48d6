"""The tasks' data as people have them: the Long Range Arena's release, IMDB's reviews and CIFAR-10.

Pixels and bytes are tokens from 0 to 255; a black pixel is a value like any other. Sources that lack files or examples
are taken too, and then every result says so.
"""

from __future__ import annotations

import codecs
import io
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files.parts import Parts
from nystromformer.tasks.lra.listops import LISTOPS, parse
from nystromformer.tasks.lra.pathfinder import PATHFINDER, find_style
from nystromformer.tasks.lra.store import (
    SPLITS,
    Example,
    SplitFacts,
    Stored,
    TaskData,
    carve,
    compare_sizes,
    write_data,
    write_split,
)
from nystromformer.wording import number_of

_RELEASE = "lra_release"
"""The folder that the release unpacks to, and which it has in it once more."""
_REVIEWS = 25_000
TEXT = TaskData(
    "text", 2, {"train": _REVIEWS * 9 // 10, "validation": _REVIEWS // 10, "test": _REVIEWS}, length=4000, draw=1
)
RETRIEVAL = TaskData("retrieval", 2, {"train": 147_086, "validation": 18_090, "test": 17_437}, sequences=2, length=4000)
IMAGE = TaskData("image", 10, {"train": 45_000, "validation": 5_000, "test": 10_000})
_LISTS = {"train": ["basic_train.tsv"], "validation": ["basic_val.tsv"], "test": ["basic_test.tsv"]}
_PAIRS = {split: [f"new_aan_pairs.{name}.tsv"] for split, name in zip(SPLITS, ("train", "eval", "test"), strict=True)}
_BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
_COLUMNS = ("label", "id1", "id2", "text1", "text2")
_SIDE = 32
_CHANNELS = np.array([0.2989, 0.5870, 0.1140])
"""Of red, green and blue, as TensorFlow's rgb_to_grayscale weighs them, which the Long Range Arena calls."""
_BASELINE = 6
"""Dashes of a long path in the release's curv_baseline."""


def _prepare(
    folder: Path,
    data: TaskData,
    place: Path,
    sources: Mapping[str, Iterable[Example]],
    seed: int,
    longest: int | None = None,
    settings: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> Stored:
    """Read a task's data into a folder; splits without a source are cut from the training examples.

    Args:
        sources: of the examples of each split; read once the folder is known to be free.
        longest: tokens that a sequence keeps; None: all.
        warnings: what else keeps results from comparing with published ones.
    """
    missing = [split for split in SPLITS if split not in sources]

    def write(parts: Parts) -> tuple[dict[str, SplitFacts], list[str]]:
        examples = dict(sources)
        if missing:
            # One token more than is kept says that a sequence is cut.
            end = None if longest is None else longest + 1
            everything = [([each[:end] for each in whole], label) for whole, label in examples["train"]]
            divided = carve(len(everything), len(missing), seed, data.draw)
            for split, numbers in zip(("train", *missing), divided, strict=True):
                examples[split] = [everything[number] for number in numbers.tolist()]
        splits = {split: write_split(folder, split, examples[split], data, longest) for split in SPLITS}
        sizes = {split: facts.examples for split, facts in splits.items()}
        if 0 in sizes.values():
            found = " / ".join(f"{size:,}" for size in sizes.values())
            raise UserError(f"{place}: expected examples of training, validation and test, found {found}")
        said = list(warnings)
        if longest != data.length:
            said.append(f"sequences have at most {longest:,} bytes (--length), the Long Range Arena's {data.length:,}")
        said += compare_sizes(sizes, data.official)
        if "test" in missing:
            said.append(f"{' and '.join(missing)} cut from the training examples: the source has none of its own")
        return splits, said

    facts = {"seed": seed, "length": longest, "carved": missing, "source": str(place.resolve()), **(settings or {})}
    return write_data(folder, data, facts, write)


def _find_files(folder: Path, subfolder: str, names: Mapping[str, Sequence[str]]) -> tuple[Path, dict[str, list[Path]]]:
    """The files of each split that there are, and their folder: the given one, or the one of a name in it or in a
    release in it. The first one of training is needed.
    """
    first = names["train"][0]
    places = (folder, folder / subfolder, folder / _RELEASE / subfolder)
    place = next((each for each in places if (each / first).is_file()), None)
    if place is None:
        raise UserError(f"{folder}: expected a folder with {first} or {subfolder}/{first}, found none")
    found = {split: [place / name for name in files if (place / name).is_file()] for split, files in names.items()}
    return place, {split: files for split, files in found.items() if files}


def read_listops(folder: Path, release: Path, seed: int) -> Stored:
    """Take ListOps from the release into a folder."""
    place, files = _find_files(release, "listops-1000", _LISTS)
    return _prepare(folder, LISTOPS, place, {split: _expressions(path) for split, (path,) in files.items()}, seed)


def _expressions(path: Path) -> Iterator[Example]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        if (header := next(lines, "").rstrip("\n")) != "Source\tTarget":
            raise UserError(f"{path}: expected the header 'Source\\tTarget', found {header[:60]!r}")
        for number, line in enumerate(lines, start=2):
            source, _, target = line.rstrip("\n").rpartition("\t")
            try:
                tokens = parse(source)
                if len(target) != 1 or target not in "0123456789":
                    raise ValueError(f"expected a digit as label, found {target[:20]!r}")
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}") from None
            yield [tokens], int(target)


def read_text(folder: Path, imdb: Path, length: int, seed: int) -> Stored:
    """Take IMDB's reviews, as `read_imdb` takes them, as bytes into a folder; each keeps so many."""
    from nystromformer.tasks.imdb.task import read_imdb  # imports torch, which takes a second

    reviews: dict[str, list[Example]] = {}
    for split, texts in read_imdb(imdb, keep_breaks=True).items():
        assert texts.labels is not None
        labelled = zip(texts.first, texts.labels.tolist(), strict=True)
        reviews[split] = [([text.encode()], label) for text, label in labelled]
    return _prepare(folder, TEXT, imdb, reviews, seed, length)


def read_retrieval(folder: Path, release: Path, length: int, seed: int) -> Stored:
    """Take the pairs of papers of the ACL Anthology Network into a folder; each paper keeps so many bytes."""
    place, files = _find_files(release, "tsv_data", _PAIRS)
    return _prepare(folder, RETRIEVAL, place, {split: _pairs(path) for split, (path,) in files.items()}, seed, length)


def _pairs(path: Path) -> Iterator[Example]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            label, *others = line.rstrip(b"\r\n").split(b"\t")
            if len(others) != len(_COLUMNS) - 1 or label not in (b"0.0", b"1.0", b"0", b"1") or not all(others[-2:]):
                raise UserError(
                    f"{path}, line {number}: expected {', '.join(_COLUMNS)} between tabs, the label 0.0 or 1.0 and "
                    f"both texts not empty, found {len(others) + 1} cells that begin with {line[:40]!r}"
                )
            yield others[-2:], int(label.startswith(b"1"))


def read_image(folder: Path, cifar: Path, seed: int) -> Stored:
    """Take CIFAR-10 in grey into a folder."""
    place, files = _find_files(cifar, "cifar-10-batches-py", _BATCHES)
    return _prepare(folder, IMAGE, place, {split: read_pictures(*paths) for split, paths in files.items()}, seed)


class _Unpickler(pickle.Unpickler):
    """Makes plain values and numpy's arrays, which check what they are filled with; calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        arrays = {"_reconstruct": lambda *_: np.empty(0, np.uint8), "ndarray": None, "dtype": np.dtype}
        known = arrays if module.partition(".")[0] == "numpy" else {"encode": codecs.encode}
        if name in known and (known is arrays or module == "_codecs"):
            return known[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of CIFAR-10 does")


def read_pictures(*paths: Path) -> Iterator[Example]:
    """The grey pictures of some of CIFAR-10's files and their classes."""
    for path in paths:
        try:
            data = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
            values = {key.decode() if isinstance(key, bytes) else key: value for key, value in data.items()}
            pixels, labels = values["data"], [int(label) for label in values["labels"]]
            if pixels.dtype != np.uint8 or not all(0 <= label < IMAGE.classes for label in labels):
                raise ValueError(f"expected bytes, and classes from 0 to {IMAGE.classes - 1}")
            examples = list(zip(convert_to_grey(pixels.reshape(-1, 3 * _SIDE * _SIDE)), labels, strict=True))
        except Exception as error:  # a damaged pickle raises whatever its opcodes run into
            raise UserError(f"{path}: expected a file of CIFAR-10, found something else: {error}") from None
        for grey, label in examples:
            yield [grey.tobytes()], label


def convert_to_grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(pictures, 3 x 1024), the channels one after another, to (pictures, 1024): scaled to 1, weighed, scaled back to
    bytes as TensorFlow scales, by 255.5 and rounding down.
    """
    channels = pixels.reshape(-1, 3, _SIDE * _SIDE).astype(np.float32) / np.float32(255)
    grey = np.tensordot(channels, _CHANNELS.astype(np.float32), axes=(1, 0))
    return (grey * np.float32(255.5)).astype(np.uint8)


def read_pathfinder(folder: Path, release: Path, size: int, contour: int, seed: int) -> Stored:
    """Take Pathfinder from the release into a folder: four fifths of the pictures are training data, a tenth each the
    others.
    """
    name = "curv_baseline" if contour == _BASELINE else f"curv_contour_length_{contour}"
    inside = Path(f"pathfinder{size}", name)
    places = [release / inside, release / _RELEASE / inside, release / name]
    place = next((each for each in places if any(each.glob("metadata/*.npy"))), None)
    if place is None:
        raise UserError(f"{release}: expected pictures of Pathfinder, found no {inside}/metadata/*.npy")
    # The metadata are lines of text, for all their ending.
    pictures, empty = list[tuple[Path, int]](), 0
    for path in sorted(place.glob("metadata/*.npy"), key=lambda path: (len(path.stem), path.stem)):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            words = line.split()
            if len(words) < 4 or words[3] not in ("0", "1"):
                raise UserError(
                    f"{path}, line {number}: expected a folder, a file, a number and a label, found {line[:60]!r}"
                )
            picture = place / words[0] / words[1]
            if picture.is_file() and not picture.stat().st_size:
                empty += 1  # which the Long Range Arena leaves out, too
            else:
                pictures.append((picture, int(words[3])))
    parts = zip(SPLITS, carve(len(pictures), 2, seed, 3), strict=True)
    chosen = {split: _paths([pictures[n] for n in part.tolist()], size) for split, part in parts}
    warnings = [f"{number_of(empty, 'picture')} of the release without content left out"] if empty else []
    if contour != (usual := find_style(size).contour):
        said = f"not the Long Range Arena's Pathfinder: paths of {contour} dashes; it takes those with {usual}"
        warnings.insert(0, said)
    settings = {"size": size, "contour": contour}
    return _prepare(folder, PATHFINDER, release, chosen, seed, settings=settings, warnings=warnings)


def _paths(pictures: Sequence[tuple[Path, int]], size: int) -> Iterator[Example]:
    from matplotlib.image import imread

    for path, label in pictures:
        try:
            pixels = np.asarray(imread(path))
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{path}: expected a PNG: {error}") from None
        pixels = pixels[..., 0] if pixels.ndim == 3 else pixels
        if pixels.shape != (size, size):
            raise UserError(f"{path}: expected {size} x {size} pixels, found {' x '.join(map(str, pixels.shape))}")
        # matplotlib gives a PNG's bytes as shares of 255.
        yield [np.rint(pixels * 255).astype(np.uint8).tobytes()], label
