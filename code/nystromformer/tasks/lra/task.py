"""A task of the Long Range Arena as the training machinery sees it: from initial weights, on prepared data."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.definition import Loading, Splits, Usual
from nystromformer.tasks.finetuning.examples import Examples, Ints, Masked
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import Target
from nystromformer.tasks.lra.declaration import TASK
from nystromformer.tasks.lra.examples import StoredExamples
from nystromformer.tasks.lra.noise import mask_tokens, move_pictures
from nystromformer.tasks.lra.recipe import MASK_RATES, TRACKS, Track
from nystromformer.tasks.lra.store import VALIDATE_ON_LAST, open_stored
from nystromformer.tasks.lra.target import SequenceClasses, Tokens
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

PICTURES = ("image", "pathfinder")
_NO_TOKENS = 2
"""Kinds of token beside the data's: padding, and the mask of those that are to be guessed."""


@dataclass
class Arena(Usual):
    """One of the five tasks.

    Args:
        task: of TASKS.
        folder: with its prepared data.
        most_validated: examples of the validation data that are scored, drawn once and for all where there are more.
        track: how it is trained on.
        as_published: divide the sum over a row's valid tokens by its padded length, and take black pixels for padding,
            as the authors of the paper do.

    Raises:
        UserError: no prepared data of the task; or, with `as_published`, pictures whose validation data are not the
            authors'.
    """

    task: str
    folder: Path
    most_validated: int
    track: Track = TRACKS["paper"]
    as_published: bool = False
    main_metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        self.kind = "lra"
        self.choices: Mapping[str, Any] = {
            "task": self.task,
            "track": self.track.name,
            "as_published": self.as_published,
        }
        self.name = f"lra/{TASK.name(self.choices)}"
        self.stored = open_stored(self.folder, self.task)
        manifest = self.stored.manifest
        if self.as_published and self.task == "image" and not manifest.settings.get(VALIDATE_ON_LAST):
            raise UserError(
                f"--as_published: expected the last tenth of the training pictures as validation data, found others in "
                f"{self.folder}. Prepare them with `python experiments/lra/prepare.py image --validate_on_last --out "
                "FOLDER`, and name that folder by --data."
            )
        self.kinds: int | None = manifest.kinds + _NO_TOKENS
        self.mask_token = manifest.kinds + 1
        self.hidden = self.track.hidden
        self.target: Target = SequenceClasses(
            manifest.classes, manifest.sequences, self.as_published, guesses_tokens=self.track.hidden > 0
        )

    def check(self) -> None:
        self.stored.verify()

    def load(self, loading: Loading) -> Splits:
        self._check_moved(loading.length)
        facts = self.stored.manifest.splits
        count, chosen = facts["train"].examples, None
        warnings = list(self.stored.manifest.warnings)
        if loading.train_rows is not None and loading.train_rows < count:
            chosen = subset(count, loading.train_rows)
            warnings.append(f"trained on {loading.train_rows:,} of the {count:,} examples (--train_rows)")
        train = self._examples("train", loading, chosen)
        whole, chosen = facts["validation"].examples, None
        if whole > self.most_validated:
            chosen = subset(whole, self.most_validated)
        validation = self._examples("validation", loading, chosen)
        notes = [_describe(train), _describe(validation)]
        if cut := sum(each.cut for each in facts.values()):
            notes.append(
                f"{self.folder}: {number_of(cut, 'sequence')} lost the end when the data were prepared (--length)"
            )
        if chosen is not None:
            notes.append(
                f"validated on {self.most_validated:,} of the {whole:,} examples of {validation.name} "
                "(pretraining_setting.validate_batches_per_epoch)"
            )
        return Splits(train, {"": validation}, warnings, notes)

    def noise(self, batch: dict[str, Tensor], numbers: Ints, seed: int, step: int) -> dict[str, Tensor]:
        if self.track.moves_pictures and self.task in PICTURES:
            batch = move_pictures(batch, numbers, self.task, seed, step)
        if self.hidden:
            batch = mask_tokens(batch, numbers, MASK_RATES[self.task], self.hidden, self.mask_token, seed, step)
        return batch

    def rules(self, splits: Splits, compared: Mapping[str, Examples]) -> dict[str, dict[str, Spread]]:
        # Imported here: scikit-learn is an extra.
        from nystromformer.tasks.lra.rules import build_rules

        stored = cast(Mapping[str, StoredExamples], compared)
        found = {}
        for rule in build_rules(self.task):
            logger.info("%s: fitting a rule: %s", self.name, rule.name)
            accuracies = rule.accuracies(cast(StoredExamples, splits.train), stored[""], stored)
            found[rule.name] = {f"accuracy{ending}": Spread(value, None) for ending, value in accuracies.items()}
        return found

    def test(self, loading: Loading) -> dict[str, Examples]:
        return {"test": self._examples("test", loading)}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`: an example's number, label and prediction."""
        tested = cast(StoredExamples, test["test"])
        validated = cast(StoredExamples, splits.validation[""])
        for name, key, examples in (("validation", "", validated), ("test", "test", tested)):
            columns = (examples.numbers, examples.labels, scores[key].argmax(-1).numpy())
            rows = [list(map(str, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]
            write_rows(folder / f"{name}.tsv", ("number", "label", "prediction"), rows)
        return self.metrics(scores["test"], torch.from_numpy(tested.labels))

    def _check_moved(self, length: int) -> None:
        """Refuse to flip and turn pictures that would be cut first: they would be folded at the wrong width."""
        pixels = self.stored.split("train").facts.longest
        if self.track.moves_pictures and self.task in PICTURES and length < pixels:
            raise UserError(
                f"--track {self.track.name}: it flips and rotates whole pictures, and those of {self.folder} have "
                f"{pixels:,} pixels: expected rows of at least as many tokens, found {length:,} (--set "
                f"model.max_seq_len={pixels})"
            )

    def _examples(self, split: str, loading: Loading, chosen: Ints | None = None) -> StoredExamples:
        black_is_padding = self.as_published and self.task in PICTURES
        return StoredExamples(
            f"{self.task} {split}", self.stored.split(split), loading.length, chosen, black_is_padding
        )


class TokensOf(Arena):
    """Masked tokens of a task's training inputs, without their labels: the first phase of self-pretraining, which tests
    nothing.
    """

    main_metric = "mlm_accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name += "-tokens"
        self.choices = {**self.choices, "tokens": True}
        self.target, self.hidden = Tokens(), 1.0

    def load(self, loading: Loading) -> Splits:
        splits = super().load(loading)
        rate = MASK_RATES[self.task]
        mask = partial(mask_tokens, rate=rate, share=1.0, mask_token=self.mask_token, seed=0, step=0)
        masked = Masked(splits.validation[""], rate, mask)
        return replace(splits, validation={"": masked})

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        right, counted = scores_NC[:, 1:].sum(0, dtype=torch.float64).tolist()
        return {"mlm_accuracy": right / counted}


def _describe(examples: StoredExamples) -> str:
    lengths = examples.lengths
    cut = f"{number_of(examples.truncated, 'sequence')} cut to {examples.length:,} tokens"
    return (
        f"{examples.name}: {number_of(len(examples), 'example')} of {lengths.min():,} to {lengths.max():,} tokens "
        f"(median {int(np.median(lengths)):,}), {cut if examples.truncated else 'none cut'}"
    )
