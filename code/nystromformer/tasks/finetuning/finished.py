"""What the epochs of a run reached, as its own checkpoints tell it, and which of its files go once it is finished.

The log is for people and decides nothing; but runs of versions whose checkpoints did not remember their validations
have these nowhere else.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.tasks.experiment.run import Saved
from nystromformer.tasks.finetuning.results import RESULT_FILE, EpochMetrics, RunResult, refusal
from nystromformer.tasks.finetuning.settings import RunSettings
from nystromformer.training.archive import read_checkpoint, write_checkpoint
from nystromformer.training.checkpoint import epoch_name, find_checkpoints, newest_facts, weights_of
from nystromformer.training.log import figure, read_log
from nystromformer.training.run_record import kept_record
from nystromformer.training.state import Validated, is_history
from nystromformer.training.tidying import remove_old, remove_weights

logger = logging.getLogger(__name__)

_NO_METRICS = ("type", "step", "epoch", "time")
"""What else a validation's line in the log has."""


@dataclass(frozen=True)
class Outcome:
    """What a run's epochs reached."""

    epochs: list[EpochMetrics]
    unknown: list[int]
    """The epochs that nothing tells of any more."""

    @property
    def warnings(self) -> list[str]:
        if not self.unknown:
            return []
        return [
            f"the validation of {_epochs(self.unknown)} is unknown (the run began with a version that kept it in "
            "log.jsonl alone, which was damaged): the best epoch is the best of the others"
        ]


@dataclass(frozen=True)
class RunFiles:
    """A run's folder, and what its files must say to be its own."""

    folder: Path
    identity: Mapping[str, Any]
    """What is learned, from what and how."""
    task: str
    checkpoint_sha256: str
    settings: RunSettings
    steps_per_epoch: int
    main_metric: str

    @property
    def num_steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    def weights(self, epoch: int) -> Path:
        return self.folder / f"{epoch_name(epoch)}.model"

    def history_in(self, content: Mapping[str, Any], path: Path) -> list[Validated] | None:
        """The validations that a checkpoint of the run remembers; None where it is of a version that did not.

        Raises:
            UserError: it is no checkpoint of this run.
        """
        if _sign(content.get("finetuning")) != _sign(self.identity):
            raise UserError(f"{path}: a checkpoint of another run than the folder's")
        if "history" not in content:
            return None
        history = content["history"]
        if not is_history(history, content.get("step", 0)) or not all(map(self._is_own, history)):
            raise UserError(f"{path}: its history is none of this run's validations")
        return list(history)

    def read_weights(self, epoch: int) -> dict[str, Any]:
        """The content of an epoch's weights.

        Raises:
            UserError: they are not there, damaged, or not this run's of this epoch.
        """
        path = self.weights(epoch)
        content = read_checkpoint(path, mmap=True)
        self.history_in(content, path)
        if content.get("epoch") != epoch:
            raise UserError(f"{path}: the weights of epoch {content.get('epoch')!r:.20} under another one's name")
        return content

    def _is_own(self, one: Validated) -> bool:
        return (
            one["epoch"] < self.settings.epochs
            and one["step"] == (one["epoch"] + 1) * self.steps_per_epoch
            and self.main_metric in one["metrics"]
        )

    def outcome(self, history: Sequence[Validated]) -> Outcome:
        """What the validations of a run that is over tell.

        Raises:
            UserError: the last epoch's is not among them.
        """
        epochs = [EpochMetrics(one["epoch"], dict(one["metrics"])) for one in history]
        last = self.settings.epochs - 1
        if [epoch.epoch for epoch in epochs][-1:] != [last]:
            raise UserError(f"{self.weights(last)}: does not say what the run reached in its last epoch")
        known = {epoch.epoch for epoch in epochs}
        return Outcome(epochs, [epoch for epoch in range(self.settings.epochs) if epoch not in known])

    def of_finished(self) -> Outcome:
        """What a run reached whose result is lost and whose last weights are there; nothing is written or removed.

        Raises:
            UserError: the weights are damaged or of another run, or, of an earlier version, the log has not all.
        """
        epoch = self.settings.epochs - 1
        last = self.weights(epoch)
        history = self.history_in(self.read_weights(epoch), last)
        if history is None:
            history = self._logged(self.settings.epochs)
        if history is None:
            raise UserError(
                f"{self.folder / RESULT_FILE}: is not there and cannot be made again: {last.name} is of a version that "
                f"kept the validations in log.jsonl alone, which has not all of them any more. The weights stay as "
                f"they are; restore one of the two files, or move {self.folder} away to train the run again."
            )
        return self.outcome(history)

    def recall(self, saved: Saved) -> list[Validated]:
        """The validations before a checkpoint of a version that did not remember them: the log's, all or none."""
        epoch = int(saved.content["epoch"])
        done = epoch + (saved.path.stem == epoch_name(epoch))
        best = saved.content["progress"].get("best")
        history = self._logged(done, best)
        if history is None:
            logger.warning(
                "%s: has not all validations up to %s, which is of a version that kept them there alone: those of %s "
                "stay unknown, and the result will say so",
                *(self.folder / "log.jsonl", saved.path.name, _epochs(range(done))),
            )
        return history or []

    def _logged(self, count: int, best: object = None) -> list[Validated] | None:
        """The validations of the first `count` epochs by the log; None where one is missing or cannot be right.

        Args:
            best: the best epoch and its value, by a checkpoint.
        """
        path = self.folder / "log.jsonl"
        by_epoch: dict[int, Validated] = {}
        for record in read_log(path) if path.is_file() else ():
            names = [name for name in record if name not in _NO_METRICS]
            metrics = {name: figure(record, name) for name in names}
            one: Any = {"epoch": record.get("epoch"), "step": record["step"], "metrics": metrics}
            if record["type"] == "validation" and is_history([one], record["step"]) and self._is_own(one):
                by_epoch[one["epoch"]] = one
        history = [by_epoch[epoch] for epoch in range(count) if epoch in by_epoch]
        if len(history) < count:
            return None
        if best:
            values = [one["metrics"][self.main_metric] for one in history]
            if not values or best != [values.index(max(values)), max(values)]:
                return None
        return history

    def check(self, result: RunResult) -> None:
        """Check a result that was read against the run and against what its checkpoints remember.

        Raises:
            UserError: it is of another run, or says otherwise.
        """
        path = self.folder / RESULT_FILE
        own = {
            "task": self.task,
            "checkpoint_sha256": self.checkpoint_sha256,
            "main_metric": self.main_metric,
            "settings": self.settings.as_data(),
        }
        for name, value in own.items():
            if getattr(result, name) != value:
                raise refusal(path, f"{name}: of another run than the folder's")
        newest = newest_facts(self.folder)
        history = self._remembered(newest[1], newest[0]) if newest is not None else []
        told = {epoch.epoch: epoch.metrics for epoch in result.epochs}
        for one in history:
            if told.get(one["epoch"]) != one["metrics"]:
                assert newest is not None, "it has the history"
                raise refusal(path, f"epoch {one['epoch']}: not as {newest[0].name} says")

    def _remembered(self, facts: Mapping[str, Any], path: Path) -> list[Validated]:
        try:
            return self.history_in(facts, path) or []
        except UserError as error:
            logger.warning("%s; it is left as it is", error)
            return []

    def clean_up_after_kill(self, result: RunResult) -> None:
        """Finish what a kill between a run's result and its cleaning up left, where a checkpoint proves that it is so;
        whatever else lies in a finished run's folder stays.
        """
        checkpoints = find_checkpoints(self.folder)
        if not checkpoints:
            return
        path = checkpoints[-1].path
        try:
            content = read_checkpoint(path)
            history = self.history_in(content, path)
            if not isinstance(content.get("progress"), dict) or "best" not in content["progress"]:
                raise UserError(f"{path}: holds weights only")
            best = content["progress"]["best"]
            if content["step"] != self.num_steps:
                raise UserError(f"{path}: of step {content['step']}, not of the run's end")
            # Of a version without a history: the checkpoint knows the best epoch.
            proved = [result.best.epoch, result.best.metrics[self.main_metric]] == best
            if history is not None:
                proved = self.outcome(history).epochs == result.epochs
            if not proved:
                raise UserError(f"{path}: says otherwise than {RESULT_FILE}")
        except UserError as error:
            logger.warning("%s; the checkpoints of the finished run are left as they are", error)
            return
        self.clean_up(result, best)

    def clean_up(self, result: RunResult, best: Sequence[float]) -> None:
        """Leave the weights of the best epoch and the last; nothing goes before these are read whole.

        Args:
            best: the best epoch and its value by the run's own record, which may know more than the result.
        """
        shown = {result.best.epoch, result.last.epoch}
        for epoch in sorted(shown):
            try:
                self._make_whole(epoch)
            except UserError as error:
                logger.warning("%s; so no checkpoint of the finished run is removed", error)
                return
        record = kept_record(self.folder, self.read_weights(result.last.epoch))
        remove_old(self.folder, record, 0, shown | {int(epoch) for epoch in best[:1]} | set(result.unknown_epochs))

    def discard_weights(self) -> None:
        """Remove all weights that the run wrote."""
        newest = newest_facts(self.folder)
        if newest is None:
            return
        path, facts = newest
        try:
            self.history_in(facts, path)
        except UserError as error:
            logger.warning("%s; no weights are removed", error)
            return
        remove_weights(self.folder, kept_record(self.folder, facts))

    def _make_whole(self, epoch: int) -> None:
        """Make an epoch's weights that are damaged or gone again from its `.cp`.

        Raises:
            UserError: there is none, or it is damaged, too.
        """
        try:
            self.read_weights(epoch)
        except UserError as error:
            weights = self.weights(epoch)
            whole = weights.with_suffix(".cp")
            if not whole.is_file():
                raise
            write_checkpoint(weights_of(read_checkpoint(whole)), weights)
            self.read_weights(epoch)
            logger.warning("%s; made again from %s", error, whole.name)


def _sign(facts: object) -> str | None:
    """Equal for equal plain data; None for anything else."""
    try:
        return json.dumps(facts, sort_keys=True)
    except (TypeError, ValueError):
        return None


def _epochs(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"epoch {numbers[0]}"
    return f"epochs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
