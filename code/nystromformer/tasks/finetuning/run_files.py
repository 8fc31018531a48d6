"""What the epochs of a run reached, as its own checkpoints tell it, and which of its files go once it is finished.

The log is for people and decides nothing.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.runs.record import EpochMetrics, Run
from nystromformer.training.archive import read_checkpoint, write_checkpoint
from nystromformer.training.checkpoint import epoch_name, find_checkpoints, newest_facts, weights_of
from nystromformer.training.run_record import kept_record
from nystromformer.training.state import Validated, is_history
from nystromformer.training.tidying import remove_old, remove_weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFiles:
    """A run's folder, and what its files must say to be its own."""

    run: Run
    """Without what it reaches."""
    identity: Mapping[str, Any]
    """What is learned, from what and how."""
    steps_per_epoch: int

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def num_steps(self) -> int:
        return self.run.settings.epochs * self.steps_per_epoch

    def weights(self, epoch: int) -> Path:
        return self.folder / f"{epoch_name(epoch)}.model"

    def history_in(self, content: Mapping[str, Any], path: Path) -> list[Validated]:
        """The validations that a checkpoint of the run remembers.

        Raises:
            UserError: it is no checkpoint of this run.
        """
        if _sign(content.get("finetuning")) != _sign(self.identity):
            raise UserError(f"{path}: a checkpoint of another run than the folder's")
        history: Any = content.get("history")
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
            one["epoch"] < self.run.settings.epochs
            and one["step"] == (one["epoch"] + 1) * self.steps_per_epoch
            and self.run.main_metric in one["metrics"]
        )

    def epochs_of(self, history: Sequence[Validated]) -> tuple[EpochMetrics, ...]:
        """What the validations of a run that is over tell.

        Raises:
            UserError: an epoch's is not among them.
        """
        epochs = tuple(EpochMetrics(one["epoch"], dict(one["metrics"])) for one in history)
        if [epoch.epoch for epoch in epochs] != list(range(self.run.settings.epochs)):
            last = self.weights(self.run.settings.epochs - 1)
            raise UserError(f"{last}: does not say what the run reached in each epoch")
        return epochs

    def of_finished(self) -> tuple[EpochMetrics, ...]:
        """What a run reached whose result is lost and whose last weights are there; nothing is written or removed.

        Raises:
            UserError: the weights are damaged or of another run.
        """
        epoch = self.run.settings.epochs - 1
        return self.epochs_of(self.history_in(self.read_weights(epoch), self.weights(epoch)))

    def check(self, result: Run) -> None:
        """Check a result that was read against the run and against what its checkpoints remember.

        Raises:
            UserError: it is of another run, or says otherwise.
        """
        for name in ("task", "origin", "settings", "main_metric", "identity"):
            if getattr(result, name) != getattr(self.run, name):
                raise result.refusal(f"{name}: of another run than the folder's")
        newest = newest_facts(self.folder)
        history = self._remembered(newest[1], newest[0]) if newest is not None else []
        told = {epoch.epoch: epoch.metrics for epoch in result.epochs}
        for one in history:
            if told.get(one["epoch"]) != one["metrics"]:
                assert newest is not None, "it has the history"
                raise result.refusal(f"epoch {one['epoch']}: not as {newest[0].name} says")

    def _remembered(self, facts: Mapping[str, Any], path: Path) -> list[Validated]:
        try:
            return self.history_in(facts, path)
        except UserError as error:
            logger.warning("%s; it is left as it is", error)
            return []

    def clean_up_after_kill(self, result: Run) -> None:
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
            if content["step"] != self.num_steps:
                raise UserError(f"{path}: of step {content['step']}, not of the run's end")
            if self.epochs_of(history) != result.epochs:
                raise UserError(f"{path}: says otherwise than the run's result")
        except UserError as error:
            logger.warning("%s; the checkpoints of the finished run are left as they are", error)
            return
        self.clean_up(result)

    def clean_up(self, result: Run) -> None:
        """Leave the weights of the best epoch and the last; nothing goes before these are read whole."""
        shown = {result.best.epoch, result.last.epoch}
        for epoch in sorted(shown):
            try:
                self._make_whole(epoch)
            except UserError as error:
                logger.warning("%s; so no checkpoint of the finished run is removed", error)
                return
        record = kept_record(self.folder, self.read_weights(result.last.epoch))
        remove_old(self.folder, record, 0, shown)

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
