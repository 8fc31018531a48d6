"""Which pixels of a Pathfinder picture are on the marked path: a label of each token, to measure IoU by.

Both marks are on one path here; the other long path and the distractors are drawn as in Pathfinder. An example has two
sequences, its pixels and their labels.

Shapes: B rows, N pixels, n examples.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.errors import UserError
from nystromformer.files.writing import write_figure
from nystromformer.model import TokenClassificationModel
from nystromformer.runs.figures import Spread
from nystromformer.runs.objective import ObjectiveSettings
from nystromformer.tasks.finetuning.definition import Loading, Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints, Labels
from nystromformer.tasks.finetuning.objective import choose_threshold, measure
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import TokenLabels
from nystromformer.tasks.lra.examples import PADDING
from nystromformer.tasks.lra.pathfinder import Style, draw, find_style, paint, pixels_of_path
from nystromformer.tasks.lra.prepare import TaskData, prepare_drawn
from nystromformer.tasks.lra.recipe import PATH, TRACKS, Track
from nystromformer.tasks.lra.store import Manifest, StoredSplit
from nystromformer.tasks.lra.task import Arena

logger = logging.getLogger(__name__)

PATH_DATA = TaskData(PATH, 2, {"train": 160_000, "validation": 20_000, "test": 20_000}, sequences=2)
_IOU = ObjectiveSettings("iou", "cross_entropy")
_SHOWN = 5
"""Pictures."""
_RULE_EXAMPLES = 1000
"""Training pictures that the rule of brightness is fitted to."""


def draw_path_pixels(
    folder: Path, size: int, contour: int, distractors: bool, sizes: Mapping[str, int], seed: int, workers: int
) -> Manifest:
    """Draw the data into a folder; arguments as of `draw_pathfinder`.

    Raises:
        UserError: as `prepare_drawn`.
    """
    style = find_style(size, contour, distractors)
    warnings = ["not a task of the Long Range Arena"]
    drawing = partial(draw_example, style, seed)
    settings = {"seed": seed, **asdict(style)}
    return prepare_drawn(folder, PATH_DATA, drawing, settings, sizes, workers, warnings, _draw_examples)


def _draw_examples(path: Path, split: StoredSplit) -> None:
    pictures = split.stacked()
    draw_pictures(path, pictures[:, 0], pictures[:, 1])


def draw_example(style: Style, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
    """Pixels, and which of them are on the marked path, of a picture of a split; its label is 1: one path has both
    marks.
    """
    drawing = draw(random.Random(f"{PATH} {seed} {split} {number} {attempt}"), style)
    drawing = replace(drawing, marked=(drawing.marked[0], drawing.marked[0]))
    return paint(drawing, style).tobytes() + pixels_of_path(drawing, style).tobytes(), drawing.label


class PathExamples:
    """A split, or some of its examples; implements Examples.

    Args:
        name: what messages call it.
        chosen: numbers of examples, ascending; None: all.
    """

    def __init__(self, name: str, split: StoredSplit, chosen: Ints | None = None) -> None:
        self.name = name
        self._split = split
        self.numbers: Ints = np.arange(len(split)) if chosen is None else chosen
        pixels_nN, labels_nN = split.stacked().swapaxes(0, 1)
        self.pixels_nN = pixels_nN if chosen is None else pixels_nN[chosen]  # the whole split stays a view of its file
        self.labels = cast(Labels, np.array(labels_nN if chosen is None else labels_nN[chosen]))
        self.lengths = np.full(len(self.numbers), self.pixels_nN.shape[1])
        self.rows = np.ones(len(self.numbers), dtype=np.int64)
        self.tokens = self.lengths
        self.length, self.truncated = self.pixels_nN.shape[1], 0

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def fingerprint(self) -> str:
        stamps = {name: stamp.sha256 for name, stamp in sorted(self._split.facts.files.items())}
        return hashlib.sha256(f"{stamps};".encode() + self.numbers.astype("<i8").tobytes()).hexdigest()

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

    main_metric: ClassVar[str] = "iou"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.target = PathPixels()

    def load(self, loading: Loading) -> Splits:
        pixels = self.stored.split("train").facts.longest
        if loading.length < pixels:
            raise UserError(
                f"{self.folder}: has pictures of {pixels:,} pixels, each with a label: expected rows of at least as "
                f"many tokens, found {loading.length:,} (--set model.max_seq_len={pixels})"
            )
        return super().load(loading)

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
        """`validation.tsv` and `test.tsv`: an example's number and its own IoU; `test.png`: some of them."""
        pairs = (("validation", "", splits.validation[""]), ("test", "test", test["test"]))
        for name, key, examples in pairs:
            known = cast(PathExamples, examples)
            both = zip(scores[key].numpy(), known.labels, strict=True)
            own = [f"{measure(_IOU, one, labels, 0.0)['iou']:.6f}" for one, labels in both]
            write_rows(folder / f"{name}.tsv", ("number", "iou"), list(zip(map(str, known.numbers), own, strict=True)))
        tested = cast(PathExamples, test["test"])
        chosen = scores["test"][:_SHOWN].numpy() > 0
        draw_pictures(folder / "test.png", tested.pixels_nN, tested.labels, chosen)
        return self.metrics(scores["test"], torch.from_numpy(tested.labels))

    def _examples(self, split: str, loading: Loading, chosen: Ints | None = None) -> Any:
        return PathExamples(f"{self.task} {split}", self.stored.split(split), chosen)


def draw_pictures(path: Path, pixels: NDArray[Any], labels: NDArray[Any], chosen: NDArray[Any] | None = None) -> None:
    """Draw some pictures, below each its marked path, and, where some are given, the predicted pixels."""
    from matplotlib.figure import Figure

    kinds = [("picture", pixels), ("marked path", labels), *([] if chosen is None else [("predicted", chosen)])]
    figure = Figure(figsize=(11, 2.3 * len(kinds)), layout="constrained")
    side = round(pixels.shape[1] ** 0.5)
    for axes, (title, values) in zip(figure.subplots(len(kinds), _SHOWN), kinds, strict=True):
        for number, axis in enumerate(axes):
            axis.axis("off")
            if number < len(values):
                axis.imshow(np.asarray(values[number]).reshape(side, side), cmap="gray")
                axis.set_title(title, fontsize=9)
    write_figure(path, figure, dpi=110)


def open_arena(task: str, folder: Path, most_validated: int, track: Track = TRACKS["paper"], **asked: bool) -> Arena:
    """A task by its name; arguments as of Arena."""
    return (PathArena if task == PATH else Arena)(task, folder, most_validated, track, **asked)
