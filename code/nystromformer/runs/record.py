"""What a finished run of fine-tuning was asked, from what it began and what it reached: one file in its folder, which
predicting, serving, explaining, exporting and every report read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, checked, read_checked, write_checked
from nystromformer.files.writing import FileStamp, sha256_of
from nystromformer.runs.call import Call
from nystromformer.runs.figures import Spread
from nystromformer.runs.settings import Count, Predict, RunSettings, Share

FORMAT = 3
_FILE = "result.json"
_OF_RUNS = ("log.jsonl", "run.lock")
"""Files of every run's folder, from its beginning."""
TOKENIZER = "tokenizer"
"""The folder of a run's tokenizer, in its own."""

Rows = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass(frozen=True)
class EpochMetrics:
    """Validation metrics after an epoch."""

    epoch: int
    """From 0, as in its weights' name: cp-0002.model. Of a run that counts steps, a validation's number."""
    metrics: dict[str, float]
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Origin:
    """The weights that a run began with; empty for initial ones."""

    checkpoint: str = ""
    """The file's name."""
    epoch: int = 0
    step: Rows = 0
    sha256: str = ""
    tokenizer_sha256: str = ""
    __pydantic_config__ = STRICT

    def __str__(self) -> str:
        return f"{self.checkpoint} ({self.sha256[:8]})" if self.checkpoint else "initial weights"


@dataclass(frozen=True)
class Tested:
    """What the weights of one epoch predicted."""

    epoch: int
    data: str
    """Fingerprint of the test data."""
    shown: str
    """Fingerprint of what the files show of the rows beside that; empty where the task shows nothing else."""
    files: dict[str, FileStamp]
    """By their paths in the run's folder."""
    metrics: dict[str, float] = field(default_factory=dict)
    """On test data that has labels."""
    rows: dict[str, Rows] = field(default_factory=dict)
    """Examples of each split that has labels."""
    warnings: tuple[str, ...] = ()
    """Why the metrics may not be comparable."""
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Run:
    """A finished run."""

    __pydantic_config__ = STRICT

    kind: str
    """The command of its task, such as "glue"."""
    choices: dict[str, Any]
    """What the command asks of its data: the task's own settings, by which its data can be opened again."""
    task: str
    """Where runs of the task lie, such as "glue/MRPC"."""
    call: Call
    experiment: str
    """The experiment folder's name."""
    origin: Origin
    settings: RunSettings
    length: Count
    """Tokens of the longest row that was allowed."""
    model: dict[str, Any]
    """The section "model" of its config."""
    attention: tuple[dict[str, Any], ...]
    """Of each layer, with all parameters."""
    texts: dict[str, Any] | None
    """What predicting other texts needs beside weights and tokenizer; None of a task that predicts none."""
    tokenizer_sha256: str
    """Of the tokenizer that the folder has; empty of data that are no text."""
    identity: str
    """A hash of all that decides the result."""
    family: str
    """The same but for the seed: runs of one family may be averaged."""
    main_metric: str
    data: str
    """Fingerprint of the training and validation data."""
    rows: dict[str, Rows]
    """Examples of each split."""
    exact_share: dict[str, Share]
    """Share of each split's rows that are short enough for exact attention in every layer."""
    warnings: tuple[str, ...]
    """Why the figures may not be comparable, such as partial data."""
    epochs: tuple[EpochMetrics, ...]
    version: str
    device: str
    processes: Count
    words: str = ""
    """The folder beside its own with a regression on the words of its training texts; empty where none is kept."""
    tested: Tested | None = None
    """None where nothing was predicted."""
    folder: Path = field(default=Path(), compare=False)

    @property
    def every_warning(self) -> tuple[str, ...]:
        """Of all data."""
        return self.warnings + (self.tested.warnings if self.tested is not None else ())

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
        return self.best.epoch if self.tested is None else self.tested.epoch

    @property
    def predictions(self) -> list[str]:
        """Its prediction files' paths in its folder."""
        return [] if self.tested is None else list(self.tested.files)

    @property
    def test_metrics(self) -> Mapping[str, float]:
        """On test data that has labels; none where there are no such."""
        return {} if self.tested is None else self.tested.metrics

    @property
    def test_rows(self) -> Mapping[str, int]:
        """Examples of each split of that data."""
        return {} if self.tested is None else self.tested.rows

    def tested_rows(self, metric: str) -> int:
        """Examples that a metric on test data is of; 0 where nothing was scored."""
        counts = self.test_rows
        own = [count for split, count in counts.items() if metric.endswith(f"_{split}")]
        return next(iter([*own, *counts.values()]), 0)

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer that it read its texts with.

        Raises:
            UserError: it is not there, or another one.
        """
        path = self.folder / TOKENIZER / "tokenizer.json"
        if not path.is_file() or sha256_of(path) != self.tokenizer_sha256:
            raise UserError(
                f"{path}: expected the tokenizer of the run (sha256 {self.tokenizer_sha256[:12]}…), found "
                f"{'another one' if path.is_file() else 'none'}: start the run's command again, which writes it again"
            )
        return path.parent

    def write(self) -> None:
        """Write it to its folder, whole or not at all.

        Raises:
            UserError: it cannot be written.
        """
        data = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_checked(self.folder / _FILE, {"format": FORMAT, **data})


def is_finished(folder: Path) -> bool:
    """Whether a folder is that of a finished run."""
    return (folder / _FILE).is_file()


def read_run(folder: Path) -> Run | None:
    """The finished run of a folder; None where none is.

    Raises:
        UserError: the file is no record of a run, was changed after it was written, or made by an earlier version.
    """
    path = folder / _FILE
    try:
        if (data := read_checked(path)) is None:
            return None
        if (found := data.pop("format", None)) != FORMAT:
            raise ValueError(f"made by an earlier version: format {found!r:.40}, this one reads {FORMAT}")
        run = checked(Run, data)
    except ValueError as error:
        raise _refusal(path, str(error)) from error
    return replace(run, folder=folder)


def open_run(folder: Path, name: str = "") -> Run:
    """The finished run of a folder.

    Args:
        name: the folder as messages call it, such as "--run FOLDER".

    Raises:
        UserError: there is none, or as `read_run`.
    """
    run = read_run(folder)
    if run is None:
        raise UserError(
            f"{name or folder}: expected the folder of a finished fine-tuning run, with {_FILE}, such as "
            "MODEL/model/imdb/cp-0099-…"
        )
    return run


def find_runs(checkpoints: Path, *kinds: str) -> list[Run]:
    """The finished runs below an experiment's checkpoints, of these kinds or of all, in the order of their folders.

    Raises:
        UserError: as `read_run`.
    """
    paths = (path for path in sorted(checkpoints.rglob(_FILE)) if not _is_trial(path.parent))
    found = map(read_run, (path.parent for path in paths))
    return [run for run in found if run is not None and (not kinds or run.kind in kinds)]


def find_unfinished(checkpoints: Path) -> list[Path]:
    """The folders below an experiment's checkpoints in which a run began that is not finished."""
    begun = {path.parent for name in _OF_RUNS for path in checkpoints.glob(f"*/**/{name}")}
    return [folder for folder in sorted(begun) if not is_finished(folder) and not _is_trial(folder)]


def _is_trial(folder: Path) -> bool:
    """Whether a run's folder is that of a trial of its learning rate, which says nothing beside that."""
    return folder.parent.name == "cache"


def _refusal(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path}: expected the result of a fine-tuning run, found something else ({reason}). Remove it, and the same "
        "command writes it again, from the run's last weights, or by training where these were discarded; nothing else "
        "was touched."
    )


def tested_weights(runs: Sequence[Run]) -> str:
    """Whose weights predicted in runs that did: `the best epoch's`, `the last epoch's`, or both."""
    if all(run.tested_epoch == run.best.epoch for run in runs):
        return "the best epoch's"
    if all(run.tested_epoch == run.last.epoch for run in runs):
        return "the last epoch's"
    return "some runs' best and others' last epoch's"


def by_combination(runs: Sequence[Run]) -> dict[tuple[int, float], list[Run]]:
    """Runs that differ in their seeds alone, together."""
    combinations: dict[tuple[int, float], list[Run]] = {}
    for run in runs:
        combinations.setdefault(run.settings.combination, []).append(run)
    return combinations


def ranked(runs: Sequence[Run]) -> list[list[Run]]:
    """The combinations, best first: by the number of finished seeds, then by the best epochs' mean of the main metric
    on the validation data. Where a seed diverged, the mean of those that did not says too much.
    """

    def rank(alike: list[Run]) -> tuple[int, float]:
        return len(alike), spread_of(alike, lambda run: run.best.metrics[run.main_metric]).mean

    return sorted(by_combination(runs).values(), key=rank, reverse=True)


def best_combination(runs: Sequence[Run]) -> list[Run]:
    """The first of the `ranked` ones."""
    return ranked(runs)[0]


def spread_of(runs: Sequence[Run], value: Callable[[Run], float]) -> Spread:
    """A figure's mean and deviation over runs."""
    return Spread.of([value(run) for run in runs])
