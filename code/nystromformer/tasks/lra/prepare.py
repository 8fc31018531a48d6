"""Preparing a task's data into a folder, whole or not at all: examples that are drawn, or read from a source."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial as partial_of
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import permute
from nystromformer.data.preprocessing.pool import Made, make_parts
from nystromformer.errors import UserError
from nystromformer.files.checked_json import write_checked
from nystromformer.files.parts import PARTS, Parts, open_parts
from nystromformer.files.writing import NewFile
from nystromformer.tasks.lra.store import (
    MANIFEST_FILE,
    SPLITS,
    Example,
    Manifest,
    SplitFacts,
    TaskData,
    open_stored,
    split_files,
    write_split,
)
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

RELEASE = "lra_release"
"""The folder that the release unpacks to, and which it has in it once more."""
HELD_OUT = 0.1
"""Share of the training examples for each split that a source lacks."""
_STREAM = 40
Draw = Callable[[str, int, int], tuple[bytes, int]]
"""Tokens and label of an example, a pure function of its split, its number and the attempt at it; pickles."""
_CHUNK = 1000
"""Drawn examples of a part."""
_HEAD = struct.Struct("<IB")
"""Of an example in a part: how many tokens it has, and its label; the tokens follow, a byte each."""
_MOST_ATTEMPTS = 100
"""At an example that there is already."""


def prepare_drawn(
    folder: Path,
    data: TaskData,
    draw: Draw,
    settings: Mapping[str, Any],
    sizes: Mapping[str, int],
    workers: int,
    warnings: list[str],
) -> Manifest:
    """Draw a task's data into a folder, or resume it.

    Args:
        settings: all that decides what `draw` gives.
        sizes: examples of each split.
        workers: processes.
        warnings: why results do not compare with published ones.

    Raises:
        UserError: the folder is not free, or examples cannot be drawn.
    """

    return _prepare(
        folder,
        data,
        {**settings, "sizes": dict(sizes)},
        lambda parts: (_draw_splits(folder, parts, draw, sizes, data, workers), warnings),
    )


def _draw_splits(
    folder: Path, parts: Parts, draw: Draw, sizes: Mapping[str, int], data: TaskData, workers: int
) -> dict[str, SplitFacts]:
    """Draw the splits into a folder: the same for any number of processes, no example twice."""
    works = {
        f"{split}-{first}": partial_of(_draw_part, parts.folder, draw, split, range(first, min(first + _CHUNK, size)))
        for split, size in sizes.items()
        for first in range(0, size, _CHUNK)
    }
    make_parts(parts, works, workers, "drawing", verify=True)
    seen: set[bytes] = set()

    def different_examples(split: str) -> Iterator[Example]:
        """The examples of a split in their order, with others in the place of those that were seen."""
        repeated = 0
        drawn = (parts.read(f"{split}-{first}") for first in range(0, sizes[split], _CHUNK))
        for number, (tokens, label) in enumerate(chain.from_iterable(map(_examples_in, drawn))):
            attempt = 1
            while (digest := hashlib.blake2b(tokens, digest_size=16).digest()) in seen:
                if attempt == _MOST_ATTEMPTS:
                    raise UserError(
                        f"{split}: after {number} examples no different ones could be drawn: ask for fewer, or for "
                        "longer ones"
                    )
                tokens, label = draw(split, number, attempt)
                attempt += 1
            repeated += attempt - 1
            seen.add(digest)
            length = len(tokens) // data.sequences
            yield [tokens[start : start + length] for start in range(0, len(tokens), length)], label
        if repeated:
            logger.info("%s: %s drawn again to avoid repetitions", split, number_of(repeated, "example"))

    # What is tested on comes first: the training examples give way.
    splits = {split: write_split(folder, split, different_examples(split), data) for split in reversed(SPLITS)}
    return {split: splits[split] for split in SPLITS}


def _draw_part(folder: Path, draw: Draw, split: str, numbers: range) -> Made:
    with NewFile(folder / f"{split}-{numbers.start}") as file:
        for number in numbers:
            tokens, label = draw(split, number, 0)
            file.write(_HEAD.pack(len(tokens), label) + tokens)
    return {file.path: file.stamp}, {}


def _examples_in(part: bytes | None) -> Iterator[tuple[bytes, int]]:
    assert part is not None, "it was drawn"
    at = 0
    while at < len(part):
        size, label = _HEAD.unpack_from(part, at)
        at += _HEAD.size + size
        yield part[at - size : at], label


def prepare_read(
    folder: Path,
    data: TaskData,
    place: Path | str,
    sources: Mapping[str, Iterable[Example]],
    settings: Mapping[str, Any],
    partial: bool,
    seed: int,
    longest: int | None = None,
    warnings: Sequence[str] = (),
) -> Manifest:
    """Read a task's data into a folder; splits without a source are cut from the training examples.

    Args:
        place: what is read, as messages call it.
        sources: of the examples of each split; read once the folder is known to be free.
        partial: take splits of other sizes than the official ones.
        seed: decides which training examples are held out.
        longest: tokens that a sequence keeps; None: all.
        warnings: what else keeps results from comparing with published ones.

    Raises:
        UserError: the folder is not free; as the sources; a split without examples, or, unless `partial`, of another
            size.
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
        if 0 in sizes.values() or (sizes != data.official and not partial):
            found, expected = (" / ".join(f"{each[split]:,}" for split in SPLITS) for each in (sizes, data.official))
            raise UserError(
                f"{place}: expected {expected} examples of training, validation and test, found {found}; --partial "
                "accepts other sizes than the official ones, and then every result says so"
            )
        said = list(warnings)
        if longest != data.length:
            said.append(f"sequences have at most {longest:,} bytes (--length), the Long Range Arena's {data.length:,}")
        said += compare_sizes(sizes, data.official)
        if "test" in missing:
            said.append(f"{' and '.join(missing)} cut from the training examples: the source has none of its own")
        return splits, said

    source = str(place.resolve() if isinstance(place, Path) else place)
    facts = {**settings, "seed": seed, "length": longest, "carved": missing, "source": source, "partial": partial}
    return _prepare(folder, data, facts, write)


def find_files(
    folder: Path, subfolder: str, names: Mapping[str, Sequence[str]], partial: bool
) -> tuple[Path, dict[str, list[Path]]]:
    """The files of each split that there are, and their folder: the given one, or the one of a name in it or in a
    release in it.

    Args:
        names: of the files, by split.
        partial: whether files may be missing, but for the first one of training.

    Raises:
        UserError: one is missing that may not be; names it.
    """
    first = names["train"][0]
    places = (folder, folder / subfolder, folder / RELEASE / subfolder)
    place = next((each for each in places if (each / first).is_file()), None)
    if place is None:
        raise UserError(f"{folder}: expected a folder with {first} or {subfolder}/{first}, found none")
    found = {split: [place / name for name in files if (place / name).is_file()] for split, files in names.items()}
    missing = [name for files in names.values() for name in files if not (place / name).is_file()]
    if missing and not partial:
        raise UserError(
            f"{place}: found no {', '.join(missing)}. With --partial the missing splits are cut from the training "
            "examples, and every result says so."
        )
    return place, {split: files for split, files in found.items() if files}


def carve(count: int, parts: int, seed: int, key: int) -> list[NDArray[np.int64]]:
    """Numbers 0 … count-1 divided at random: what is left, and then so many parts of `HELD_OUT` of them each.

    Args:
        seed, key: decide which go where.
    """
    size = max(1, round(HELD_OUT * count))
    if parts * size >= count:
        raise UserError(f"{count} examples are too few to be divided into training, validation and test")
    order = permute(np.arange(count), count, seed, _STREAM, key)
    ends = [count - number * size for number in range(parts + 1)]
    held_out = [np.sort(order[end - size : end]) for end in ends[:-1]]
    return [np.sort(order[: ends[-1]]), *held_out]


def compare_sizes(sizes: Mapping[str, int], official: Mapping[str, int]) -> list[str]:
    """A sentence for each split of another size than the official one."""
    return [
        f"{split} has {number_of(size, 'example')}, the official one has {official[split]:,}: figures on it do not "
        "compare with published ones"
        for split, size in sizes.items()
        if size != official[split]
    ]


def _prepare(
    folder: Path,
    data: TaskData,
    settings: dict[str, Any],
    write: Callable[[Parts], tuple[dict[str, SplitFacts], list[str]]],
) -> Manifest:
    """Have the files of a task's data written into a folder, the manifest last.

    Args:
        settings: all that decides what the data are.
        write: writes all splits; gives also what results should warn of.

    Raises:
        UserError: the folder is not free; as `open_parts`, and as `write`. Finished parts stay.
    """
    results = [path for split in SPLITS for path in split_files(folder, split).values()] + [folder / MANIFEST_FILE]
    with open_parts(folder / PARTS, f"experiments/lra/prepare.py {data.task}", settings, results) as parts:
        if not (folder / MANIFEST_FILE).exists():
            splits, warnings = write(parts)
            write_checked(folder / MANIFEST_FILE, asdict(Manifest(data, settings, splits, warnings)))
        parts.remove()
    return open_stored(folder, data.task).manifest


def describe(folder: Path, manifest: Manifest) -> str:
    """What a command says at its end: of each split how many, how long, what was cut, and the labels."""
    lines = []
    for split, facts in manifest.splits.items():
        labels = ", ".join(f"{100 * count / facts.examples:.1f} %" for count in facts.labels)
        sequences = facts.examples * manifest.data.sequences
        cut = f", {facts.cut:,} cut ({100 * facts.cut / sequences:.1f} %)" if facts.cut else ""
        lines.append(
            f"{split}: {number_of(facts.examples, 'example')}, {facts.shortest:,} to {facts.longest:,} tokens, "
            f"{facts.tokens / sequences:,.0f} on average{cut}; classes {labels}"
        )
    lines += [f"warning: {text}" for text in manifest.warnings]
    return "\n".join([*lines, f"data: {folder}"])
