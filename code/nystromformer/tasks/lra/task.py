"""The tasks of the Long Range Arena as the training machinery sees them: from initial weights, on prepared data; and
which pixels of a Pathfinder picture are on the marked path: a label of each token, to measure IoU by.

Shapes: B rows, I examples of a batch, N pixels, C classes, n examples of a split.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.errors import UserError
from nystromformer.model import SequenceModel, TokenClassificationModel
from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import Classes, Target, TokenLabels
from nystromformer.tasks.lra.declaration import HIDDEN, MASK_RATES, PATH, TASK, TrackName
from nystromformer.tasks.lra.examples import PathExamples, StoredExamples, mask_tokens, move_pictures
from nystromformer.tasks.lra.store import open_stored
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

PICTURES = ("image", "pathfinder")
_NO_TOKENS = 2
"""Kinds of token beside the data's: padding, and the mask of those that are to be guessed."""
_RULE_EXAMPLES = 1000
"""Training pictures that the rule of brightness is fitted to."""


@dataclass(frozen=True)
class SequenceClasses(Classes):
    """One of a few classes of an example of one or two sequences.

    Args:
        sequences: of each example.
        guesses_tokens: learn to guess tokens of the examples that are hidden in training, in place of their classes.
    """

    sequences: int = 1
    guesses_tokens: bool = False

    def build(self, config: ModelConfig) -> nn.Module:
        return SequenceModel(config, self.count, self.sequences, self.guesses_tokens)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        scores_IC: Tensor = model(batch["tokens_BN"], batch["mask_BN"])[0]
        return scores_IC.float()

    def learn(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        names = ("tokens_BN", "mask_BN", "positions_BK", "guessed_BK")
        scores_IC, sums_B3 = model(*(batch.get(name) for name in names))
        classes_I = F.cross_entropy(scores_IC.float(), batch["labels"], reduction="none")
        if sums_B3 is None:
            return scores_IC.float(), classes_I
        # The mean loss of a masked token of all rows of an example.
        sums_I3 = sums_B3.view(-1, len(classes_I), 3).sum(0)
        tokens_I = sums_I3[:, 0] / sums_I3[:, 2].clamp(min=1)
        return scores_IC.float(), torch.where(batch["hidden"], tokens_I, classes_I)


@dataclass
class Arena(Definition):
    """One of the five tasks.

    Args:
        task: of TASKS.
        folder: with its prepared data.
        most_validated: examples of the validation data that are scored, drawn once and for all where there are more.
    """

    task: str
    folder: Path
    most_validated: int
    track: TrackName = "paper"
    main_metric = "accuracy"
    examples: ClassVar[type[StoredExamples]] = StoredExamples

    def __post_init__(self) -> None:
        self.kind = "lra"
        self.choices: Mapping[str, Any] = {"task": self.task, "track": self.track}
        self.name = f"lra/{TASK.name(self.choices)}"
        self.stored = open_stored(self.folder, self.task)
        data = self.stored.manifest.data
        self.kinds: int | None = data.kinds + _NO_TOKENS
        self.mask_token = data.kinds + 1
        is_modern = self.track == "modern"
        self.target: Target = (
            PathPixels() if self.task == PATH else SequenceClasses(data.classes, data.sequences, is_modern)
        )

    def load(self, loading: Loading) -> Splits:
        facts = self.stored.manifest.splits
        pixels = int(self.stored.split("train").lengths.max())
        has_whole_pictures = self.task == PATH or (self.track == "modern" and self.task in PICTURES)
        if has_whole_pictures and loading.length < pixels:
            raise UserError(
                f"{self.folder}: has pictures of {pixels:,} pixels, which are needed whole: expected rows of at least "
                f"as many tokens, found {loading.length:,} (--set model.max_seq_len={pixels})"
            )
        train, count = self._examples("train", loading, loading.train_rows), facts["train"].examples
        validation, whole = self._examples("validation", loading, self.most_validated), facts["validation"].examples
        warnings = list(self.stored.manifest.warnings)
        if len(train) < count:
            warnings.append(f"trained on {len(train):,} of the {count:,} examples (--train_rows)")
        notes = [_describe(train), _describe(validation)]
        if len(validation) < whole:
            notes.append(
                f"validated on {len(validation):,} of the {whole:,} examples of {validation.name} "
                "(pretraining_setting.validate_batches_per_epoch)"
            )
        return Splits(train, {"": validation}, warnings, notes)

    def noise(self, batch: dict[str, Tensor], numbers: Ints, seed: int, step: int) -> dict[str, Tensor]:
        if self.track == "paper":
            return batch
        if self.task in PICTURES:
            batch = move_pictures(batch, numbers, self.task, seed, step)
        return mask_tokens(batch, numbers, MASK_RATES[self.task], HIDDEN, self.mask_token, seed, step)

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
        """`validation.tsv` and `test.tsv`: an example's number, and what `columns` gives."""
        for name, key, examples in (("validation", "", splits.validation[""]), ("test", "test", test["test"])):
            known = cast(StoredExamples, examples)
            columns = {"number": known.numbers.tolist(), **self.columns(known, scores[key])}
            rows = [list(map(str, row)) for row in zip(*columns.values(), strict=True)]
            write_rows(folder / f"{name}.tsv", tuple(columns), rows)
        return self.metrics(scores["test"], torch.from_numpy(test["test"].labels))

    def columns(self, examples: StoredExamples, scores: Tensor) -> dict[str, list[Any]]:
        """What prediction files show."""
        return {"label": examples.labels.tolist(), "prediction": scores.argmax(-1).tolist()}

    def _examples(self, split: str, loading: Loading, most: int | None = None) -> StoredExamples:
        """Of a split, at most so many, drawn once and for all."""
        stored = self.stored.split(split)
        chosen = subset(len(stored), most) if most is not None and most < len(stored) else None
        return self.examples(f"{self.task} {split}", stored, loading.length, chosen)


def _describe(examples: StoredExamples) -> str:
    lengths = examples.lengths
    cut = f"{number_of(examples.truncated, 'sequence')} cut to {examples.length:,} tokens"
    return (
        f"{examples.name}: {number_of(len(examples), 'example')} of {lengths.min():,} to {lengths.max():,} tokens "
        f"(median {int(np.median(lengths)):,}), {cut if examples.truncated else 'none cut'}"
    )


class PathPixels(TokenLabels):
    """Whether each pixel is on the marked path."""

    def build(self, config: ModelConfig) -> nn.Module:
        return TokenClassificationModel(config, 1)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        logits_BN1: Tensor = model(batch["tokens_BN"], batch["mask_BN"])
        return logits_BN1[:, : batch["labels"].shape[1], 0].float()


@dataclass
class PathArena(Arena):
    """The task."""

    main_metric = "iou"
    examples: ClassVar[type[StoredExamples]] = PathExamples

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        """IoU over the pixels of all pictures together."""
        return {"iou": iou(scores_NC.numpy(), labels_N.numpy())}

    def rules(self, splits: Splits, compared: Mapping[str, Examples]) -> dict[str, dict[str, Spread]]:
        """No pixel; and those that are brighter than the best threshold on training pictures."""

        def reached(examples: Examples, limit: float, most: int | None = None) -> float:
            known = cast(PathExamples, examples)
            return iou(known.pixels_nN[:most].astype(float), known.labels[:most], limit)

        values = np.unique(cast(PathExamples, splits.train).pixels_nN[:_RULE_EXAMPLES].astype(float))[::-1]
        between = [values[0] + 1, *((values[1:] + values[:-1]) / 2), values[-1] - 1]
        best = max(between, key=lambda limit: reached(splits.train, limit, _RULE_EXAMPLES))
        return {
            name: {f"iou{end}": Spread(reached(examples, limit), None) for end, examples in compared.items()}
            for name, limit in {"no pixel": np.inf, "bright pixels": best}.items()
        }

    def columns(self, examples: StoredExamples, scores: Tensor) -> dict[str, list[Any]]:
        both = zip(scores.numpy(), examples.labels, strict=True)
        return {"iou": [f"{iou(one, labels):.6f}" for one, labels in both]}


def iou(scores: NDArray[Any], labels: NDArray[Any], limit: float = 0.0) -> float:
    """The mean over both classes of pixels of intersection over union, where a score above the limit says 1."""
    told, is_on = scores > limit, labels == 1
    both = [((told & is_on), (told | is_on)), (~(told | is_on), ~(told & is_on))]
    return float(np.mean([one.sum() / max(1, either.sum()) for one, either in both]))
