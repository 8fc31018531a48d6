"""What a finished run leaves: `result.json`; and which of several is best."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files import FileStamp
from nystromformer.kept import STRICT, checked, read_kept, write_kept
from nystromformer.tasks.finetuning.settings import Predict, RunSettings
from nystromformer.tasks.finetuning.spread import Spread

RESULT_FILE = "result.json"
FORMAT = 2


@dataclass(frozen=True)
class EpochMetrics:
    """Validation metrics after an epoch."""

    epoch: int
    """From 0, as in its weights' name: cp-0002.model. Of a run that counts steps, a validation's number."""
    metrics: dict[str, float]
    __pydantic_config__ = STRICT


@dataclass
class RunResult:
    """A finished run."""

    __pydantic_config__ = STRICT

    task: str
    """Such as "glue/MRPC"."""
    experiment: str
    """The experiment folder's name."""
    checkpoint: str
    """Of the pretraining: its file's name; empty for a run that began with initial weights, as is its hash."""
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
    predicted_rows: str = ""
    """Of what the prediction files show of the rows beside that; empty where the task shows nothing else."""
    predicted_epoch: int | None = None
    """Whose weights predicted; None where none did."""
    test_metrics: dict[str, float] = field(default_factory=dict)
    """Of the same weights, on test data that has labels."""
    test_warnings: list[str] = field(default_factory=list)
    """Why these may not be comparable."""
    test_rows: dict[str, int] = field(default_factory=dict)
    """Examples of each split of that test data."""
    data: str = ""
    """Fingerprint of the training and validation data."""
    prediction_stamps: dict[str, FileStamp] = field(default_factory=dict)
    """Of each prediction file."""
    format: int = FORMAT

    @property
    def every_warning(self) -> list[str]:
        """Of all data."""
        return self.warnings + self.test_warnings

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
        """Whose weights predicted; the best epoch where none did."""
        return self.best.epoch if self.predicted_epoch is None else self.predicted_epoch

    @property
    def run(self) -> RunSettings:
        return RunSettings(**self.settings)

    def write(self, folder: Path) -> None:
        """Write `result.json`, whole or not at all."""
        data = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_kept(folder / RESULT_FILE, data)


def read_result(folder: Path) -> RunResult | None:
    """What a run left in its folder; None where it is not finished.

    Raises:
        UserError: the file is not one of these: each key and each value is checked.
    """
    path = folder / RESULT_FILE
    try:
        data = read_kept(path)
        if data is None and not path.exists():
            return None
        if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
            raise UserError(f"{path}: result format {data['format']!r:.40}, this version reads format {FORMAT}")
        if isinstance(data, dict) and "folder" in data:
            raise ValueError("folder: unexpected")
        result = checked(RunResult, data)
        _check(result)
    except ValueError as error:
        raise refusal(path, str(error)) from error
    result.folder = str(folder)
    return result


def refusal(path: Path, reason: str) -> UserError:
    """The error for a `result.json` that is none of this run."""
    return UserError(
        f"{path}: expected the result of a fine-tuning run, found something else ({reason}). Remove it, and the same "
        "command writes it again, from the run's last weights, or by training where these were discarded; nothing else "
        "was touched."
    )


def _check(result: RunResult) -> None:
    """What types alone do not tell.

    Raises:
        ValueError: says what is impossible.
    """
    settings, epochs = checked(RunSettings, result.settings), [epoch.epoch for epoch in result.epochs]
    if not settings.is_possible:
        raise ValueError(f"settings: impossible: {settings}")
    if len(epochs) != settings.epochs or epochs != list(range(len(epochs))):
        raise ValueError(f"epochs: expected 0 to {settings.epochs - 1}, found {_listed(epochs)}")
    names = set(result.last.metrics)
    if result.main_metric not in names or any(set(epoch.metrics) != names for epoch in result.epochs):
        raise ValueError(f"epochs: expected {result.main_metric} and the same metrics of each")
    if result.predicted_epoch not in (None, *epochs):
        raise ValueError(f"predicted_epoch: expected one of the epochs, found {result.predicted_epoch!r:.40}")
    if not {"train", "validation"} <= result.rows.keys() or "validation" not in result.exact_share:
        raise ValueError("rows, exact_share: expected those of train and validation")
    counts = [*result.rows.values(), *result.test_rows.values()]
    if not all(0 <= count < 1 << 63 for count in (*counts, result.checkpoint_step, result.length)):
        raise ValueError("rows, length, checkpoint_step: expected counts")
    if not all(0 <= share <= 1 for share in result.exact_share.values()) or not 1 <= result.processes < 1 << 31:
        raise ValueError("exact_share: expected shares; processes: a number from 1 on")
    if not all(isinstance(layer.get("name"), str) for layer in result.attention):
        raise ValueError("attention: expected the name of each")
    if set(result.predictions) != result.prediction_stamps.keys():
        raise ValueError("prediction_stamps: expected one of each of the predictions")
    paths = [PurePosixPath(name) for name in result.predictions]
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError("predictions: expected files in the run's folder")


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(f"{number!r:.20}" for number in numbers[:20])
    return f"{shown}, …" if len(numbers) > 20 else shown or "none"


def tested_weights(results: Sequence[RunResult]) -> str:
    """Whose weights predicted in runs that did: `the best epoch's`, `the last epoch's`, or both."""
    if all(result.predicted_epoch == result.best.epoch for result in results):
        return "the best epoch's"
    if all(result.predicted_epoch == result.last.epoch for result in results):
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
