"""The two tasks on texts, byte by byte: whether one of IMDB's reviews is positive (Text), and whether one of two papers
of the ACL Anthology Network cites the other (Retrieval).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.tasks.imdb.task import OFFICIAL_SIZE, read_imdb
from nystromformer.tasks.lra.prepare import find_files, prepare_read
from nystromformer.tasks.lra.store import SPLITS, Example, Manifest, TaskData

_HELD_OUT = OFFICIAL_SIZE // 10
_SIZES = {"train": OFFICIAL_SIZE - _HELD_OUT, "validation": _HELD_OUT, "test": OFFICIAL_SIZE}
TEXT = TaskData("text", 2, _SIZES, length=4000, draw=1)
RETRIEVAL = TaskData("retrieval", 2, {"train": 147_086, "validation": 18_090, "test": 17_437}, sequences=2, length=4000)
_RELEASE_FILES = {
    "train": ["new_aan_pairs.train.tsv"],
    "validation": ["new_aan_pairs.eval.tsv"],
    "test": ["new_aan_pairs.test.tsv"],
}
_COLUMNS = ("label", "id1", "id2", "text1", "text2")
_LABELS = (b"0.0", b"1.0", b"0", b"1")


def read_text(folder: Path, imdb: Path, length: int, validate_on_test: bool, partial: bool, seed: int) -> Manifest:
    """Take IMDB's reviews as bytes into a folder.

    Args:
        imdb: as `read_imdb` takes it.
        length: bytes that a review keeps.
        validate_on_test: take the test reviews as validation data, too, as the authors of the paper did, in place of a
            tenth of the training reviews.
        partial: take fewer reviews than IMDB has.

    Raises:
        UserError: as `read_imdb` and `prepare_read`.
    """
    data, warnings = TEXT, []
    reviews: dict[str, list[Example]] = {}
    for split, texts in read_imdb(imdb, keep_breaks=True).items():
        assert texts.labels is not None
        labelled = zip(texts.first, texts.labels.tolist(), strict=True)
        reviews[split] = [([text.encode()], label) for text, label in labelled]
    if validate_on_test:
        data = replace(TEXT, official=dict.fromkeys(SPLITS, OFFICIAL_SIZE))
        reviews["validation"] = reviews["test"]
        warnings = ["validated on the test reviews, as the authors did: the test is none"]
    settings = {"validate_on_test": validate_on_test}
    return prepare_read(folder, data, imdb, reviews, settings, partial, seed, length, warnings)


def read_retrieval(folder: Path, release: Path, length: int, partial: bool, seed: int) -> Manifest:
    """Take the pairs of papers into a folder.

    Args:
        length: bytes that a paper keeps.

    Raises:
        UserError: files are missing or malformed; as `prepare_read`.
    """
    place, files = find_files(release, "tsv_data", _RELEASE_FILES, partial)
    pairs = {split: read_pairs(path) for split, (path,) in files.items()}
    return prepare_read(folder, RETRIEVAL, place, pairs, {}, partial, seed, length)


def read_pairs(path: Path) -> Iterator[Example]:
    """The pairs of a file.

    Raises:
        UserError: a line with other columns, another label, or without text; says where.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            label, *others = line.rstrip(b"\r\n").split(b"\t")
            if len(others) != len(_COLUMNS) - 1 or label not in _LABELS or not all(others[-2:]):
                raise UserError(
                    f"{path}, line {number}: expected {', '.join(_COLUMNS)} between tabs, the label 0.0 or 1.0 and "
                    f"both texts not empty, found {len(others) + 1} cells that begin with {line[:40]!r}"
                )
            yield others[-2:], int(label.startswith(b"1"))
