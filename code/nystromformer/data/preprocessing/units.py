"""Units of a shared run: done once each, by whichever process comes first, found again when the command comes back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from nystromformer.data.preprocessing.pool import Report, Work, run_works
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.data.preprocessing.stages import StageOutput, Stages, Stamps
from nystromformer.errors import UserError
from nystromformer.wording import number_of

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
class ArraySlice:
    """What one job of an array job does of a run: units index, index + size, … of all."""

    index: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.size:
            raise UserError(
                f"--array_index: expected 0 to {self.size - 1} with --array_size {self.size}, found {self.index}"
            )

    def __str__(self) -> str:
        return f"array index {self.index} of {self.size}"


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
    array_slice: ArraySlice | None = None,
    counted: str = "tokens",
) -> dict[str, StageOutput]:
    """Do the units that are not finished yet, or a slice of them.

    Args:
        array_slice: do these only.
        counted: what they report besides bytes.

    Returns:
        The outputs by the units' names, in the units' order.

    Raises:
        UserError: what a unit raises, or a worker process was killed.
    """
    everything = units
    if array_slice is not None:
        units = units[array_slice.index :: array_slice.size]
    outputs = {unit.name: stages.stamps.find(unit.name, unit.fingerprint) for unit in units}
    missing = [unit for unit in units if outputs[unit.name] is None]
    if missing:
        stages.unfinish()
        total = sum(unit.size for unit in units)
        done = total - sum(unit.size for unit in missing)
        if len(missing) < len(units):
            log.info("%s: %d of %s found finished", label, len(units) - len(missing), number_of(len(units), "part"))
        with ReadingProgress(label, total, done, counted) as progress:
            for patient in (False, True):
                works = [_Claimed(stages.stamps, unit, patient) for unit in missing]
                with closing(run_works(works, workers, progress)) as results:
                    for index, output in results:
                        outputs[missing[index].name] = output
                missing = [unit for unit in missing if outputs[unit.name] is None]
        stages.ran.append(label)
    if array_slice is not None:
        log.info("%s: %d of %s done", array_slice, len(units), number_of(len(everything), "part"))
    return {name: output for name, output in outputs.items() if output is not None}
