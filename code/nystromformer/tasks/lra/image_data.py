"""CIFAR-10 in grey: the 1,024 pixels of a picture, row by row, each a token from 0 to 255.

A black pixel is a value like any other: nothing here stands for padding.
"""

import io
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.hub import load_split
from nystromformer.errors import UserError, first_line
from nystromformer.tasks.lra.prepare import HELD_OUT, find_files, prepare_read
from nystromformer.tasks.lra.store import VALIDATE_ON_LAST, Example, Manifest, TaskData

IMAGE = TaskData("image", 10, {"train": 45_000, "validation": 5_000, "test": 10_000})
SIDE = 32
_BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
HUB = "uoft-cs/cifar10"
"""CIFAR-10's name on the hub."""
_CHANNELS = np.array([0.2989, 0.5870, 0.1140])
"""Of red, green and blue, as TensorFlow's rgb_to_grayscale weighs them, which the Long Range Arena calls."""


def read_image(folder: Path, cifar: Path, partial: bool, seed: int, validate_on_last: bool = False) -> Manifest:
    """Take CIFAR-10 in grey into a folder.

    Args:
        cifar: the folder of its files, or "hub", the Hugging Face hub.
        validate_on_last: validate on the last tenth of the training pictures, in place of one that is drawn.

    Raises:
        UserError: files are missing or malformed; as `prepare_read`.
    """
    place: Path | str = "the Hugging Face hub"
    pictures: dict[str, Iterable[Example]]
    if str(cifar) == "hub":
        pictures = {split: read_hub(split) for split in ("train", "test")}
    else:
        place, files = find_files(cifar, "cifar-10-batches-py", _BATCHES, partial)
        pictures = {split: read_pictures(*paths) for split, paths in files.items()}
    if validate_on_last:
        everything = list(pictures["train"])
        count = max(1, round(HELD_OUT * len(everything)))
        pictures |= {"train": everything[:-count], "validation": everything[-count:]}
    settings = {"validation_share": HELD_OUT, VALIDATE_ON_LAST: validate_on_last}
    return prepare_read(folder, IMAGE, place, pictures, settings, partial, seed)


class _Pickled:
    """Stands for numpy's dtype and array: keeps what the pickle says, which is checked before numpy sees it."""

    state: Any = None

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state

    def array(self) -> NDArray[np.uint8]:
        """Of an array of bytes."""
        _, shape, kind, is_fortran, content = self.state
        content = content.encode("latin1") if isinstance(content, str) else content
        if kind.arguments[0] != "u1" or is_fortran:
            raise ValueError("an array of another type than bytes")
        return np.frombuffer(content, np.uint8).reshape(shape)


_STANDINS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Pickled,
    ("numpy._core.multiarray", "_reconstruct"): _Pickled,
    ("numpy", "ndarray"): _Pickled,
    ("numpy", "dtype"): _Pickled,
    ("_codecs", "encode"): lambda text, encoding="latin1": str(text).encode("latin1"),
}
"""By what a pickle of arrays names. Nothing of it is called: what stands for it only keeps what it is given."""


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STANDINS:
            return _STANDINS[module, name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of CIFAR-10 does")


def read_pictures(*paths: Path) -> Iterator[Example]:
    """The grey pictures of some of CIFAR-10's files and their classes.

    Raises:
        UserError: a pickle with anything but arrays and plain values, or without pictures and their classes.
    """
    for path in paths:
        try:
            data = _Restricted(io.BytesIO(path.read_bytes()), encoding="latin1").load()
            values = {key.decode() if isinstance(key, bytes) else key: value for key, value in data.items()}
            greys = convert_to_grey(values["data"].array().reshape(-1, 3 * SIDE * SIDE))
            examples = list(zip(greys, map(int, values["labels"]), strict=True))
            if not all(0 <= label < IMAGE.classes for _, label in examples):
                raise ValueError(f"expected classes from 0 to {IMAGE.classes - 1}")
        except Exception as error:  # a damaged pickle raises whatever its opcodes run into
            raise UserError(f"{path}: expected a file of CIFAR-10, found something else: {error}") from None
        for grey, label in examples:
            yield [grey.tobytes()], label


def read_hub(split: str) -> Iterator[Example]:
    """The grey pictures of a split, train or test, of CIFAR-10 on the Hugging Face hub, and their classes.

    Raises:
        UserError: it cannot be loaded.
    """
    try:
        for row in load_split(HUB, None, split):
            pixels = np.asarray(row["img"], dtype=np.uint8)
            (grey,) = convert_to_grey(pixels.transpose(2, 0, 1).reshape(1, 3 * SIDE * SIDE))
            yield [grey.tobytes()], int(row["label"])
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"--cifar hub: {split} cannot be loaded from {HUB}: {first_line(error)}. It needs a network; without one, "
            "give --cifar the folder of CIFAR-10's files"
        ) from error


def convert_to_grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(pictures, 3 x 1024), the channels one after another, to (pictures, 1024): scaled to 1, weighed, scaled back to
    bytes as TensorFlow scales, by 255.5 and rounding down.
    """
    channels = pixels.reshape(-1, 3, SIDE * SIDE).astype(np.float32) / np.float32(255)
    grey = np.tensordot(channels, _CHANNELS.astype(np.float32), axes=(1, 0))
    return (grey * np.float32(255.5)).astype(np.uint8)
