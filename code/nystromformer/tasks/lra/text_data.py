"""IMDB's reviews as bytes: whether one is positive."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.tasks.imdb.read import check_sizes, read_imdb
from nystromformer.tasks.lra.sources import carve
from nystromformer.tasks.lra.stored import Example

KINDS, CLASSES = 256, 2
LENGTH = 4096
"""Bytes that the Long Range Arena keeps of a sequence."""
VALIDATION_SHARE = 0.1


def read_reviews(
    source: Path, validate_on_test: bool, partial: bool, seed: int
) -> tuple[dict[str, Sequence[Example]], list[str]]:
    """The splits, and why figures on them may not compare with others.

    Args:
        source: as `read_imdb` takes it.
        validate_on_test: take the test reviews as validation data, too, as the authors of the paper did.
        partial: take fewer reviews than IMDB has.
        seed: which tenth of the training reviews is validation data otherwise.

    Raises:
        UserError: as `read_imdb`; an empty review; and, unless `partial`, other numbers of reviews than IMDB's.
    """
    texts = read_imdb(source, keep_breaks=True)
    examples = {}
    for split, those in texts.items():
        assert those.labels is not None
        assert those.ids is not None
        empty = [number for number, text in zip(those.ids, those.first, strict=True) if not text]
        if empty:
            raise UserError(f"{source}: {those.name}: expected text in every review, found none in {empty[0]}")
        examples[split] = [
            ([text.encode("utf-8")], int(label)) for text, label in zip(those.first, those.labels, strict=True)
        ]
    warnings = check_sizes(texts)
    if warnings and not partial:
        raise UserError(
            f"{source}: {'; '.join(warnings)}: is it whole? With --partial the reviews are taken, and every result "
            "says so."
        )
    if validate_on_test:
        warnings.append("validated on the test reviews, as the authors did: the test is none")
        return {"train": examples["train"], "validation": examples["test"], "test": examples["test"]}, warnings
    train, validation = carve(len(examples["train"]), [VALIDATION_SHARE], seed, 1)
    return {
        "train": list(_chosen(examples["train"], train)),
        "validation": list(_chosen(examples["train"], validation)),
        "test": examples["test"],
    }, warnings


def _chosen(examples: Sequence[Example], numbers: NDArray[np.int64]) -> Iterator[Example]:
    for number in numbers.tolist():
        yield examples[number]
