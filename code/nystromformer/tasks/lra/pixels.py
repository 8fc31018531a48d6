"""Which pixels of a Pathfinder picture are on the marked path: a label of each token, to measure IoU by.

Both marks are on one path here; the other long path and the distractors are drawn as in Pathfinder. An example has two
sequences, its pixels and their labels.

Shapes: B rows, N pixels, n examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.model import TokenClassificationModel
from nystromformer.runs.figures import Spread
from nystromformer.runs.objective import ObjectiveSettings
from nystromformer.tasks.finetuning.definition import Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.objective import choose_threshold, measure
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import TokenLabels
from nystromformer.tasks.lra.declaration import PATH, TRACKS, Track
from nystromformer.tasks.lra.examples import PADDING, StoredExamples
from nystromformer.tasks.lra.task import Arena

_IOU = ObjectiveSettings("iou", "cross_entropy")
_RULE_EXAMPLES = 1000
"""Training pictures that the rule of brightness is fitted to."""


class PathExamples(StoredExamples):
    """Pictures, of which each has a row of pixels and a row of their labels in the data; arguments as its base's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        both_n2N = self._split.stacked()[self.numbers]
        self.pixels_nN = both_n2N[:, 0]
        self.labels = cast(Any, both_n2N[:, 1])
        self.rows = np.ones(len(self), dtype=np.int64)
        self.tokens = self.lengths

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        pixels_BN = self.pixels_nN[numbers].astype(np.int64) + 1
        padding = (pad_to or pixels_BN.shape[1]) - pixels_BN.shape[1]
        tokens_BN = np.pad(pixels_BN, ((0, 0), (0, padding)), constant_values=PADDING)
        return {
            "tokens_BN": torch.from_numpy(tokens_BN),
            "mask_BN": torch.from_numpy(tokens_BN != PADDING),
            "labels": torch.from_numpy(self.labels[numbers].astype(np.int64)),
        }


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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.target = PathPixels()

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        """IoU, the mean of that of both classes, over the pixels of all pictures together."""
        return measure(_IOU, scores_NC.flatten().numpy(), labels_N.flatten().numpy(), 0.0)

    def rules(self, splits: Splits, compared: Mapping[str, Examples]) -> dict[str, dict[str, Spread]]:
        """No pixel; and those that are brighter than the best threshold on training pictures."""
        train = cast(PathExamples, splits.train)
        threshold = choose_threshold(
            _IOU, train.pixels_nN[:_RULE_EXAMPLES].ravel().astype(float), train.labels[:_RULE_EXAMPLES].ravel()
        )
        found: dict[str, dict[str, Spread]] = {"no pixel": {}, "bright pixels": {}}
        for ending, examples in compared.items():
            known = cast(PathExamples, examples)
            levels, labels = known.pixels_nN.ravel().astype(float), known.labels.ravel()
            for name, above in (("no pixel", np.inf), ("bright pixels", threshold)):
                found[name][f"iou{ending}"] = Spread(measure(_IOU, levels, labels, above)["iou"], None)
        return found

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`: an example's number and its own IoU."""
        pairs = (("validation", "", splits.validation[""]), ("test", "test", test["test"]))
        for name, key, examples in pairs:
            known = cast(PathExamples, examples)
            both = zip(scores[key].numpy(), known.labels, strict=True)
            own = [f"{measure(_IOU, one, labels, 0.0)['iou']:.6f}" for one, labels in both]
            write_rows(folder / f"{name}.tsv", ("number", "iou"), list(zip(map(str, known.numbers), own, strict=True)))
        return self.metrics(scores["test"], torch.from_numpy(cast(PathExamples, test["test"]).labels))


def open_arena(task: str, folder: Path, most_validated: int, track: Track = TRACKS["paper"]) -> Arena:
    """A task by its name; arguments as of Arena."""
    return (PathArena if task == PATH else Arena)(task, folder, most_validated, track)
