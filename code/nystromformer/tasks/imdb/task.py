"""IMDB reviews (Maas et al. 2011) as a fine-tuning task: validation is a part of train; test is used once, whole."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.recipe import Recipe
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts, at_least, describe, encode, reduce, size_warning
from nystromformer.tasks.finetuning.examples import Examples, Texts, split_validation
from nystromformer.tasks.finetuning.predictions import write_scored
from nystromformer.tasks.finetuning.target import Classes, Target
from nystromformer.tasks.imdb.read import LABELS, OFFICIAL_SIZE, read_imdb


class Imdb(Definition):
    """Positive or negative.

    Args:
        source: a folder or archive as `read_imdb` takes it.
        validation: the share of the training reviews that is held out to choose by.
        split_seed: which reviews those are.
        min_tokens: take only reviews of at least so many tokens, of training, validation and test data; None: all.
    """

    kind = "imdb"
    main_metric = "accuracy"

    def __init__(self, source: Path, validation: float, split_seed: int, min_tokens: int | None = None) -> None:
        self.source = source
        self.validation = validation
        self.split_seed = split_seed
        self.min_tokens = min_tokens
        # Other reviews are another task, whose figures do not stand beside those of all.
        self.choices = {"validation": validation, "split_seed": split_seed, "min_tokens": min_tokens}
        self.name = "imdb" if min_tokens is None else f"imdb-from-{min_tokens}"
        self.target: Target = Classes(len(LABELS))

    def load(self, loading: Loading) -> Splits:
        rows, held_out = split_validation(self._chosen("train", loading), self.validation, self.split_seed)
        rows, reduced = reduce(rows, loading.train_rows)
        train, validation = encode(rows, loading), encode(held_out, loading)
        notes = [describe(examples) for examples in (train, validation)]
        sizes = [size_warning(each.name, len(each), "review", OFFICIAL_SIZE) for each in self._texts.values()]
        return Splits(train, {"": validation}, [*chain(*sizes), *reduced], notes, positive=LABELS[1])

    def texts(self, loading: Loading) -> dict[str, Any]:
        return asdict(Recipe(Answer("classes", LABELS), ("text",), ("label",), has_breaks=True))

    def test(self, loading: Loading) -> dict[str, Examples]:
        return {"test": encode(self._chosen("test", loading), loading)}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`."""
        for name, examples in (("validation", splits.validation[""]), ("test", test["test"])):
            assert isinstance(examples, EncodedTexts)
            write_scored(folder / f"{name}.tsv", examples.texts, scores["" if name == "validation" else name], LABELS)
        labels = test["test"].labels
        assert labels is not None, "reviews are sorted by label"
        return self.metrics(scores["test"], torch.from_numpy(labels))

    def _chosen(self, split: str, loading: Loading) -> Texts:
        texts = self._texts[split]
        return texts if self.min_tokens is None else at_least(texts, self.min_tokens, loading.tokenizer)

    @cached_property
    def _texts(self) -> dict[str, Texts]:
        return read_imdb(self.source)
