"""Sentiment of film reviews (Maas et al. 2011): validation is a part of train; test is used once, whole."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.tasks.documents.recipe import Answer, Recipe, write_split
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts, describe, encode, reduce, size_warning, without_breaks
from nystromformer.tasks.finetuning.examples import Examples, Texts, split_validation

LABELS = ("neg", "pos")
"""Folders of the reviews, in the order of the class numbers."""
OFFICIAL_SIZE = 25_000
_ANSWER = Answer("classes", LABELS)
_REVIEW = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")


class Imdb(Definition):
    """Positive or negative; a share of the training reviews, drawn by a seed, is held out to choose by."""

    kind = name = "imdb"
    main_metric = "accuracy"

    def __init__(self, source: Path, validation: float, split_seed: int) -> None:
        self.source = source
        self.choices = {"validation": validation, "split_seed": split_seed}
        self.target = _ANSWER.target()

    def load(self, loading: Loading) -> Splits:
        share, seed = self.choices["validation"], self.choices["split_seed"]
        rows, held_out = split_validation(self._texts["train"], share, seed)
        rows, reduced = reduce(rows, loading.train_rows)
        train, validation = encode(rows, loading), encode(held_out, loading)
        sizes = [size_warning(each.name, len(each), "review", OFFICIAL_SIZE) for each in self._texts.values()]
        notes = [describe(examples) for examples in (train, validation)]
        return Splits(train, {"": validation}, [*chain(*sizes), *reduced], notes, positive=LABELS[1])

    def texts(self) -> dict[str, Any]:
        return asdict(Recipe(_ANSWER, ("text",), ("label",), has_breaks=True))

    def test(self, loading: Loading) -> dict[str, Examples]:
        return {"test": encode(self._texts["test"], loading)}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`."""
        for name, key, examples in (("validation", "", splits.validation[""]), ("test", "test", test["test"])):
            assert isinstance(examples, EncodedTexts)
            write_split(folder / f"{name}.tsv", examples.texts, scores[key], _ANSWER)
        return self.metrics(scores["test"], torch.from_numpy(test["test"].labels))

    @cached_property
    def _texts(self) -> dict[str, Texts]:
        return read_imdb(self.source)


def read_imdb(source: Path, keep_breaks: bool = False) -> dict[str, Texts]:
    """The reviews of "train" and "test" of a folder with train/neg/*.txt and the like, at its top or in aclImdb/;
    sorted by label (0 for negative) and then by the number in their names, with ids such as "neg/123_4".

    Args:
        keep_breaks: leave line breaks (`<br />`) as they are; else each becomes a space.
    """
    reviews: dict[str, list[tuple[int, int, str, str]]] = {"train": [], "test": []}
    for path in source.glob("**/*.txt"):
        if match := _REVIEW.fullmatch(path.relative_to(source).as_posix()):
            split, label, number, rating = match.groups()
            try:
                text = path.read_bytes().decode()
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: {error}") from None
            text = text if keep_breaks else without_breaks(text)
            reviews[split].append((LABELS.index(label), int(number), f"{label}/{number}_{rating}", text))
    for split, found in reviews.items():
        if missing := [label for number, label in enumerate(LABELS) if number not in {each[0] for each in found}]:
            raise UserError(
                f"{source}: found no reviews in {split}/{missing[0]}/*.txt. Download aclImdb_v1.tar.gz from "
                "https://ai.stanford.edu/~amaas/data/sentiment/ and unpack it there"
            )
    columns = {split: list(zip(*sorted(found), strict=True)) for split, found in reviews.items()}
    return {
        split: Texts(f"IMDB {split}", texts, labels=np.asarray(labels, dtype=np.int64), ids=list(ids))
        for split, (labels, _, ids, texts) in columns.items()
    }
