"""What a finished run leaves: `result.json`; and which of several is best."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files import write_json
from nystromformer.tasks.finetuning.settings import Predict, RunSettings
from nystromformer.tasks.finetuning.spread import Spread

RESULT_FILE = "result.json"
FORMAT = 2


@dataclass(frozen=True)
class EpochMetrics:
    """Validation metrics after an epoch."""

    epoch: int
    """From 0, as in its weights' name: cp-0002.model."""
    metrics: dict[str, float]


@dataclass
class RunResult:
    """A finished run."""

    task: str
    """Such as "glue/MRPC"."""
    experiment: str
    """The experiment folder's name."""
    checkpoint: str
    """Of the pretraining: its file's name."""
    checkpoint_step: int
    checkpoint_sha256: str
    attention: list[dict[str, Any]]
    """Of each layer."""
    settings: dict[str, Any]
    length: int
    """Tokens of the longest row that was allowed."""
    family: str
    """A hash of all that decides the result but the seed: runs of one family may be averaged."""
    main_metric: str
    epochs: list[EpochMetrics]
    rows: dict[str, int]
    """Examples of each split."""
    exact_share: dict[str, float]
    """Share of each split's rows that are short enough for exact attention in every layer."""
    warnings: list[str]
    """Why the figures may not be comparable, such as partial data."""
    command: str
    version: str
    device: str
    processes: int
    folder: str = ""
    predictions: list[str] = field(default_factory=list)
    """Prediction files; empty where none were asked for."""
    predicted: str = ""
    """Fingerprint of the test data that was predicted."""
    predicted_epoch: int | None = None
    """Whose weights predicted; None where none did, or the best epoch's did by a version that knew no other choice."""
    test_metrics: dict[str, float] = field(default_factory=dict)
    """Of the same weights, on test data that has labels."""
    test_rows: dict[str, int] = field(default_factory=dict)
    """Examples of each split of that test data."""
    data: str = ""
    """Fingerprint of the training and validation data."""
    format: int = FORMAT

    @property
    def last(self) -> EpochMetrics:
        return self.epochs[-1]

    @property
    def best(self) -> EpochMetrics:
        """The epoch with the highest main metric, the first of equals."""
        return max(self.epochs, key=lambda epoch: (epoch.metrics[self.main_metric], -epoch.epoch))

    def choose(self, predict: Predict) -> EpochMetrics:
        """The epoch whose weights shall predict."""
        return self.best if predict == "best" else self.last

    @property
    def tested_epoch(self) -> int:
        """Whose weights made the predictions that there are."""
        return self.best.epoch if self.predicted_epoch is None else self.predicted_epoch

    @property
    def run(self) -> RunSettings:
        return RunSettings(**self.settings)

    def write(self, folder: Path) -> None:
        """Write `result.json`, whole or not at all."""
        data = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_json(folder / RESULT_FILE, data)


def read_result(folder: Path) -> RunResult | None:
    """What a run left in its folder; None where it is not finished.

    Raises:
        UserError: the file is not one of these.
    """
    path = folder / RESULT_FILE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise UserError(f"{path}: result format {data['format']}, this version reads format {FORMAT}")
        data["epochs"] = [EpochMetrics(**epoch) for epoch in data["epochs"]]
        return RunResult(**data, folder=str(folder))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: expected the result of a fine-tuning run, found something else ({error}). Remove it, and the "
            "same command writes it again."
        ) from error


def tested_weights(results: Sequence[RunResult]) -> str:
    """Whose weights predicted in runs that did: `the best epoch's`, `the last epoch's`, or both."""
    if all(result.tested_epoch == result.best.epoch for result in results):
        return "the best epoch's"
    if all(result.tested_epoch == result.last.epoch for result in results):
        return "the last epoch's"
    return "some runs' best and others' last epoch's"


def by_combination(results: Sequence[RunResult]) -> dict[tuple[int, float], list[RunResult]]:
    """Runs that differ in their seeds alone, together."""
    combinations: dict[tuple[int, float], list[RunResult]] = {}
    for result in results:
        combinations.setdefault(result.run.combination, []).append(result)
    return combinations


def ranked(results: Sequence[RunResult]) -> list[list[RunResult]]:
    """The combinations, best first: by the number of finished seeds, then by the best epochs' mean of the main metric
    on the validation data. Where a seed diverged, the mean of those that did not says too much.
    """

    def rank(runs: list[RunResult]) -> tuple[int, float]:
        return len(runs), Spread.of([run.best.metrics[run.main_metric] for run in runs]).mean

    return sorted(by_combination(results).values(), key=rank, reverse=True)


def best_combination(results: Sequence[RunResult]) -> list[RunResult]:
    """The first of the `ranked` ones."""
    return ranked(results)[0]
