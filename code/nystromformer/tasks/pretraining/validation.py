"""Scoring the checkpoints of an experiment folder on the validation rows."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nystromformer.config import ExperimentConfig
from nystromformer.data.dataset import SPLITS, Dataset, verify
from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, read_record, write_checked
from nystromformer.interop.formats.source import check_finite_weights
from nystromformer.interop.transfer import mentioned
from nystromformer.model import PretrainingModel
from nystromformer.tables import Column, aligned
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.start import read_run_checkpoint
from nystromformer.tasks.pretraining.baselines import baseline_accuracies
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training import Device
from nystromformer.training.checkpoint import choose_weights, load_weights

logger = logging.getLogger(__name__)

RESULTS = "validation.json"


@dataclass(frozen=True)
class Score:
    """One checkpoint's metrics."""

    checkpoint: str
    step: int
    metrics: dict[str, float]
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Validation:
    """What `run_validation.py` found."""

    rows: int
    available_rows: int
    """Of which `rows` were scored: all, or so many drawn at random once and for all."""
    masked_tokens: int
    baselines: dict[str, float]
    scores: list[Score]
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class OpenedScoring:
    """Checkpoints of a pretraining run, and validation rows for them."""

    experiment: Experiment
    device: Device
    dataset: Dataset
    checkpoints: tuple[Path, ...]

    @property
    def config(self) -> ExperimentConfig:
        return self.experiment.config


def open_scoring(experiment: Experiment, dataset_folder: Path | None, device: Device, wanted: str) -> OpenedScoring:
    """Open an experiment to score its checkpoints, "last", "all" or an epoch's number, which are not read yet."""
    dataset, chosen = experiment.dataset(dataset_folder), choose_weights(experiment.checkpoints, wanted, several=True)
    return OpenedScoring(experiment, device, dataset, tuple(chosen))


def load_checkpoint(opened: OpenedScoring, path: Path) -> tuple[PretrainingModel, dict[str, Any]]:
    """The model of config.json with a checkpoint's weights, and the checkpoint. Says what the weights were not trained
    with, such as another attention.
    """
    config, content = opened.config, read_run_checkpoint(path, opened.dataset)
    check_finite_weights(content["model"], path)
    model = PretrainingModel(config.model, config.pretraining_setting.objectives)
    load_weights(model, content["model"], path)
    for line in mentioned(content["config"]["model"], config.model.model_dump(mode="json", by_alias=True)):
        logger.warning("%s: %s", path.name, line)
    return model.to(opened.device.device).eval(), content


def validate(
    experiment: Experiment,
    dataset_folder: Path | None,
    device: Device,
    wanted: str = "last",
    num_rows: int | None = None,
    baselines: bool = False,
    show: Callable[[str], object] | None = None,
) -> Validation:
    """Score checkpoints on the same validation rows with the same masks every time; writes `validation.json`.

    Args:
        wanted: as of `open_scoring`.
        num_rows: how many validation rows; None for all.
        baselines: also score the most frequent token and the bigram table.
        show: gets the table before the file is written, for which there may be no room.
    """
    opened = open_scoring(experiment, dataset_folder, device, wanted)
    config, dataset = opened.config, opened.dataset
    if baselines and not len(dataset.train):
        raise UserError(
            f"{dataset.folder}: a dataset for validation only (--validation 1) has no rows to train on, from which the "
            "baselines are counted: leave out --baselines"
        )
    verify(dataset, SPLITS if baselines else ("validation",))
    scores = []
    for path in opened.checkpoints:
        model, content = load_checkpoint(opened, path)
        # As in training, so that what a run's log says of the same rows comes out again.
        with torch.no_grad(), device.autocast():
            metrics = Pretraining(model, config, dataset, device).score(num_rows)
        scores.append(Score(path.stem, content["step"], metrics))
        logger.info("%s scored", path.name)
    preparation = RowPreparation(dataset, config)
    available = len(dataset.validation)
    rows = available if num_rows is None else min(num_rows, available)
    masked_tokens = ValidationBatches(dataset.validation, preparation, num_rows).count_predictions()
    guesses = baseline_accuracies(dataset, preparation, num_rows) if baselines else {}
    result = Validation(rows, available, masked_tokens, guesses, scores)
    if show is not None:
        show(table(result))
    write_checked(experiment.checkpoints / RESULTS, asdict(result))
    return result


def read_validation(path: Path) -> Validation:
    """What `validate` wrote."""
    found = read_record(path, Validation, "Run code/run_validation.py for this folder again.")
    if found is None:
        raise UserError(f"{path}: no such file; run code/run_validation.py for this folder first")
    return found


def table(result: Validation) -> str:
    """The scores for a terminal, one checkpoint a line."""
    names = list(result.scores[0].metrics)
    columns = [Column(width=24, is_text=True), Column("step", 8), *(Column(name, 13) for name in names)]
    rows = [
        [score.checkpoint, str(score.step), *(_shown(name, value) for name, value in score.metrics.items())]
        for score in result.scores
    ]
    for name, accuracy in result.baselines.items():
        guessed = [_shown(column, accuracy) if column == "mlm_accuracy" else "" for column in names]
        rows.append([name.replace("_", " "), "", *guessed])
    drawn = f" of {result.available_rows:,}, drawn once and for all," if result.rows < result.available_rows else ""
    masked = f"with {result.masked_tokens:,} masked tokens, the same masks every time"
    return "\n".join([*aligned(columns, rows), f"{result.rows:,} validation rows{drawn} {masked}"])


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name.endswith("accuracy") else f"{value:.4f}"
