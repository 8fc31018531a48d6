"""Units of a shared run: done once each, by whichever process comes first, found again when the command comes back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from nystromformer.data.preprocessing.pool import Report, Work, run_tasks
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.data.preprocessing.stages import StageOutput, Stages, Stamps
from nystromformer.errors import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unit:
    """A unit of a run.

    name: of its stamp; fingerprint: of everything that its output depends on.
    size: bytes of text that it reads, by which progress is shown.
    work: writes files under final names and returns their stamps.
    """

    name: str
    fingerprint: str
    size: int
    work: Work[StageOutput]


@dataclass(frozen=True)
class Share:
    """One of the equal tasks into which an array job divides a run: units task, task + num_tasks, …"""

    task: int
    num_tasks: int

    def __post_init__(self) -> None:
        if not 0 <= self.task < self.num_tasks:
            raise UserError(
                f"--task: expected 0 to {self.num_tasks - 1} with --num_tasks {self.num_tasks}, found {self.task}"
            )


@dataclass(frozen=True)
class _Claimed:
    """A unit's work, unless another process is at it (None; a patient one waits) or has finished it meanwhile."""

    stamps: Stamps
    unit: Unit
    patient: bool = False

    def __call__(self, report: Report) -> StageOutput | None:
        with self.stamps.claim(self.unit.name, report if self.patient else None) as mine:
            if not mine:
                return None
            output = self.stamps.find(self.unit.name, self.unit.fingerprint)
            if output is None:
                output = self.unit.work(report)
                self.stamps.write(self.unit.name, self.unit.fingerprint, output)
            return output


def run_units(
    stages: Stages,
    units: Sequence[Unit],
    workers: int,
    label: str,
    share: Share | None = None,
    counted: str = "tokens",
) -> dict[str, StageOutput]:
    """Do the units that are not finished yet, or a share of them.

    Args:
        counted: what they report besides bytes.

    Returns:
        The outputs by the units' names, in the units' order.

    Raises:
        UserError: what a unit raises, or a worker process was killed.
    """
    if share is not None:
        units = units[share.task :: share.num_tasks]
    found = {unit.name: stages.stamps.find(unit.name, unit.fingerprint) for unit in units}
    missing = [unit for unit in units if found[unit.name] is None]
    if missing:
        stages.unfinish()
        total = sum(unit.size for unit in units)
        done = total - sum(unit.size for unit in missing)
        if len(missing) < len(units):
            log.info("%s: %d of %d parts found finished", label, len(units) - len(missing), len(units))
        with ReadingProgress(label, total, done, counted) as progress:
            for patient in (False, True):
                works = [_Claimed(stages.stamps, unit, patient) for unit in missing]
                with closing(run_tasks(works, workers, progress)) as results:
                    for index, output in results:
                        found[missing[index].name] = output
                missing = [unit for unit in missing if found[unit.name] is None]
        stages.ran.append(label)
    return {name: output for name, output in found.items() if output is not None}
