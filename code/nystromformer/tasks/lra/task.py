"""A task of the Long Range Arena as the training machinery sees it: from initial weights, on prepared data."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.definition import Loading, Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.scored import write_rows
from nystromformer.tasks.finetuning.target import Target, accuracy
from nystromformer.tasks.lra.examples import StoredExamples
from nystromformer.tasks.lra.masked import MaskedExamples
from nystromformer.tasks.lra.noise import mask_tokens, move_pictures
from nystromformer.tasks.lra.recipe import check_task
from nystromformer.tasks.lra.stored import VALIDATE_ON_LAST, Stored, open_stored
from nystromformer.tasks.lra.target import SequenceClasses, Tokens
from nystromformer.tasks.lra.tracks import MASK_RATES, TRACKS, Track
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

PICTURES = ("image", "pathfinder")
_NO_TOKENS = 2
"""Kinds of token beside the data's: padding, and the mask of those that are to be guessed."""


class Arena:
    """One of the five tasks.

    Args:
        task: of TASKS.
        folder: with its prepared data.
        most_validated: examples of the validation data that are scored, drawn once and for all where there are more.
        track: how it is trained on.
        as_published: divide the sum over a row's valid tokens by its padded length, and take black pixels for padding,
            as the authors of the paper do.

    Raises:
        UserError: no such task; no prepared data of it; or, with `as_published`, pictures whose validation data are not
            the authors'.
    """

    kind = "lra"
    main_metric = "accuracy"

    def __init__(
        self,
        task: str,
        folder: Path,
        most_validated: int,
        track: Track = TRACKS["paper"],
        as_published: bool = False,
    ) -> None:
        check_task(task)
        if as_published and track.name != "paper":
            raise UserError(f"--as_published: expected --track paper beside it, found {track.name}")
        self.track = track
        self.task = task
        self.folder = folder
        self.most_validated = most_validated
        self.as_published = as_published
        self.choices: Mapping[str, Any] = {"task": task, "track": track.name, "as_published": as_published}
        self.name = f"lra/{task}{track.suffix}" + ("-as-published" if as_published else "")
        manifest = self.stored.manifest
        if as_published and task == "image" and not manifest.settings.get(VALIDATE_ON_LAST):
            raise UserError(
                f"--as_published: expected the last tenth of the training pictures as validation data, found others in "
                f"{folder}. Prepare them with `python experiments/lra/prepare.py image --validate_on_last --out "
                "FOLDER`, and name that folder by --data."
            )
        self.kinds: int | None = manifest.kinds + _NO_TOKENS
        self.mask_token = manifest.kinds + 1
        self.target: Target = SequenceClasses(
            manifest.classes, manifest.sequences, as_published, guesses_tokens=track.hidden > 0
        )

    @cached_property
    def stored(self) -> Stored:
        return open_stored(self.folder, self.task)

    def check(self) -> None:
        self.stored.verify()

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The data have their own kinds of token."""
        return tokenizer

    def prepare(self, loading: Loading) -> None:
        """`experiments/lra/prepare.py` has done it."""

    def texts(self, loading: Loading) -> dict[str, Any] | None:
        """Its examples are none."""
        return None

    def load(self, loading: Loading) -> Splits:
        self._check_moved(loading.length)
        count, chosen = len(self.stored.split("train")), None
        warnings = list(self.stored.manifest.warnings)
        if loading.train_rows is not None and loading.train_rows < count:
            chosen = subset(count, loading.train_rows)
            warnings.append(f"trained on {loading.train_rows:,} of the {count:,} examples (--train_rows)")
        train = self._examples("train", loading, chosen)
        validation = self._examples("validation", loading, self._validated)
        notes = [_described(examples) for examples in (train, validation)]
        cut = sum(facts.cut for facts in self.stored.manifest.splits.values())
        if cut:
            notes.append(
                f"{self.folder}: {number_of(cut, 'sequence')} lost the end when the data were prepared (--length)"
            )
        if self._validated is not None:
            whole = len(self.stored.split("validation"))
            notes.append(
                f"validated on {self.most_validated:,} of the {whole:,} examples of {validation.name} "
                "(pretraining_setting.validate_batches_per_epoch)"
            )
        return Splits(train, {"": validation}, warnings, notes)

    def noise(self, batch: dict[str, Tensor], numbers: Ints, seed: int, step: int) -> dict[str, Tensor]:
        if self.track.moves_pictures and self.task in PICTURES:
            batch = move_pictures(batch, numbers, self.task, seed, step)
        if self.track.hidden:
            rate = MASK_RATES[self.task]
            batch = mask_tokens(batch, numbers, rate, self.track.hidden, self.mask_token, seed, step)
        return batch

    def rules(self, splits: Splits, compared: Mapping[str, Examples]) -> dict[str, dict[str, Spread]]:
        # Imported here: scikit-learn is an extra.
        from nystromformer.tasks.lra.rules import rules_of

        stored = {name: rows for name, rows in compared.items() if isinstance(rows, StoredExamples)}
        assert isinstance(splits.train, StoredExamples)
        found = {}
        for rule in rules_of(self.task):
            logger.info("%s: fitting a rule: %s", self.name, rule.name)
            accuracies = rule.accuracies(splits.train, stored[""], stored)
            found[rule.name] = {f"accuracy{ending}": Spread(value, None) for ending, value in accuracies.items()}
        return found

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        return {"accuracy": accuracy(scores_NC, labels_N)}

    def test(self, loading: Loading) -> dict[str, Examples]:
        return {"test": self._examples("test", loading)}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`: an example's number, label and prediction."""
        for name, examples in (("validation", splits.validation[""]), ("test", test["test"])):
            assert isinstance(examples, StoredExamples)
            predicted = scores["" if name == "validation" else name].argmax(-1).tolist()
            rows = zip(examples.numbers.tolist(), examples.labels.tolist(), predicted, strict=True)
            write_rows(folder / f"{name}.tsv", ("number", "label", "prediction"), [list(map(str, row)) for row in rows])
        labels = test["test"].labels
        assert labels is not None, "prepared data have labels"
        return self.metrics(scores["test"], torch.from_numpy(labels))

    def _check_moved(self, length: int) -> None:
        """Refuse to flip and turn pictures that would be cut first: they would be folded at the wrong width."""
        pixels = self.stored.split("train").facts.longest
        if self.track.moves_pictures and self.task in PICTURES and length < pixels:
            raise UserError(
                f"--track {self.track.name}: flips and turns whole pictures, and {self.folder} has some of {pixels:,} "
                f"pixels: expected rows of at least so many, found {length:,} (--set model.max_seq_len={pixels})"
            )

    @property
    def _validated(self) -> Ints | None:
        count = len(self.stored.split("validation"))
        return None if count <= self.most_validated else subset(count, self.most_validated)

    def _examples(self, split: str, loading: Loading, chosen: Ints | None = None) -> StoredExamples:
        stored = self.stored.split(split)
        if not len(stored):
            raise UserError(f"{self.folder}: no examples of {split}: prepare data with some")
        black = self.as_published and self.task in PICTURES
        return StoredExamples(f"{self.task} {split}", stored, loading.length, chosen, black)


class TokensOf(Arena):
    """Masked tokens of a task's training inputs, without their labels: the first phase of self-pretraining."""

    main_metric = "mlm_accuracy"

    def __init__(self, task: str, folder: Path, most_validated: int, track: Track = TRACKS["spt"]) -> None:
        super().__init__(task, folder, most_validated, track)
        self.name += "-tokens"
        self.choices = {**self.choices, "tokens": True}
        self.target = Tokens()

    def load(self, loading: Loading) -> Splits:
        splits = super().load(loading)
        masked = {
            ending: MaskedExamples(examples, MASK_RATES[self.task], self.mask_token)
            for ending, examples in splits.validation.items()
        }
        return replace(splits, validation=dict[str, Examples](masked))

    def noise(self, batch: dict[str, Tensor], numbers: Ints, seed: int, step: int) -> dict[str, Tensor]:
        return mask_tokens(batch, numbers, MASK_RATES[self.task], 1.0, self.mask_token, seed, step)

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        right, counted = scores_NC[:, 1:].sum(0, dtype=torch.float64).tolist()
        return {"mlm_accuracy": right / counted}

    def test(self, loading: Loading) -> dict[str, Examples]:
        """What is tested is what follows."""
        return {}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """No predictions: nothing reads them."""
        return {}


def _described(examples: StoredExamples) -> str:
    lengths = examples.lengths
    cut = f"{number_of(examples.truncated, 'sequence')} cut to {examples.length:,} tokens"
    return (
        f"{examples.name}: {number_of(len(examples), 'example')} of {lengths.min():,} to {lengths.max():,} tokens "
        f"(median {int(np.median(lengths)):,}), {cut if examples.truncated else 'none cut'}"
    )
