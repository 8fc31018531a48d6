"""The record of a run: one JSON object a line, TensorBoard, and lines or a bar for people."""

import json
import logging
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nystromformer.files import NewFile, writing

logger = logging.getLogger(__name__)


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
        self.path = folder / "log.jsonl"
        _drop_after(self.path, step, unvalidated)
        self._file = self.path.open("a", encoding="utf-8")
        # Imported here: it takes a second, and nothing else of the package needs it.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._board_folder = folder / "tensorboard"
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


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a `log.jsonl`; a last line cut short by a kill is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _drop_after(path: Path, step: int, unvalidated: bool) -> None:
    if not path.exists():
        return
    kept = [
        record
        for record in read_log(path)
        if record.get("step", 0) <= step
        and not (unvalidated and record["type"] == "validation" and record["step"] == step)
    ]
    with NewFile(path) as file:
        for record in kept:
            file.write((json.dumps(record) + "\n").encode())
