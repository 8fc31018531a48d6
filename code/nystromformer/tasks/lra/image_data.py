"""CIFAR-10 in grey: the 1,024 pixels of a picture, row by row, each a token from 0 to 255.

A black pixel is a value like any other: nothing here stands for padding.
"""

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.bounded import read_bytes
from nystromformer.data.hub import load_split, reason_of
from nystromformer.errors import UserError
from nystromformer.tasks.lra.stored import Example

KINDS, CLASSES, SIDE = 256, 10, 32
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
HUB = "uoft-cs/cifar10"
"""CIFAR-10's name on the hub."""
OFFICIAL = {"train": 50_000, "test": 10_000}
_MOST_BYTES = 64 << 20
_CHANNELS = np.array([0.2989, 0.5870, 0.1140])
"""Of red, green and blue, as TensorFlow's rgb_to_grayscale weighs them, which the Long Range Arena calls."""


class _Kind:
    """Stands for numpy's dtype: its name alone."""

    def __init__(self, name: object, *others: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes have not."""


class _Bytes:
    """Stands for numpy's array: its shape and its bytes, checked before numpy sees them."""

    def __init__(self) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def array(self) -> NDArray[np.uint8]:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("an array without a shape and bytes")
        _, shape, kind, is_fortran, content = self.state
        content = content.encode("latin1") if isinstance(content, str) else content
        if not isinstance(kind, _Kind) or kind.name != "u1" or is_fortran or not isinstance(content, bytes):
            raise ValueError("an array of something else than bytes")
        return np.frombuffer(content, np.uint8).reshape(shape)


def _reconstructed(*whatever: object) -> _Bytes:
    return _Bytes()


def _encoded(text: object, encoding: object = "latin1") -> bytes:
    return str(text).encode("latin1")


_STANDING_FOR = {
    "_reconstruct": _reconstructed,
    "ndarray": _Bytes,
    "dtype": _Kind,
    "encode": _encoded,
}
_NAMED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""What a pickle of arrays names. Nothing of it is called: what stands for it only keeps what it is given."""


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _NAMED:
            return _STANDING_FOR[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of CIFAR-10 does")


def batches(folder: Path, partial: bool) -> tuple[list[Path], Path | None]:
    """The training files, and the one for testing, None where it is not there.

    Args:
        partial: whether some may be missing.

    Raises:
        UserError: one is missing that may not be; lists which were looked for.
    """
    train = [folder / name for name in BATCHES if (folder / name).is_file()]
    test = folder / TEST if (folder / TEST).is_file() else None
    missing = [name for name in (*BATCHES, TEST) if not (folder / name).is_file()]
    if missing and (not partial or not train):
        advice = (
            "With --partial splits are cut from what is there, and every result says so."
            if train
            else "Name their folder by --cifar; hub stands for the Hugging Face hub."
        )
        raise UserError(f"{folder}: expected CIFAR-10's files, found no {', '.join(missing)}. {advice}")
    return train, test


def read_pictures(path: Path) -> Iterator[Example]:
    """The grey pictures of one of CIFAR-10's files and their classes.

    Raises:
        UserError: a pickle with anything but arrays and plain values, or pictures of another size.
    """
    content = read_bytes(path, _MOST_BYTES, "a file of CIFAR-10")
    try:
        data = _Restricted(io.BytesIO(content), encoding="latin1").load()
        values = {key.decode() if isinstance(key, bytes) else key: value for key, value in dict(data).items()}
        if missing := {"data", "labels"} - values.keys():
            raise ValueError(f"no {' and no '.join(sorted(missing))}")
        if not isinstance(values["labels"], list):
            raise ValueError("labels that are no list")
        pixels = values["data"].array()
        labels = [label for label in values["labels"] if type(label) is int and 0 <= label < CLASSES]
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        raise UserError(f"{path}: expected a file of CIFAR-10, found something else: {error}") from None
    if pixels.ndim != 2 or pixels.shape[1] != 3 * SIDE * SIDE:
        raise UserError(f"{path}: expected pictures as rows of {3 * SIDE * SIDE} bytes, found {pixels.shape}")
    if not len(labels) == len(values["labels"]) == len(pixels):
        raise UserError(f"{path}: expected a class from 0 to {CLASSES - 1} for each of {len(pixels)} pictures")
    for grey, label in zip(in_grey(pixels), labels, strict=True):
        yield [grey.tobytes()], label


def read_hub(split: str) -> Iterator[Example]:
    """The grey pictures of a split, train or test, of CIFAR-10 on the Hugging Face hub, and their classes.

    Raises:
        UserError: it cannot be loaded.
    """
    try:
        rows = load_split(HUB, None, split)
        for row in rows:
            pixels = np.asarray(row["img"], dtype=np.uint8)
            (grey,) = in_grey(pixels.transpose(2, 0, 1).reshape(1, 3 * SIDE * SIDE))
            yield [grey.tobytes()], int(row["label"])
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"--cifar hub: {split} cannot be loaded from {HUB}: {reason_of(error)}. It needs a network; without one, "
            f"give --cifar the folder of CIFAR-10's files, {', '.join((*BATCHES, TEST))}"
        ) from error


def in_grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(pictures, 3 x 1024), the channels one after another, to (pictures, 1024): scaled to 1, weighed, scaled back to
    bytes as TensorFlow scales, by 255.5 and rounding down.
    """
    channels = pixels.reshape(-1, 3, SIDE * SIDE).astype(np.float32) / np.float32(255)
    grey = np.tensordot(channels, _CHANNELS.astype(np.float32), axes=(1, 0))
    return (grey * np.float32(255.5)).astype(np.uint8)
