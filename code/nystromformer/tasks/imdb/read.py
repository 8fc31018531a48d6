"""IMDB's reviews, from the official archive as it is or unpacked, and a validation split of them."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from nystromformer.errors import UserError, reading
from nystromformer.tasks.finetuning.encoded import without_breaks
from nystromformer.tasks.finetuning.examples import Texts

ARCHIVE_FILE = "aclImdb_v1.tar.gz"
FOLDER = "aclImdb"
SPLITS = ("train", "test")
LABELS = ("neg", "pos")
"""Folders of the reviews, in the order of the class numbers."""
OFFICIAL_SIZE = 25_000
"""Reviews of each split."""
Review = tuple[int, int, int, str]
"""Class, number, rating and text."""
_BLOCK_BYTES = 1 << 20
_REVIEW, _FILE = re.compile(r"(\d+)_(\d+)\.txt"), re.compile(r"[^.].*\.txt")
_HOW_TO_GET = (
    f"Download {ARCHIVE_FILE} from https://ai.stanford.edu/~amaas/data/sentiment/ and put it there; it need not be "
    "unpacked."
)


def read_imdb(source: Path, keep_breaks: bool = False) -> dict[str, Texts]:
    """Read the reviews; `unsup` is left out.

    Args:
        source: the folder with train/ and test/, one that contains it as aclImdb/ or contains aclImdb_v1.tar.gz, or
            that archive, which is read without being unpacked.
        keep_breaks: leave line breaks (`<br />`) as they are; else each becomes a space.

    Returns:
        "train" and "test", the same from a folder and an archive: reviews sorted by label and then by the number in
        their names; labels 0 for negative and 1 for positive; ids such as "neg/123_4".

    Raises:
        UserError: there is no such data, an archive is damaged or cut off, a review is not UTF-8 or not called
            <number>_<rating>.txt, or a split has no reviews of a label.
    """
    place = _find(source)
    files = _folder_files(place) if place.is_dir() else _archive_files(place)
    reviews: dict[str, list[Review]] = {split: [] for split in SPLITS}
    for where, (split, label, name), content in files:
        match = _REVIEW.fullmatch(name)
        if match is None:
            raise UserError(f"{where}: expected a review called <number>_<rating>.txt, such as 123_4.txt")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: expected UTF-8, found {error.reason} at offset {error.start}") from None
        text = text if keep_breaks else without_breaks(text)
        reviews[split].append((LABELS.index(label), int(match[1]), int(match[2]), text))
    return {split: _texts(place, split, sorted(reviews[split])) for split in SPLITS}


def _find(source: Path) -> Path:
    """The folder with train/ and test/, or the archive."""
    if source.is_file():
        return source
    for folder in (source, source / FOLDER):
        if any((folder / split).is_dir() for split in SPLITS):
            return folder
    if (source / ARCHIVE_FILE).is_file():
        return source / ARCHIVE_FILE
    raise UserError(
        f"{source}: found no reviews; looked for {ARCHIVE_FILE}, {FOLDER}/train/pos/*.txt and train/pos/*.txt. "
        f"{_HOW_TO_GET}"
    )


def _is_review(parts: tuple[str, ...]) -> bool:
    """Whether `split/label/name` is a review; macOS' `._*` are not."""
    return len(parts) == 3 and parts[0] in SPLITS and parts[1] in LABELS and bool(_FILE.fullmatch(parts[2]))


def _folder_files(folder: Path) -> Iterator[tuple[str, tuple[str, ...], bytes]]:
    for path in folder.glob("*/*/*.txt"):
        parts = path.relative_to(folder).parts
        if _is_review(parts):
            yield str(path), parts, path.read_bytes()


def _archive_files(path: Path) -> Iterator[tuple[str, tuple[str, ...], bytes]]:
    """The reviews of a tar.gz, which is read as a stream: nothing is unpacked."""
    try:
        # Not tarfile's own "r|gz": that does not notice a wrong checksum or a missing end.
        with (
            reading(path),
            gzip.open(path) as content,
            tarfile.open(fileobj=content, mode="r|", errorlevel=2) as archive,
        ):
            for member in archive:
                parts = PurePosixPath(member.name).parts[-3:]
                if _is_review(parts) and (file := archive.extractfile(member)) is not None:
                    yield f"{path}: {member.name}", parts, file.read()
            # The checksum is at the end.
            while content.read(_BLOCK_BYTES):
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: the archive is damaged or cut off ({error}). Download it again; the official one has 84,125,825 "
            "bytes."
        ) from error


def _texts(place: Path, split: str, reviews: Sequence[Review]) -> Texts:
    labels, numbers, ratings, texts = zip(*reviews, strict=True) if reviews else ((), (), (), ())
    for number, label in enumerate(LABELS):
        if number not in labels:
            raise UserError(f"{place}: expected reviews in {split}/{label}/*.txt, found none. {_HOW_TO_GET}")
    ids = [f"{LABELS[label]}/{number}_{rating}" for label, number, rating in zip(labels, numbers, ratings, strict=True)]
    return Texts(f"IMDB {split}", texts, labels=np.asarray(labels, dtype=np.int64), ids=ids)
