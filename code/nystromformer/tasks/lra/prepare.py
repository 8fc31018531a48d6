"""Preparing a task's data into a folder, whole or not at all: examples that are drawn, or read from a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.files.reading import is_there
from nystromformer.runs.store import Store, write_folder
from nystromformer.tasks.lra.drawing import Draw, NoMoreExamples, draw_splits
from nystromformer.tasks.lra.store import (
    MANIFEST_FILE,
    SPLITS,
    VALIDATE_ON_LAST,
    Example,
    Manifest,
    StoredSplit,
    open_stored,
    split_files,
    write_manifest,
    write_split,
)
from nystromformer.wording import number_of

PICTURE = "samples.png"
"""Some examples of Pathfinder."""
Picture = Callable[[Path, StoredSplit], None]
"""Draws them."""

RELEASE = "lra_release"
"""The folder that the release unpacks to, and which it has in it once more."""
HELD_OUT = 0.1
"""Share of the training examples for each split that a source lacks."""
_STREAM = 40


@dataclass(frozen=True)
class TaskData:
    """What the examples of a task are."""

    task: str
    classes: int
    official: Mapping[str, int]
    """Examples of each split in the Long Range Arena."""
    kinds: int = 256
    """Of token."""
    sequences: int = 1
    """Of an example."""
    length: int | None = None
    """Bytes that the Long Range Arena keeps of a sequence; None: all."""
    draw: int = 2
    """Of the training examples that are held out: other numbers are other draws."""


def prepare_drawn(
    folder: Path,
    data: TaskData,
    draw: Draw,
    settings: Mapping[str, Any],
    sizes: Mapping[str, int],
    workers: int,
    warnings: list[str],
    picture: Picture | None = None,
) -> Manifest:
    """Draw a task's data into a folder, or resume it.

    Args:
        settings: all that decides what `draw` gives.
        sizes: examples of each split.
        workers: processes.
        warnings: why results do not compare with published ones.
        picture: draws some of the training examples.

    Raises:
        UserError: the folder is not free, or examples cannot be drawn.
    """
    settings = {"task": data.task, **settings, "sizes": dict(sizes)}

    def write(store: Store) -> Manifest:
        splits = draw_splits(store, draw, sizes, data.kinds, data.classes, workers, data.sequences)
        return Manifest(data.task, data.kinds, data.classes, data.sequences, "drawn", settings, splits, warnings)

    return _prepare(folder, data.task, settings, write, picture)


def prepare_read(
    folder: Path,
    data: TaskData,
    place: Path | str,
    origin: str,
    sources: Mapping[str, Iterable[Example]],
    settings: Mapping[str, Any],
    partial: bool,
    seed: int,
    longest: int | None = None,
    warnings: Sequence[str] = (),
    picture: Picture | None = None,
) -> Manifest:
    """Read a task's data into a folder; splits without a source are cut from the training examples.

    Args:
        place: what is read, as messages call it.
        origin: what it is, in words.
        sources: of the examples of each split; read once the folder is known to be free.
        partial: take splits of other sizes than the official ones.
        seed: decides which training examples are held out.
        longest: tokens that a sequence keeps; None: all.
        warnings: what else keeps results from comparing with published ones.
        picture: draws some of the training examples.

    Raises:
        UserError: the folder is not free; as the sources; a split without examples, or, unless `partial`, of another
            size.
    """
    missing = [split for split in SPLITS if split not in sources]
    settings = {**settings, "seed": seed, "length": longest, "carved": missing}

    def write(store: Store) -> Manifest:
        examples = dict(sources)
        if missing:
            # One token more than is kept says that a sequence is cut.
            end = None if longest is None else longest + 1
            everything = [([each[:end] for each in whole], label) for whole, label in examples["train"]]
            count = len(everything)
            if settings.get(VALIDATE_ON_LAST):
                parts = np.split(np.arange(count), [count - max(1, round(HELD_OUT * count))])
            else:
                parts = carve(count, len(missing), seed, data.draw)
            for split, part in zip(("train", *missing), parts, strict=True):
                examples[split] = [everything[number] for number in part.tolist()]
        splits = {
            split: write_split(store.whole, split, examples[split], data.kinds, data.classes, data.sequences, longest)
            for split in SPLITS
        }
        sizes = {split: facts.examples for split, facts in splits.items()}
        is_empty = 0 in sizes.values()
        if is_empty or (sizes != data.official and not partial):
            found, expected = (" / ".join(f"{each[split]:,}" for split in SPLITS) for each in (sizes, data.official))
            advice = "" if is_empty else " --partial accepts them, and then every result says so."
            raise UserError(
                f"{place}: expected {expected} examples of training, validation and test, found {found}: is the "
                f"source complete?{advice}"
            )
        said = list(warnings)
        if longest != data.length:
            said.append(f"sequences have at most {longest:,} bytes (--length), the Long Range Arena's {data.length:,}")
        said += compare_sizes(sizes, data.official)
        if "test" in missing:
            said.append(f"{' and '.join(missing)} cut from the training examples: the source has none of its own")
        return Manifest(data.task, data.kinds, data.classes, data.sequences, origin, settings, splits, said)

    source = str(place.resolve() if isinstance(place, Path) else place)
    return _prepare(folder, data.task, {**settings, "source": source, "partial": partial}, write, picture)


def find_files(
    folder: Path, subfolder: str, names: Mapping[str, Sequence[str]], partial: bool, what: str
) -> tuple[Path, dict[str, list[Path]]]:
    """The files of each split that there are, and their folder: the given one, or the one of a name in it or in a
    release in it.

    Args:
        names: of the files, by split.
        partial: whether files may be missing, but not all of training.
        what: the files, as messages call them.

    Raises:
        UserError: one is missing that may not be (lists which were looked for), or is no file.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with {subfolder}/{names['train'][0]}")
    places = (folder, folder / subfolder, folder / RELEASE / subfolder)
    place = next((each for each in places if is_there(each / names["train"][0])), None)
    if place is None:
        place = places[1] if places[1].is_dir() else folder
    found = {split: [place / name for name in files if is_there(place / name)] for split, files in names.items()}
    missing = [name for files in names.values() for name in files if not (place / name).is_file()]
    if missing and not (partial and found["train"]):
        advice = (
            " With --partial the missing splits are cut from the training examples, and every result says so."
            if found["train"]
            else ""
        )
        raise UserError(
            f"{place}: expected {what}, found no {', '.join(missing)}; looked for "
            f"{', '.join(name for files in names.values() for name in files)}.{advice}"
        )
    return place, {split: files for split, files in found.items() if files}


def carve(count: int, parts: int, seed: int, key: int) -> list[NDArray[np.int64]]:
    """Numbers 0 … count-1 divided at random: what is left, and then so many parts of `HELD_OUT` of them each.

    Args:
        seed, key: decide which go where.
    """
    order = permute(np.arange(count), count, seed, _STREAM, key) if count > 1 else np.arange(count)
    size = max(1, round(HELD_OUT * count))
    if parts * size >= count:
        raise UserError(f"{count} examples are too few to be divided into training, validation and test")
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
    task: str,
    facts: Mapping[str, Any],
    write: Callable[[Store], Manifest],
    picture: Picture | None,
) -> Manifest:
    """Have the files of a task's data written, and give them their names in a folder; one command at a time.

    Args:
        facts: all that decides what the data are.
        write: writes all splits into the store's folder of whole files.

    Raises:
        UserError: the folder is not free; as the store, and as `write`. Finished parts stay, unless there are too few
            different examples.
    """
    files = [path for split in SPLITS for path in split_files(folder, split).values()]

    def write_all(store: Store) -> list[str]:
        manifest = write(store)
        write_manifest(store.whole, manifest)
        if picture is None:
            return [*(path.name for path in files), MANIFEST_FILE]
        picture(store.whole / PICTURE, StoredSplit(store.whole, "train", manifest.splits["train"], manifest.sequences))
        return [*(path.name for path in files), PICTURE, MANIFEST_FILE]

    taken = [folder / MANIFEST_FILE, *files, folder / PICTURE]
    write_folder(folder, f"experiments/lra/prepare.py {task}", facts, taken, write_all, NoMoreExamples)
    return open_stored(folder, task).manifest


def describe(folder: Path, manifest: Manifest) -> str:
    """What a command says at its end: of each split how many, how long, what was cut, and the labels."""
    lines = []
    for split, facts in manifest.splits.items():
        labels = ", ".join(f"{100 * count / facts.examples:.1f} %" for count in facts.labels)
        sequences = facts.examples * manifest.sequences
        cut = f", {facts.cut:,} cut ({100 * facts.cut / sequences:.1f} %)" if facts.cut else ""
        lines.append(
            f"{split}: {number_of(facts.examples, 'example')}, {facts.shortest:,} to {facts.longest:,} tokens, "
            f"{facts.tokens / sequences:,.0f} on average{cut}; classes {labels}"
        )
    lines += [f"warning: {text}" for text in manifest.warnings]
    return "\n".join([*lines, f"data: {folder}"])
