"""The record of a run for people: one JSON object a line, TensorBoard, and lines or a bar on the way.

Nothing is decided by it: what a run needs to go on, and what its results are made of, stands in its checkpoints.
"""

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, writing

logger = logging.getLogger(__name__)

LOG, _BOARD = "log.jsonl", "tensorboard"


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
        self._num_steps, self._first_step, self._started = num_steps, step, time.monotonic()

    def advance(self) -> None:
        self._bar.update()

    def event(self, kind: str, step: int, **values: Any) -> None:
        """A line of the record without numbers to plot."""
        self._write({"type": kind, "step": step, **values})

    def train(self, step: int, epoch: int, metrics: dict[str, float], state: dict[str, float]) -> None:
        """A report of the steps since the last one."""
        self._write({"type": "train", "step": step, "epoch": epoch, **metrics, **state})
        self._plot("train", step, {**metrics, **state})
        memory = f"peak memory {state['memory_mib'] / 1024:,.2f} GiB"
        text = f"{_describe(metrics) or 'no loss'}, {state['tokens_per_second']:,.0f} tokens/s, {memory}"
        if left_out := state.get("steps_left_out"):
            text += f", {left_out:.0f} steps left out (float16 overflow, loss scale {state['loss_scale']:g})"
        if not self._bar.disable:
            self._bar.set_postfix_str(text)
            return
        pace = (time.monotonic() - self._started) / max(1, step - self._first_step)
        left = tqdm.format_interval(pace * (self._num_steps - step))
        logger.info("step %d/%d: %s, %s left", step, self._num_steps, text, left)

    def validation(self, step: int, epoch: int, metrics: dict[str, float]) -> None:
        self._write({"type": "validation", "step": step, "epoch": epoch, **metrics})
        self._plot("validation", step, metrics)
        self.say(f"epoch {epoch}, step {step}/{self._num_steps}: validation {_describe(metrics)}")

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


class SilentLog:
    """The log of a process for which another one writes: same methods, no effect."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **others: None


def _describe(metrics: dict[str, float]) -> str:
    """`loss 5.012, mlm_accuracy 21.3 %` for people."""
    return ", ".join(
        f"{name} {100 * value:.1f} %" if "accuracy" in name else f"{name} {value:.4g}"
        for name, value in metrics.items()
    )


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a `log.jsonl`, each with a "type" and a "step"; a last line that a kill cut short is none."""
    return [record for _, record in _records(path)]


def figure(record: dict[str, Any], name: str) -> float | None:
    """A figure of a record; None where it is not there, or is no finite number."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _records(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Lines and what they say."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                if {type(record["type"]), type(record["step"])} != {str, int}:
                    raise ValueError
            except (ValueError, LookupError, TypeError):
                raise UserError(
                    f"{path}, line {number}: expected a record of a run, found something else: move the file away to "
                    "go on without it"
                ) from None
            yield line, record


def _drop_after(path: Path, step: int, unvalidated: bool) -> None:
    """Make a log ready to go on at a step: without the records of later ones."""
    if not path.exists():
        return
    staying = b""
    for line, record in _records(path):
        again = unvalidated and record["type"] == "validation" and record["step"] == step
        if record["step"] <= step and not again:
            staying += line
    if len(staying) < path.stat().st_size:
        with NewFile(path) as shorter:
            shorter.write(staying)
