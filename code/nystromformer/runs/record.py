"""A run of fine-tuning in one record, `run.json`: what was asked, and, once it is over, what it reached.

It is written when the run starts and completed when it ends. A digest of what was asked names the folder. Predicting,
serving, explaining, exporting and every report read this file alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from nystromformer.config import ModelConfig
from nystromformer.config.attention import what_decides
from nystromformer.config.attention_text import attention_text
from nystromformer.config.network import NO_EFFECT
from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, read_record, write_checked
from nystromformer.files.writing import sha256_of
from nystromformer.runs.figures import Spread
from nystromformer.runs.settings import Count, Predict, Settings, Share

RECORD = "run.json"
TOKENIZER = "tokenizer"
"""The folder of a run's tokenizer, in its own."""
_FORMAT = 7
_OPTIMIZER = ("weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "max_grad_norm")

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
    files: tuple[str, ...]
    """Their paths in the run's folder."""
    metrics: dict[str, float] = field(default_factory=dict)
    """On test data that has labels."""
    rows: dict[str, Rows] = field(default_factory=dict)
    """Examples of each split that has labels."""
    warnings: tuple[str, ...] = ()
    """Why the metrics may not be comparable."""
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Run:
    """A run, finished or not."""

    __pydantic_config__ = STRICT

    kind: str
    """The command of its task, such as "glue"."""
    choices: dict[str, Any]
    """What the command asks of its data: the task's own settings."""
    task: str
    """Where runs of the task lie, such as "glue/MRPC"."""
    command: str
    """As it was typed."""
    experiment: str
    """The experiment folder's name."""
    origin: Origin
    settings: Settings
    config: dict[str, Any]
    """The experiment's, after overrides, with room for the task's rows and tokens."""
    data: str
    """Fingerprint of the training and validation data."""
    main_metric: str
    texts: dict[str, Any] | None = None
    """What predicting other texts needs beside weights and tokenizer; None of a task that predicts none."""
    tokenizer_sha256: str = ""
    """Of the tokenizer that the folder has; empty of data that are no text."""
    precision: str = ""
    """Of the device, where config.json leaves it to that."""
    rows: dict[str, Rows] = field(default_factory=dict)
    """Examples of each split."""
    exact_share: dict[str, Share] = field(default_factory=dict)
    """Share of each split's rows that are short enough for exact attention in every layer."""
    baselines: dict[str, dict[str, Spread]] = field(default_factory=dict)
    """What guessers reach on its data, by their name and the metric's, which ends in "_test" where it is of test data;
    empty where nobody asked for them."""
    warnings: tuple[str, ...] = ()
    """Why the figures may not be comparable, such as partial data."""
    version: str = ""
    device: str = ""
    processes: Count = 1
    epochs: tuple[EpochMetrics, ...] = ()
    """None of a run that is not over."""
    tested: Tested | None = None
    """None where nothing was predicted."""
    format_version: int = _FORMAT
    folder: Path = field(default=Path(), compare=False)

    @property
    def decides(self) -> dict[str, Any]:
        """All that was asked and can change the result. How the work is divided (processes, `inst_per_gpu`) is not of
        it, so that a run may go on elsewhere; with dropout it changes the last digits.
        """
        model = {key: value for key, value in self.model.items() if key not in NO_EFFECT}
        setting = self.config["pretraining_setting"]
        return {
            "task": self.task,
            "start": [self.origin.sha256, self.origin.tokenizer_sha256],
            "positions": self.config["from_cp_positions"] if self.origin.sha256 else "",
            "data": self.data,
            "model": model | {"attn_type": what_decides(model["attn_type"])},
            "optimizer": {key: setting[key] for key in _OPTIMIZER},
            "settings": asdict(self.settings),
            "precision": self.precision,
        }

    @property
    def identity(self) -> str:
        """Another one is another run, in a folder of its own."""
        return digest(self.decides)

    @property
    def family(self) -> str:
        """The same but for the seed: runs of one family may be averaged."""
        return digest({**self.decides, "settings": asdict(self.settings) | {"seed": None}})[:16]

    @property
    def model(self) -> dict[str, Any]:
        """The section "model" of its config."""
        section: dict[str, Any] = self.config["model"]
        return section

    @cached_property
    def attention(self) -> tuple[dict[str, Any], ...]:
        """Of each layer, with all parameters."""
        return tuple(each.model_dump(mode="json") for each in ModelConfig.model_validate(self.model).attentions)

    @property
    def attention_text(self) -> str:
        """The same for people."""
        return attention_text(self.attention)

    @property
    def length(self) -> int:
        """Tokens of the longest row that was allowed."""
        assert self.settings.length is not None, "known once the data are"
        return self.settings.length

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

    @property
    def best_step(self) -> int:
        """The last step of the best epoch, of a run that counts steps."""
        assert self.settings.steps is not None
        assert self.settings.every is not None
        return min(self.settings.steps, (self.best.epoch + 1) * self.settings.every)

    def choose(self, predict: Predict) -> EpochMetrics:
        """The epoch whose weights shall predict."""
        return self.best if predict == "best" else self.last

    @property
    def tested_epoch(self) -> int:
        """Whose weights predicted; the best epoch where none did."""
        return self.best.epoch if self.tested is None else self.tested.epoch

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
        """Folder of the tokenizer that it read its texts with."""
        path = self.folder / TOKENIZER / "tokenizer.json"
        if not path.is_file() or sha256_of(path) != self.tokenizer_sha256:
            raise UserError(
                f"{path}: expected the tokenizer of the run (sha256 {self.tokenizer_sha256[:12]}…), found "
                f"{'another one' if path.is_file() else 'none'}"
            )
        return path.parent

    def write(self) -> None:
        """Write it to its folder, whole or not at all."""
        write_checked(self.folder / RECORD, {key: value for key, value in asdict(self).items() if key != "folder"})


def digest(facts: Mapping[str, Any]) -> str:
    """Equal for equal plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> Run | None:
    """The record of a folder, of a run that is over or not; None where none is."""
    advice = "Remove it, and the same command writes it again, from the run's weights"
    run = read_record(folder / RECORD, Run, advice, _FORMAT)
    return None if run is None else replace(run, folder=folder)


def read_run(folder: Path) -> Run | None:
    """The finished run of a folder; None where none is."""
    run = _read(folder)
    return run if run is not None and run.epochs else None


def open_run(folder: Path, asked: Run | None = None) -> Run:
    """The finished run of a folder; where one is asked for and not finished there, that one.

    Raises:
        UserError: there is none, or another one than is asked for; or as `read_run`.
    """
    found = _read(folder)
    if asked is None:
        if found is None or not found.epochs:
            raise UserError(
                f"{folder}: expected the folder of a finished fine-tuning run, with {RECORD}, such as "
                "MODEL/model/imdb/cp-0099-…"
            )
        return found
    if found is None:
        return asked
    before, now = found.decides, asked.decides
    if differing := [key for key in now if digest({key: before[key]}) != digest({key: now[key]})]:
        raise UserError(f"{folder / RECORD}: of a run with other {', '.join(differing)}: move the folder away")
    return found if found.epochs else asked


def find_runs(checkpoints: Path) -> list[Run]:
    """The finished runs below an experiment's checkpoints, in the order of their folders."""
    found = (read_run(path.parent) for path in sorted(checkpoints.rglob(RECORD)))
    return [run for run in found if run is not None]


def tested_weights(runs: Sequence[Run]) -> str:
    """Whose weights predicted in runs that did: `the best epoch's`, `the last epoch's`, or both."""
    if all(run.tested_epoch == run.best.epoch for run in runs):
        return "the best epoch's"
    if all(run.tested_epoch == run.last.epoch for run in runs):
        return "the last epoch's"
    return "some runs' best and others' last epoch's"


def ranked(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs by their combinations, best first: by the number of finished seeds, then by the best epochs' mean of the
    main metric on the validation data. Where a seed diverged, the mean of those that did not says too much.
    """
    combinations: dict[tuple[int, float], list[Run]] = {}
    for run in runs:
        combinations.setdefault(run.settings.combination, []).append(run)

    def rank(alike: list[Run]) -> tuple[int, float]:
        return len(alike), spread_of(alike, lambda run: run.best.metrics[run.main_metric]).mean

    return sorted(combinations.values(), key=rank, reverse=True)


def spread_of(runs: Sequence[Run], value: Callable[[Run], float]) -> Spread:
    """A figure's mean and deviation over runs."""
    return Spread.of([value(run) for run in runs])
