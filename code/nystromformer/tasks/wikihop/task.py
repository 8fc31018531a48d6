"""WikiHop as a fine-tuning task: which of an instance's candidates answers its query."""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import size_warning
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.target import Candidates, Target
from nystromformer.tasks.wikihop.chunks import add_special_tokens
from nystromformer.tasks.wikihop.examples import WikiHopExamples
from nystromformer.tasks.wikihop.read import read_instances
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

_VALIDATION_STREAM = 31


class WikiHop(Definition):
    """One of the candidates, of a folder with train.json, dev.json and, where there is one, test.json without answers.

    Args:
        validation: hold out this share of train.json to choose by, drawn by `split_seed`, so that dev.json is used
            once; None: choose by dev.json.
    """

    kind = name = "wikihop"
    main_metric = "accuracy"

    def __init__(self, source: Path, validation: float | None, split_seed: int) -> None:
        self.source, self.validation, self.split_seed = source, validation, split_seed
        self.target: Target = Candidates()
        self.choices = {"held_out": validation}
        self._examples = cache(self._read)  # Tokenising takes minutes.

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return add_special_tokens(tokenizer)

    def load(self, loading: Loading) -> Splits:
        train_file, dev_file = (self.source / f"{split}.json" for split in ("train", "dev"))
        if self.validation is None and train_file.is_file() and not dev_file.is_file():
            raise UserError(
                f"{dev_file}: no such file. Put QAngaroo's dev.json there, or hold out a part of train.json, such as "
                "by --validation 0.1"
            )
        train = self._examples("train", loading)
        # An instance that fits no row is refused now and not when the training is done.
        self.test(loading)
        warnings = size_warning("WikiHop train", len(train), "instance", official=43_738)
        if self.validation is None:
            validation = self._examples("dev", loading)
            warnings += size_warning("WikiHop dev", len(validation), "instance", official=5_129)
        else:
            everyone, count = train, round(self.validation * len(train))
            if not 0 < count < len(train):
                of = number_of(len(train), "instance")
                raise UserError(f"--validation {self.validation:g}: of {of} that leaves none on one side")
            held_out = np.zeros(len(train), dtype=bool)
            held_out[permute(np.arange(count), len(train), self.split_seed, _VALIDATION_STREAM)] = True
            train = everyone.part(np.flatnonzero(~held_out), "train")
            validation = everyone.part(np.flatnonzero(held_out), "validation")
        if loading.train_rows is not None and loading.train_rows < len(train):
            warnings.append(f"trained on {loading.train_rows:,} of the {len(train):,} instances (--train_rows)")
            train = train.part(subset(len(train), loading.train_rows), train.name)
        notes = []
        for examples in (train, validation):
            if examples.labels is None:
                raise UserError(f"{self.source}: {examples.name}.json: its instances have no answers to learn from")
            instances, rows = number_of(len(examples), "instance"), number_of(int(examples.rows.sum()), "row")
            notes.append(
                f"WikiHop {examples.name}: {instances}, {int((examples.rows > 1).sum()):,} of them cut into several "
                f"rows: {rows} of up to {int(examples.lengths.max())} tokens"
            )
        return Splits(train, {"": validation}, warnings, notes)

    def test(self, loading: Loading) -> dict[str, Examples]:
        names = ["test"] if self.validation is None else ["dev", "test"]
        return {name: self._examples(name, loading) for name in names if (self.source / f"{name}.json").is_file()}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`dev.json` (or `validation.json`), and `test.json`: {id: answer}."""
        validation = splits.validation[""]
        test_metrics: dict[str, float] = {}
        for name, examples in {validation.name: validation, **test}.items():
            assert isinstance(examples, WikiHopExamples)
            scores_IA = scores["" if examples is validation else name]
            write_json(folder / f"{name}.json", examples.answers(scores_IA))
            if examples.labels is not None and examples is not validation:
                # Beside dev.json, a test.json with answers does not take its place.
                ending = "" if name == "dev" or "dev" not in test else f"_{name}"
                metrics = self.metrics(scores_IA, torch.from_numpy(examples.labels))
                test_metrics |= {key + ending: value for key, value in metrics.items()}
        return test_metrics

    def _read(self, split: str, loading: Loading) -> WikiHopExamples:
        instances = read_instances(self.source / f"{split}.json")
        logger.info("WikiHop %s: tokenising %s", split, number_of(len(instances), "instance"))
        return WikiHopExamples(split, instances, loading.tokenizer, loading.length, loading.most_global)
