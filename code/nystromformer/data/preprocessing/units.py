"""Units of a shared run: done once each, by whichever process comes first, found again when the command comes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from filelock import FileLock, Timeout

from nystromformer.data.preprocessing.pool import Report, Work, run_works
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.data.preprocessing.stages import StageOutput, Stages, Stamps
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_TRIES = 0.5


@dataclass(frozen=True)
class Unit:
    """A unit of a run.

    name: of its stamp; fingerprint: of everything that its output depends on.
    size: bytes of text that it reads, by which progress is shown.
    work: writes files under final names and returns their stamps.
    verify: whether its files count as finished only after their content was compared with the stamps.
    """

    name: str
    fingerprint: str
    size: int
    work: Work[StageOutput]
    verify: bool = False


def run_units(
    stages: Stages,
    units: Sequence[Unit],
    workers: int,
    label: str,
    part: slice | None = None,
    counted: str = "tokens",
) -> dict[str, StageOutput]:
    """Do the units that are not finished yet, or a slice of them.

    Args:
        part: of the list of units, that an array job does; None: all.
        counted: what they report besides bytes.

    Returns:
        The outputs by the units' names, in the units' order.

    Raises:
        UserError: what a unit raises, or a worker process was killed.
    """
    mine = units[part or slice(None)]
    outputs = {unit.name: stages.stamps.find(unit.name, unit.fingerprint, unit.verify) for unit in mine}
    missing = [unit for unit in mine if outputs[unit.name] is None]
    if missing:
        stages.unfinish()
        total = sum(unit.size for unit in mine)
        done = total - sum(unit.size for unit in missing)
        if len(missing) < len(mine):
            log.info("%s: %d of %s already finished", label, len(mine) - len(missing), number_of(len(mine), "part"))
        with ReadingProgress(label, total, done, counted) as progress:
            # What another process is at is waited for last.
            for patient in (False, True):
                works = [partial(_claim, stages.stamps, unit, patient) for unit in missing]
                with closing(run_works(works, workers, progress)) as results:
                    for index, output in results:
                        outputs[missing[index].name] = output
                missing = [unit for unit in missing if outputs[unit.name] is None]
    if part is not None:
        log.info(
            "array index %d of %d: %d of %s done", *(part.start, part.step, len(mine)), number_of(len(units), "part")
        )
    return {name: output for name, output in outputs.items() if output is not None}


def _claim(stamps: Stamps, unit: Unit, patient: bool, report: Report) -> StageOutput | None:
    """Do a unit's work, unless another process has finished it; None while another is at it, unless patient."""
    lock = FileLock(stamps.lock_file(unit.name))
    # not acquired by waiting in it: a worker, which is deaf to Ctrl-C, would hang there
    while True:
        with suppress(Timeout):
            lock.acquire(blocking=False)
            break
        if not patient:
            return None
        report(0, 0)
        time.sleep(_SECONDS_BETWEEN_TRIES)
    try:
        output = stamps.find(unit.name, unit.fingerprint, unit.verify)
        if output is None:
            output = unit.work(report)
            stamps.write(unit.name, unit.fingerprint, output)
        return output
    finally:
        lock.release()
