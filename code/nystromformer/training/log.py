"""The record of a run for people: one JSON object a line, TensorBoard, and lines or a bar on the way.

Nothing is decided by it: what a run needs to go on, and what its results are made of, stands in its checkpoints.
"""

import json
import logging
import math
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, writing

logger = logging.getLogger(__name__)

LOG, _BOARD = "log.jsonl", "tensorboard"
_NAMED = 5
"""Lines that are no records, which a warning names; it counts the others."""


class RunLog:
    """Writes `log.jsonl` and TensorBoard files, and shows progress.

    Args:
        folder: where the files go.
        step: the step that the run goes on from; later lines of an earlier attempt are dropped, because their steps
            are run again.
        num_steps: of the whole run.
        unvalidated: whether the validation at `step` is run again, too.
    """

    def __init__(self, folder: Path, step: int, num_steps: int, unvalidated: bool = False) -> None:
        self.path = folder / LOG
        _drop_after(self.path, step, unvalidated)
        self._file = self.path.open("a", encoding="utf-8")
        # Imported here: it takes a second, and nothing else of the package needs it.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._board_folder = folder / _BOARD
        self._excepthook = threading.excepthook
        threading.excepthook = self._thread_failed
        with writing(self._board_folder):
            self._board = SummaryWriter(str(self._board_folder), purge_step=step + 1)
        self._bar = tqdm(
            total=num_steps, initial=step, unit="step", disable=not sys.stderr.isatty(), dynamic_ncols=True
        )
        self._num_steps = num_steps
        self._started = time.monotonic()
        self._first_step = step

    def advance(self) -> None:
        self._bar.update()

    def event(self, kind: str, step: int, **values: Any) -> None:
        """A line of the record without numbers to plot."""
        self._write({"type": kind, "step": step, **values})

    def train(self, step: int, epoch: int, metrics: dict[str, float], speed: dict[str, float]) -> None:
        """A report of the steps since the last one."""
        self._write({"type": "train", "step": step, "epoch": epoch, **metrics, **speed})
        self._plot("train", step, {**metrics, **speed})
        memory = f"peak memory {speed['memory_mib'] / 1024:,.2f} GiB"
        text = f"{describe(metrics) or 'no loss'}, {speed['tokens_per_second']:,.0f} tokens/s, {memory}"
        if left_out := speed.get("steps_left_out"):
            text += f", {left_out:.0f} steps left out (float16 overflow, loss scale {speed['loss_scale']:g})"
        if self._bar.disable:
            logger.info("step %d/%d: %s, %s left", step, self._num_steps, text, self._time_left(step))
        else:
            self._bar.set_postfix_str(text)

    def validation(self, step: int, epoch: int, metrics: dict[str, float]) -> None:
        self._write({"type": "validation", "step": step, "epoch": epoch, **metrics})
        self._plot("validation", step, metrics)
        self.say(f"epoch {epoch}, step {step}/{self._num_steps}: validation {describe(metrics)}")

    def say(self, text: str) -> None:
        """A line for people, above the bar where there is one."""
        if self._bar.disable:
            logger.info(text)
        else:
            self._bar.write(text, file=sys.stderr)

    def flush(self) -> None:
        """Make sure of what was written: a checkpoint is about to say that these steps are done."""
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        with writing(self._board_folder):
            self._board.flush()

    def close(self) -> None:
        self._bar.close()
        threading.excepthook = self._excepthook
        with writing(self._board_folder):
            self._board.close()
        with writing(self.path):
            self._file.close()

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        # What TensorBoard's own thread cannot write, the next call raises here.
        if not type(args.thread).__module__.startswith("tensorboard."):
            self._excepthook(args)

    def _write(self, record: dict[str, Any]) -> None:
        # JSON has no infinity: a float16 step that overflowed has no gradient norm.
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        with writing(self.path):
            self._file.write(json.dumps({**finite, "time": round(time.time(), 3)}) + "\n")
            self._file.flush()

    def _plot(self, prefix: str, step: int, values: dict[str, float]) -> None:
        with writing(self._board_folder):
            for name, value in values.items():
                self._board.add_scalar(f"{prefix}/{name}", value, step)

    def _time_left(self, step: int) -> str:
        seconds = (time.monotonic() - self._started) / max(1, step - self._first_step) * (self._num_steps - step)
        return str(tqdm.format_interval(seconds))


class SilentLog:
    """The log of a process for which another one writes: same methods, no effect."""

    def advance(self) -> None: ...

    def event(self, kind: str, step: int, **values: Any) -> None: ...

    def train(self, step: int, epoch: int, metrics: dict[str, float], speed: dict[str, float]) -> None: ...

    def validation(self, step: int, epoch: int, metrics: dict[str, float]) -> None: ...

    def say(self, text: str) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def describe(metrics: dict[str, float]) -> str:
    """`loss 5.012, mlm_accuracy 21.3 %` for people."""
    return ", ".join(
        f"{name} {100 * value:.1f} %" if "accuracy" in name else f"{name} {value:.4g}"
        for name, value in metrics.items()
    )


def check_log(folder: Path) -> None:
    """Check that a run's record can be written, before anything is computed.

    Raises:
        UserError: names what is in the way.
    """
    log, board = folder / LOG, folder / _BOARD
    if os.path.lexists(log):
        if not log.is_file():
            raise UserError(f"{log}: expected the file of a run's log, found something else: move it away")
        try:
            log.open("r+b").close()
        except OSError as error:
            raise UserError(f"{log}: the run's log cannot be written: {error.strerror or error}") from error
    try:
        board.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=board):
            pass
    except OSError as error:
        raise UserError(
            f"{board}: TensorBoard's files cannot be written there: {error.strerror or error}. Make it a folder that "
            "can be written to, or move it away."
        ) from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a `log.jsonl`, each with a "type" and a "step".

    Lines that are none (blank, damaged, cut short by a kill) are passed over with one warning.

    Raises:
        UserError: the file cannot be read.
    """
    records: list[dict[str, Any]] = []
    others: list[int] = []
    for number, line in enumerate(_read_lines(path), start=1):
        record = _record(line)
        if record is None:
            others.append(number)
        else:
            records.append(record)
    _warn(path, others, "passed over")
    return records


def figure(record: dict[str, Any], name: str) -> float | None:
    """A figure of a record; None where it is not there, or is no finite number."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and _is_finite(value) else None


def _is_finite(value: float) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _read_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            return file.readlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        return None
    step = record.get("step")
    return record if type(step) is int and 0 <= step < 1 << 63 else None


def _warn(path: Path, lines: list[int], fate: str) -> None:
    """Say once of a file which of its lines are no records, and what becomes of them."""
    if not lines:
        return
    numbers = ", ".join(map(str, lines[:_NAMED]))
    more = f" and {len(lines) - _NAMED:,} more" if len(lines) > _NAMED else ""
    noun, are = ("line", "is not a record") if len(lines) == 1 else ("lines", "are not records")
    logger.warning("%s: %s %s%s %s of a run (blank, damaged or cut short): %s", path, noun, numbers, more, are, fate)


def _drop_after(path: Path, step: int, unvalidated: bool) -> None:
    """Make a log ready to go on at a step: without the records of later ones, and with all else that it has, byte by
    byte, even where that is no record.

    Raises:
        UserError: it cannot be read or written.
    """
    if not os.path.lexists(path):
        return

    def is_run_again(record: dict[str, Any]) -> bool:
        again = unvalidated and record["type"] == "validation" and record["step"] == step
        return bool(record["step"] > step or again)

    lines = _read_lines(path)
    records = [_record(line) for line in lines]
    _warn(path, [number for number, record in enumerate(records, 1) if record is None], "kept, and passed over")
    staying = [line for line, record in zip(lines, records, strict=True) if record is None or not is_run_again(record)]
    if staying and not staying[-1].endswith(b"\n"):
        staying[-1] += b"\n"  # what comes next begins a line of its own
    if staying != lines:
        with NewFile(path) as shorter:
            shorter.write(b"".join(staying))
