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
from nystromformer.files.reading import read_bytes, too_large
from nystromformer.tasks.finetuning.encoded import without_breaks
from nystromformer.tasks.finetuning.examples import Texts

ARCHIVE_FILE = "aclImdb_v1.tar.gz"
FOLDER = "aclImdb"
SPLITS = ("train", "test")
LABELS = ("neg", "pos")
"""Folders of the reviews, in the order of the class numbers."""
OFFICIAL_SIZE = 25_000
"""Reviews of each split."""
MAX_REVIEW = 1 << 20
"""Bytes of a review; the longest of the official ones has 14,000."""
Review = tuple[int, int, int, str]
"""Class, number, rating and text."""
_BLOCK_BYTES = 1 << 20
_REVIEW = re.compile(r"(\d+)_(\d+)\.txt")
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
        UserError: there is no such data, an archive is damaged or cut off, a review is not UTF-8, over a MiB or not
            called <number>_<rating>.txt, or a split has no reviews of a label.
    """
    place = _find(source)
    files = _folder_files(place) if place.is_dir() else _archive_files(place)
    reviews: dict[str, list[Review]] = {split: [] for split in SPLITS}
    for where, (split, label, name), content in files:
        reviews[split].append((LABELS.index(label), *_number(where, name), _text(where, content, keep_breaks)))
    return {split: _texts(place, split, sorted(reviews[split])) for split in SPLITS}


def _find(source: Path) -> Path:
    """The folder with train/ and test/, or the archive."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise UserError(
            f"{source}: no such file or folder; expected {ARCHIVE_FILE}, or a folder with it. {_HOW_TO_GET}"
        )
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
    """Whether `split/label/name` is a review; hidden files, such as macOS' `._*`, are not."""
    if len(parts) != 3:
        return False
    split, label, name = parts
    return split in SPLITS and label in LABELS and name.endswith(".txt") and not name.startswith(".")


def _folder_files(folder: Path) -> Iterator[tuple[str, tuple[str, ...], bytes]]:
    for path in folder.glob("*/*/*.txt"):
        parts = path.relative_to(folder).parts
        if _is_review(parts):
            yield str(path), parts, read_bytes(path, MAX_REVIEW, "a review")


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
                where, parts = f"{path}: {member.name}", PurePosixPath(member.name).parts[-3:]
                if not _is_review(parts):
                    continue
                if member.size > MAX_REVIEW:
                    raise UserError(too_large(where, "a review", member.size, MAX_REVIEW))
                file = archive.extractfile(member) if member.isreg() else None
                if file is None:
                    raise UserError(f"{where}: expected a regular file, found a link or device")
                yield where, parts, file.read()
            # The checksum is at the end.
            while content.read(_BLOCK_BYTES):
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: the archive is damaged or cut off ({error}). Download it again; the official one has 84,125,825 "
            "bytes."
        ) from error


def _number(where: str, name: str) -> tuple[int, int]:
    match = _REVIEW.fullmatch(name)
    if match is None:
        raise UserError(f"{where}: expected a review called <number>_<rating>.txt, such as 123_4.txt")
    return int(match[1]), int(match[2])


def _text(where: str, content: bytes, keep_breaks: bool) -> str:
    try:
        text = content.decode("utf-8")
        return text if keep_breaks else without_breaks(text)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: expected UTF-8, found the byte 0x{content[error.start]:02x} at offset {error.start}: the file "
            f"is damaged or was converted. Get the official {ARCHIVE_FILE} again."
        ) from None


def _texts(place: Path, split: str, reviews: Sequence[Review]) -> Texts:
    labels, numbers, ratings, texts = zip(*reviews, strict=True) if reviews else ((), (), (), ())
    for number, label in enumerate(LABELS):
        if number not in labels:
            raise UserError(f"{place}: expected reviews in {split}/{label}/*.txt, found none. {_HOW_TO_GET}")
    ids = [f"{LABELS[label]}/{number}_{rating}" for label, number, rating in zip(labels, numbers, ratings, strict=True)]
    return Texts(f"IMDB {split}", texts, labels=np.asarray(labels, dtype=np.int64), ids=ids)
