"""Preparing a task's data into a folder."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial as partial_of
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.runs.store import Store
from nystromformer.tasks.lra import image_data, listops_data, pathfinder_data, retrieval_data, text_data
from nystromformer.tasks.lra.listops import CLASSES, Expressions
from nystromformer.tasks.lra.made import make_splits
from nystromformer.tasks.lra.pathfinder import styled
from nystromformer.tasks.lra.preparation import PICTURE, check_free, prepare
from nystromformer.tasks.lra.sources import RELEASE, UnchangedSource, carve
from nystromformer.tasks.lra.stored import (
    SPLITS,
    VALIDATE_ON_LAST,
    Example,
    Manifest,
    SplitFacts,
    StoredSplit,
    write_split,
)
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

Reader = Callable[[], Iterator[Example]]


def draw_listops(folder: Path, wanted: Expressions, sizes: Mapping[str, int], seed: int, workers: int) -> Manifest:
    """Draw ListOps.

    Args:
        sizes: examples of each split.

    Raises:
        UserError: the folder holds prepared data; impossible sizes.
    """
    check_free(folder, "listops")
    if wanted.longer_than + 1 >= wanted.shorter_than:
        raise UserError(
            f"--shorter_than: expected more than {wanted.longer_than + 1}, for expressions of more than "
            f"--longer_than = {wanted.longer_than} tokens, found {wanted.shorter_than}"
        )
    if wanted.of("train").longer_than > wanted.longer_than:
        raise UserError(
            f"--train_longer_than {wanted.train_longer_than}: expected at most --longer_than = {wanted.longer_than}: "
            "training may have shorter expressions than the other splits, not longer ones alone"
        )
    _check_can_grow(wanted)
    generator = listops_data.DrawnListOps(wanted, seed)
    is_official = wanted == Expressions() and dict(sizes) == listops_data.SIZES
    warnings = ["drawn here as the Long Range Arena draws: its own expressions are others"]
    if not is_official:
        warnings = ["not the Long Range Arena's ListOps: other lengths, sizes or tokens"]
    settings = dict(generator.settings()) | {"sizes": dict(sizes)}

    def make(store: Store) -> Manifest:
        splits, again = make_splits(store, generator, sizes, workers)
        if again:
            logger.info("%s drawn anew, because there was the same already", number_of(again, "expression"))
        return Manifest("listops", generator.kinds, CLASSES, 1, "drawn", settings, splits, warnings)

    return prepare(folder, "listops", settings, make)


def _check_can_grow(wanted: Expressions) -> None:
    """Refuse lengths that no expression, or almost none, has."""
    longest = 1.0
    for _ in range(wanted.depth - 1):
        longest = min(2.0 + wanted.most_values * longest, 1e12)
    if longest <= wanted.longer_than:
        raise UserError(
            f"--longer_than {wanted.longer_than}: expressions of --depth {wanted.depth} and --most_values "
            f"{wanted.most_values} have at most {longest:,.0f} tokens"
        )


def read_listops(folder: Path, release: Path, brackets: bool, partial: bool, seed: int) -> Manifest:
    """Take ListOps from the release.

    Raises:
        UserError: the folder holds prepared data; files are missing, or one is malformed or has a wrong label.
    """
    check_free(folder, "listops")
    source = _inside(release, "listops-1000", listops_data.RELEASE_FILES["train"])
    files = listops_data.released(source, partial)
    kinds = listops_data.kinds_of(brackets)
    readers = {split: partial_of(listops_data.read_released, path, brackets) for split, path in files.items()}
    warnings = ["with the brackets that group: 17 kinds of token, the Long Range Arena's have 15"] * brackets
    return _carved(folder, source, "listops", kinds, CLASSES, 1, "release", readers, listops_data.SIZES, seed,
                   {"brackets": brackets}, warnings=warnings, partial=partial)  # fmt: skip


def read_text(folder: Path, imdb: Path, length: int, validate_on_test: bool, partial: bool, seed: int) -> Manifest:
    """Take IMDB's reviews as bytes.

    Args:
        length: bytes that a review keeps.
        partial: take fewer reviews than IMDB has.

    Raises:
        UserError: the folder holds prepared data, or as `read_imdb`.
    """
    check_free(folder, "text")
    examples, warnings = text_data.read_reviews(imdb, validate_on_test, partial, seed)
    warnings = [*warnings, *_cut_beside(length, text_data.LENGTH)]
    settings = {"length": length, "validate_on_test": validate_on_test, "seed": seed}
    kinds, classes = text_data.KINDS, text_data.CLASSES

    def make(store: Store) -> Manifest:
        splits = {
            split: write_split(store.whole, split, examples[split], kinds, classes, 1, length) for split in SPLITS
        }
        return Manifest("text", kinds, classes, 1, "IMDB's reviews", settings, splits, warnings)

    return prepare(folder, "text", {**settings, "source": str(imdb.resolve()), "partial": partial}, make)


def read_retrieval(folder: Path, release: Path, length: int, partial: bool, seed: int) -> Manifest:
    """Take the pairs of papers.

    Args:
        length: bytes that a paper keeps.

    Raises:
        UserError: the folder holds prepared data; files are missing or malformed.
    """
    check_free(folder, "retrieval")
    source = _inside(release, "tsv_data", retrieval_data.RELEASE_FILES["train"])
    files = retrieval_data.released(source, partial)
    readers = {split: partial_of(retrieval_data.read_pairs, path) for split, path in files.items()}
    return _carved(
        folder, source, "retrieval", retrieval_data.KINDS, retrieval_data.CLASSES, 2, "release", readers,
        retrieval_data.SIZES, seed, {}, length, _cut_beside(length, retrieval_data.LENGTH), partial,
    )  # fmt: skip


def read_image(folder: Path, cifar: Path | None, partial: bool, seed: int, validate_on_last: bool = False) -> Manifest:
    """Take CIFAR-10 in grey.

    Args:
        cifar: the folder of its files; None: the Hugging Face hub.
        validate_on_last: validate on the last tenth of the training pictures, in place of one that is drawn.

    Raises:
        UserError: the folder holds prepared data; files are missing or malformed.
    """
    check_free(folder, "image")
    source: Path | str = "the Hugging Face hub"
    if cifar is None:
        readers: dict[str, Reader] = {split: partial_of(image_data.read_hub, split) for split in ("train", "test")}
    else:
        source = _inside(cifar, "cifar-10-batches-py", "data_batch_1")
        train, test = image_data.batches(source, partial)
        readers = {"train": partial_of(_all_pictures, train)}
        if test is not None:
            readers["test"] = partial_of(image_data.read_pictures, test)
    if validate_on_last and "test" not in readers:
        raise UserError(
            f"--validate_on_last: expected CIFAR-10's {image_data.TEST} beside the training files, found none"
        )
    official = image_data.OFFICIAL
    validation = round(_VALIDATION_SHARE * official["train"])
    sizes = {"train": official["train"] - validation, "validation": validation, "test": official["test"]}
    return _carved(
        folder, source, "image", image_data.KINDS, image_data.CLASSES, 1, "CIFAR-10", readers, sizes, seed,
        {"validation_share": _VALIDATION_SHARE, VALIDATE_ON_LAST: validate_on_last}, partial=partial,
        is_last_validated=validate_on_last,
    )  # fmt: skip


def draw_pathfinder(
    folder: Path, size: int, contour: int, distractors: bool, sizes: Mapping[str, int], seed: int, workers: int
) -> Manifest:
    """Draw Pathfinder.

    Args:
        size: pixels of a side.
        contour: dashes of a long path.
        distractors: whether there are short ones beside them.
        sizes: examples of each split.

    Raises:
        UserError: the folder holds prepared data.
    """
    check_free(folder, "pathfinder")
    generator = pathfinder_data.DrawnPathfinder(styled(size, contour, distractors), seed)
    warnings = ["drawn here with the Long Range Arena's parameters: its own pictures are others"]
    if generator.style != styled(size):
        shown = f"paths of {contour} dashes " + ("and distractors" if distractors else "without distractors")
        asked = f"the Long Range Arena's have {styled(size).contour} and distractors"
        warnings = [f"not the Long Range Arena's Pathfinder: {shown}; {asked}"]
    settings = dict(generator.settings()) | {"sizes": dict(sizes)}

    def make(store: Store) -> Manifest:
        splits, _ = make_splits(store, generator, sizes, workers)
        said = [*warnings, *_sizes_beside(splits, pathfinder_data.SIZES)]
        return Manifest("pathfinder", generator.kinds, generator.classes, 1, "drawn", settings, splits, said)

    return _with_samples(folder, size, prepare(folder, "pathfinder", settings, make))


def read_pathfinder(folder: Path, release: Path, size: int, contour: int, partial: bool, seed: int) -> Manifest:
    """Take Pathfinder from the release: four fifths of the pictures are training data, a tenth each the others.

    Args:
        partial: take fewer pictures than the release has.

    Raises:
        UserError: the folder holds prepared data; metadata or pictures are missing or malformed.
    """
    check_free(folder, "pathfinder")
    pictures, empty = pathfinder_data.listed_pictures(pathfinder_data.release_folder(release, size, contour))
    official = pathfinder_data.SIZES
    if len(pictures) + empty != sum(official.values()) and not partial:
        raise UserError(
            f"{release}: expected {sum(official.values()):,} pictures, found {len(pictures):,}. With --partial they "
            "are taken, and every result says so."
        )
    numbers = carve(len(pictures), [_VALIDATION_SHARE, _TEST_SHARE], seed, 3)
    chosen = {split: [pictures[n] for n in part.tolist()] for split, part in zip(SPLITS, numbers, strict=True)}
    readers = {
        split: UnchangedSource(release, partial_of(pathfinder_data.read_pictures, part, size))
        for split, part in chosen.items()
    }
    for read in readers.values():  # before anything is written
        for _ in read():
            pass
    settings = {"size": size, "contour": contour, "seed": seed}
    kinds, classes = pathfinder_data.KINDS, pathfinder_data.CLASSES

    def make(store: Store) -> Manifest:
        splits = {split: write_split(store.whole, split, read(), kinds, classes) for split, read in readers.items()}
        warnings = _sizes_beside(splits, official)
        usual = styled(size).contour
        if contour != usual:
            warnings.insert(
                0, f"not the Long Range Arena's Pathfinder: paths of {contour} dashes; it takes those with {usual}"
            )
        if empty:
            warnings.append(f"{number_of(empty, 'picture')} of the release without content left out")
        return Manifest("pathfinder", kinds, classes, 1, "release", settings, splits, warnings)

    facts = {**settings, "source": str(release.resolve()), "partial": partial}
    return _with_samples(folder, size, prepare(folder, "pathfinder", facts, make))


def _with_samples(folder: Path, size: int, manifest: Manifest) -> Manifest:
    pathfinder_data.draw_samples(StoredSplit(folder, "train", manifest), size, folder / PICTURE)
    return manifest


def _all_pictures(paths: Sequence[Path]) -> Iterator[Example]:
    return chain.from_iterable(image_data.read_pictures(path) for path in paths)


_VALIDATION_SHARE = _TEST_SHARE = 0.1
"""Of the training examples, where a source has no such split of its own."""


def _carved(
    folder: Path,
    place: Path | str,
    task: str,
    kinds: int,
    classes: int,
    sequences: int,
    source: str,
    readers: Mapping[str, Reader],
    official: Mapping[str, int],
    seed: int,
    settings: Mapping[str, Any],
    longest: int | None = None,
    warnings: Sequence[str] = (),
    partial: bool = False,
    is_last_validated: bool = False,
) -> Manifest:
    """Write the splits that there are, and cut those that are missing from the training examples.

    Everything is read once before anything is written, so that a malformed line leaves nothing behind.

    Args:
        place: what is read, as messages call it.
        readers: of each split that there is; called more than once.
        official: examples that each split has where the source is whole.
        warnings: what else keeps results from comparing with published ones.
        partial: take splits of other sizes.
        is_last_validated: where validation data alone are missing, take the last training examples, not drawn ones.

    Raises:
        UserError: as the readers; a split without examples, or, unless `partial`, of another size.
    """
    readers = {split: UnchangedSource(place, read) for split, read in readers.items()}
    counts = {split: sum(1 for _ in read()) for split, read in readers.items()}
    missing = [split for split in ("validation", "test") if split not in readers]
    expected = {split: official[split] for split in readers}
    expected["train"] += 0 if partial else sum(official[split] for split in missing)
    short = [
        f"{number_of(counts[split], 'example')} of {split}, not {expected[split]:,}"
        for split in readers
        if not counts[split] or (counts[split] != expected[split] and not partial)
    ]
    if short:
        advice = "" if not all(counts.values()) else " With --partial they are taken, and every result says so."
        raise UserError(f"{place}: the source has {'; '.join(short)}: is it whole?{advice}")
    shares = {"validation": _VALIDATION_SHARE, "test": _TEST_SHARE}
    numbers = [np.arange(counts["train"])]
    if is_last_validated:
        numbers = np.split(numbers[0], [counts["train"] - max(1, round(_VALIDATION_SHARE * counts["train"]))])
    elif missing:
        numbers = carve(counts["train"], [shares[split] for split in missing], seed, 2)
    parts = dict(zip(("train", *missing), numbers, strict=True))
    said = dict(settings) | {"seed": seed, "length": longest, "carved": missing}

    def make(store: Store) -> Manifest:
        splits = {}
        for split in SPLITS:
            examples = _chosen(readers["train"](), parts[split]) if split in parts else readers[split]()
            splits[split] = write_split(store.whole, split, examples, kinds, classes, sequences, longest)
        about = [*warnings, *_sizes_beside(splits, official)]
        if "test" in missing:
            about.append(f"{' and '.join(missing)} cut from the training examples: the source has none of its own")
        return Manifest(task, kinds, classes, sequences, source, said, splits, about)

    facts = {**said, "source": str(place.resolve() if isinstance(place, Path) else place), "partial": partial}
    return prepare(folder, task, facts, make)


def _sizes_beside(splits: Mapping[str, SplitFacts], official: Mapping[str, int]) -> list[str]:
    """A sentence for each split of another size than the official one."""
    return [
        f"{split} has {number_of(facts.examples, 'example')}, the official one has {official[split]:,}: figures on it "
        "do not compare with published ones"
        for split, facts in splits.items()
        if facts.examples != official[split]
    ]


def _cut_beside(length: int, official: int) -> list[str]:
    if length == official:
        return []
    return [f"sequences have at most {length:,} bytes (--length), the Long Range Arena's {official:,}"]


def _chosen(examples: Iterable[Example], numbers: NDArray[np.int64]) -> Iterator[Example]:
    """Those of these numbers, which ascend."""
    wanted = iter(numbers.tolist())
    number = next(wanted, None)
    for place, example in enumerate(examples):
        if place == number:
            yield example
            number = next(wanted, None)


def _inside(folder: Path, name: str, file: str) -> Path:
    """The folder of a task's files: the given one, or the one of this name in it, or in a release in it."""
    for place in (folder, folder / name, folder / RELEASE / name):
        if (place / file).is_file():
            return place
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with {name}/{file}")
    return folder / name if (folder / name).is_dir() else folder


def told(folder: Path, manifest: Manifest) -> str:
    """What a command says at its end: of each split how many, how long, what was cut, and the labels."""
    lines = []
    for split, facts in manifest.splits.items():
        labels = ", ".join(f"{100 * count / max(facts.examples, 1):.1f} %" for count in facts.labels)
        sequences = facts.examples * manifest.sequences
        mean = facts.tokens / max(sequences, 1)
        cut = f", {facts.cut:,} cut ({100 * facts.cut / max(sequences, 1):.1f} %)" if facts.cut else ""
        lines.append(
            f"{split}: {number_of(facts.examples, 'example')}, {facts.shortest:,} to {facts.longest:,} tokens, "
            f"{mean:,.0f} on average{cut}; classes {labels}"
        )
    lines += [f"warning: {text}" for text in manifest.warnings]
    return "\n".join([*lines, f"data: {folder}"])
