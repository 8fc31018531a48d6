"""What the epochs of a run reached, as its own checkpoints tell it, and which of its files go once it is finished.

The log is for people and decides nothing.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.runs.record import EpochMetrics, Run
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import epoch_name, find_checkpoints, remove_old
from nystromformer.training.state import Validated

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFiles:
    """A run's folder, and what its files must say to be its own."""

    run: Run
    """Without what it reaches."""
    identity: Mapping[str, Any]
    """What is learned, from what and how."""

    @property
    def folder(self) -> Path:
        return self.run.folder

    def weights(self, epoch: int) -> Path:
        return self.folder / f"{epoch_name(epoch)}.model"

    def history_in(self, content: Mapping[str, Any], path: Path) -> list[Validated]:
        """The validations that a checkpoint of the run remembers.

        Raises:
            UserError: it is no checkpoint of this run.
        """
        if content.get("finetuning") != self.identity:
            raise UserError(f"{path}: this checkpoint belongs to another run than the folder")
        return list(content["history"])

    def read_weights(self, epoch: int) -> dict[str, Any]:
        """The content of an epoch's weights.

        Raises:
            UserError: they are not there, damaged, or not this run's of this epoch.
        """
        path = self.weights(epoch)
        content = read_checkpoint(path, mmap=True)
        self.history_in(content, path)
        if content.get("epoch") != epoch:
            raise UserError(f"{path}: holds the weights of epoch {content.get('epoch')!r:.20}, unlike its name")
        return content

    def epochs_in(self, content: Mapping[str, Any], path: Path) -> tuple[EpochMetrics, ...]:
        """What the run reached in each epoch, by the checkpoint of its end.

        Raises:
            UserError: it is no checkpoint of this run's end.
        """
        epochs = tuple(EpochMetrics(one["epoch"], dict(one["metrics"])) for one in self.history_in(content, path))
        settings = self.run.settings
        is_whole = len(epochs) == settings.epochs or (settings.patience is not None and len(epochs) > 0)
        if not is_whole or [epoch.epoch for epoch in epochs] != list(range(len(epochs))):
            raise UserError(f"{path}: does not hold the run's metrics of each epoch")
        return epochs

    def clean_up(self, result: Run) -> None:
        """Leave the weights of the best epoch and the last; nothing goes before these are read whole."""
        if not find_checkpoints(self.folder):
            return  # as is done already
        kept = {result.best.epoch, result.last.epoch}
        try:
            for epoch in sorted(kept):
                self.read_weights(epoch)
        except UserError as error:
            logger.warning("%s; so no checkpoint of the finished run is removed", error)
            return
        remove_old(self.folder, 0, kept)
