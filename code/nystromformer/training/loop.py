"""The one way to train, or to go on with a training: plain PyTorch, for anything trainable."""

import json
import logging
import math
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.training.checkpoint import (
    FORMAT,
    CheckpointFile,
    epoch_name,
    find_checkpoints,
    find_weights,
    hold_folder,
    load_weights,
    plain,
    read_checkpoint,
    read_newest,
    remove_old,
    write_checkpoint,
    write_weights,
)
from nystromformer.training.device import Device, peak_memory_in_mib
from nystromformer.training.group import Group, accumulation, on_cpu, unwrapped
from nystromformer.training.log import RunLog, SilentLog
from nystromformer.training.optim import build_optimizer, check_finite, learning_rate
from nystromformer.training.state import RunState, TrainingSettings, Validated, best_epoch, dropout_seed
from nystromformer.training.trainable import Step, Trainable, to_device
from nystromformer.wording import listed

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Fitted(NamedTuple):
    """What became of a training: its validations so far, and the signal that stopped it; None: it is over."""

    history: list[Validated]
    stopped_by: signal.Signals | None


def fit(
    build: Callable[[bool], tuple[Trainable, Mapping[str, Any]]],
    settings: TrainingSettings,
    folder: Path,
    device: Device,
    asked: Mapping[str, Any],
    title: str,
    may_change: Collection[str] = (),
    group: Group = Group(),  # noqa: B008  # immutable
) -> Fitted:
    """Train in a folder, from its newest whole checkpoint where it has one, to the end or until a signal. Of a training
    that is over nothing is built. Each process of a group calls this.

    Args:
        build: gives model, data and loss, the model on the device; and plain data that every checkpoint carries, of
            which what is missing stays as it was. Called with whether the training begins now.
        folder: where checkpoints and logs go; it is made, and held as long as this takes.
        asked: plain data by names for people that decide what is trained, and on what: a checkpoint with other values
            is another training's.
        title: what is trained, with which attention and on which data: the first line of the log.
        may_change: names of `asked` that may have other values than before; that is said.

    Raises:
        UserError: another command uses the folder; its checkpoints are another training's, or none can be read; the
            loss is not finite; or a checkpoint cannot be written.
    """
    group.say("%s, in %s", title, folder)
    asked = plain(asked)
    content: dict[str, Any] = {}

    def open_folder() -> tuple[CheckpointFile | None, list[Validated] | None, Mapping[str, Any]]:
        """The checkpoint to go on from, and the history of a training that is over."""
        nonlocal content
        held.enter_context(hold_folder(folder))
        for path in folder.glob("cp-*.tmp"):
            path.unlink()  # half written by a killed one
        newest = read_newest(folder)
        if newest is None:
            return None, _finished_without_state(folder, settings), asked
        file, content = newest
        _check_asked(content["asked"], asked, may_change, file.path)
        if file.is_end and not file.path.with_suffix(".model").exists():
            write_weights(content, file.path.with_suffix(".model"))  # which a kill prevented
        step, history = content["step"], content["history"]
        remove_old(file, settings.keep_epochs, best_epoch(history, settings.best_metric))
        if step > settings.num_steps or (file.is_end and step == settings.num_steps):
            logger.info("done: %d of %d steps", step, settings.num_steps)
            return file, history, asked
        return file, None, asked

    def follow() -> None:
        """Read what the first process has found."""
        nonlocal content
        if differing := _differing(expected, "in process 0", asked, "here"):
            lines = listed(list(differing.values()))
            raise UserError(f"every machine needs the same config.json, dataset and experiment folder:{lines}")
        if file is not None and not group.is_main:
            content = read_checkpoint(file.path)

    with ExitStack() as held:
        file, history, expected = group.on_main(open_folder)
        if history is None:
            group.check(follow)
            trainer = Trainer(*build(file is None), settings, folder, device, asked, group)
            if file is not None:
                trainer.load(file, content)
                group.say("going on from %s, step %d of %d", file.path.name, content["step"], settings.num_steps)
            content = {}  # a second copy of weights and optimizer, for as long as the training takes
            stopped_by, history = trainer.run(title), trainer.state.history
            if stopped_by is not None:
                return Fitted(history, stopped_by)
        if settings.best_metric is not None and group.is_main:
            for each in find_checkpoints(folder):
                each.path.unlink()
        return Fitted(history, None)


def _finished_without_state(folder: Path, settings: TrainingSettings) -> list[Validated] | None:
    """The history of a training that is over and kept its weights alone; None of an empty folder."""
    *_, path = [None, *find_weights(folder).values()]
    if path is None:
        return None
    content = read_checkpoint(path)
    if settings.best_metric is None or content["step"] < settings.num_steps:
        raise UserError(
            f"{folder}: holds weights ({path.name}) but no .cp to resume from; a new run would overwrite them. Put the "
            ".cp back, or start in another folder (with from_cp to begin from these weights)."
        )
    history: list[Validated] = content["history"]
    return history


def _check_asked(before: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str], source: Path) -> None:
    """Refuse to go on with another training than a checkpoint's; says the differences that do not matter."""
    changed = _differing(before, "in the checkpoint", now, "now")
    for key in sorted(changed.keys() & set(may_change)):
        logger.info("changed since %s: %s", source.name, changed.pop(key))
    if changed:
        raise UserError(
            f"{source}: the run cannot resume, because what it trains or what it reads has changed:"
            f"{listed(list(changed.values()))}\nRestore these, or start in a new folder (with from_cp to begin from "
            "these weights)."
        )


def _differing(one: Mapping[str, Any], where: str, other: Mapping[str, Any], elsewhere: str) -> dict[str, str]:
    """By keys whose values differ, a line with both as config.json spells them."""

    def spelt(value: Any) -> str:
        return "not set" if value is None else json.dumps(value, ensure_ascii=False)

    return {
        key: f"{key}: {spelt(one.get(key))} {where}, {spelt(other.get(key))} {elsewhere}"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    }


@dataclass
class Trainer:
    """A training in its folder, which is held."""

    trainable: Trainable
    facts: Mapping[str, Any]
    settings: TrainingSettings
    folder: Path
    device: Device
    asked: Mapping[str, Any]
    group: Group

    def __post_init__(self) -> None:
        self.optimizer = build_optimizer(unwrapped(self.trainable.model), self.settings)
        # float16 gradients underflow without a scale; bfloat16 and float32 need none.
        needs_scale = self.device.autocast_dtype == torch.float16
        self.scaler = torch.amp.GradScaler(self.device.device.type, enabled=needs_scale)
        self.state = RunState()
        self.log: RunLog | SilentLog = SilentLog()
        self._owes_an_epochs_end = False
        self._saved_at = self._clock = time.monotonic()
        self._tokens = 0
        # Of the steps since they were last read: the metrics' sums, how many were left out, the gradients' norms.
        self._pending: Tensor | None = None
        self._norms = 0.0
        # Attentions that draw random numbers anew every so many steps.
        self._told_of_steps: list[Any] = [each for each in self.trainable.model.modules() if hasattr(each, "at_step")]

    def load(self, file: CheckpointFile, content: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, that any number of processes wrote; where weights do not fit, nothing is loaded."""
        load_weights(unwrapped(self.trainable.model), content["model"], file.path)
        # The moments are the checkpoint's; all else of the optimizer is as config.json says and this version does it.
        # Merged before they are loaded: where a step's number lies depends on what the optimizer is.
        state, own = content["optimizer"], self.optimizer.param_groups
        groups = [
            saved | {key: value for key, value in group.items() if key != "params"}
            for saved, group in zip(state["param_groups"], own, strict=True)
        ]
        self.optimizer.load_state_dict({**state, "param_groups": groups})
        if content["scaler"]:
            self.scaler.load_state_dict(content["scaler"])
        self.state = RunState(**content["progress"])
        self.facts = {key: self.facts.get(key, content[key]) for key in content["facts"]} | dict(self.facts)
        # A stop at an epoch's last step prevented its validation. Its checkpoint says what an uninterrupted run's does.
        self._owes_an_epochs_end = self._is_epochs_end and not file.is_end
        self._set_rate(self.state.step - 1)

    def run(self, title: str) -> signal.Signals | None:
        """Train to the end, or until a signal; returns the signal (a checkpoint is written then)."""
        first, last = self.state.step, self.settings.num_steps

        def open_log() -> None:
            self.log = RunLog(self.folder, first, last, self._owes_an_epochs_end)

        self.group.on_main(open_log)
        with ExitStack() as stack:
            stack.callback(self.log.close)
            stop = stack.enter_context(first_signal(patient=self.group.size > 1))
            about = {"device": str(self.device), "processes": self.group.size, "version": self.facts.get("version")}
            self.log.event("start", first, num_steps=last, title=title, **about)
            if self._owes_an_epochs_end:
                self._end_epoch()
            self._restart_clock()
            for step in self.trainable.steps(first, last):
                gradient_norm = self._step(step)
                self.log.advance()
                if self.state.step - self.state.reported_at >= self.settings.steps_per_report:
                    self._report(gradient_norm)
                # A signal may reach one process of several, and their clocks differ.
                due = time.monotonic() - self._saved_at >= 60 * self.settings.minutes_per_checkpoint
                received, is_due = self.group.highest(stop[0] if stop else 0, due)
                if received:
                    # At once: what sent it may not wait for a validation, which the next start makes up for.
                    self._save_between()
                    return self._stopped(received)
                if self._is_epochs_end:
                    self._end_epoch()
                    self._restart_clock()
                elif is_due:
                    self._save_between()
            # One that came while the last validation and checkpoint were made: nothing may follow this run.
            (received,) = self.group.highest(stop[0] if stop else 0)
            return self._stopped(received) if received else None

    def _stopped(self, received: int) -> signal.Signals:
        by = signal.Signals(received)
        self.log.event("stop", self.state.step, signal=by.name)
        self.log.say(f"stopped by {by.name} after step {self.state.step}; its checkpoint is written")
        return by

    @property
    def _is_epochs_end(self) -> bool:
        return self.state.step % self.settings.steps_per_epoch == 0 or self.state.step >= self.settings.num_steps

    @property
    def _epoch(self) -> int:
        """The epoch that the last step belonged to, from 0."""
        return (self.state.step - 1) // self.settings.steps_per_epoch

    def _restart_clock(self) -> None:
        self._clock, self._tokens = time.monotonic(), self.state.tokens

    def _step(self, step: Step) -> Tensor:
        """One optimizer step over a global batch; returns the gradient's norm before clipping."""
        model, count = self.trainable.model.train(), len(step.micro_batches)
        number = self.state.step
        self._set_rate(number)
        for module in self._told_of_steps:
            module.at_step(number)
        self.optimizer.zero_grad(set_to_none=True)
        step_sums: Tensor | None = None
        for index, batch in enumerate(step.micro_batches):
            # Dropout, too, is a function of (seed, step, micro-batch): nothing of the generator needs saving, and as
            # many micro-batches give the same step in any number of processes.
            torch.manual_seed(dropout_seed(self.settings.seed, number, self.group.rank * count + index))
            with accumulation(model, last=index == count - 1):
                with self.device.autocast():
                    loss, sums = self.trainable.loss(to_device(batch, self.device.device))
                # The losses of all processes add up, but gradients are averaged.
                self.scaler.scale(loss * self.group.size).backward()  # type: ignore[no-untyped-call]
            step_sums = sums if step_sums is None else step_sums + sums
        assert step_sums is not None, "a step has at least one micro-batch"
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if self.settings.max_grad_norm is None else self.settings.max_grad_norm
        gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit).detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        left_out = torch.zeros_like(gradient_norm)
        if self.scaler.is_enabled():
            # The scaler leaves a step out whose gradients are not finite; the loss may not be, either.
            is_left_out = ~torch.isfinite(gradient_norm)
            left_out, step_sums = is_left_out.to(gradient_norm.dtype), step_sums.masked_fill(is_left_out, 0.0)
        # They stay on the device until somebody reads them, so that no step waits for it.
        new = torch.cat([step_sums.double(), torch.stack([left_out, gradient_norm]).double()])
        self._pending = new if self._pending is None else self._pending + new
        self.state.step += 1
        self.state.tokens += step.tokens
        return gradient_norm

    def _set_rate(self, step: int) -> None:
        rate = learning_rate(step, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)

    def _metrics(self) -> dict[str, float]:
        """Of the steps since the last report; none where the scaler left out every one of them."""
        if self._pending is not None:
            new = self.group.sum(self._pending[:-2]).tolist()
            left_out, norms = self._pending[-2:].tolist()
            self._pending = None
            old = self.state.sums or [0.0] * len(new)
            self.state.sums = [a + b for a, b in zip(old, new, strict=True)]
            self.state.left_out += int(left_out)
            self._norms += norms
        counted = self.state.step - self.state.reported_at - self.state.left_out
        return self.trainable.metrics(self.state.sums) if counted else {}

    def _report(self, gradient_norm: Tensor) -> None:
        metrics = self._metrics()  # waits for the device, so that the clock is read when the work is done
        speed = (self.state.tokens - self._tokens) / (time.monotonic() - self._clock)
        self._restart_clock()
        scale = self.scaler.get_scale() if self.scaler.is_enabled() else None
        check_finite(self.state.step, metrics, scale)
        (memory,) = self.group.highest(round(peak_memory_in_mib(self.device.device)))
        state = {
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "gradient_norm": float(gradient_norm),
            "tokens_per_second": speed,
            "memory_mib": float(memory),
        }
        if scale is not None:
            state |= {"loss_scale": scale, "steps_left_out": float(self.state.left_out)}
        self.log.train(self.state.step, self._epoch, metrics, state)
        self.state.sums, self.state.reported_at, self.state.left_out = [], self.state.step, 0

    def _end_epoch(self) -> None:
        """Validate, without gradients and dropout, and write the epoch's checkpoints."""
        self._check_before_saving()
        self.trainable.model.eval()
        with torch.no_grad(), self.device.autocast():
            metrics = self.trainable.validate()
        check_finite(self.state.step, metrics)
        # Plain numbers: a checkpoint holds nothing else.
        found = {name: float(value) for name, value in metrics.items()}
        self.state.history.append({"epoch": self._epoch, "step": self.state.step, "metrics": found})
        self.log.validation(self.state.step, self._epoch, metrics)
        self._save(is_end=True)

    def _save_between(self) -> None:
        self._check_before_saving()
        self._save(is_end=False)

    def _check_before_saving(self) -> None:
        """No checkpoint of a run that has diverged: the next start would go on from it."""
        check_finite(self.state.step, self._metrics())
        # Under float16 a step whose gradient overflows is left out, and the scale lowered: nothing is wrong then, but
        # where the weights are the reason.
        if self.scaler.is_enabled():
            norm = torch.nn.utils.get_total_norm(list(self.trainable.model.parameters()))
            check_finite(self.state.step, {"the norm of the weights": float(norm)})
        else:
            check_finite(self.state.step, {"gradient_norm": self._norms})

    def _save(self, is_end: bool) -> None:
        """Write the checkpoint of where the run stands, with its `.model` at an epoch's end, and remove old ones."""
        self.log.flush()
        epoch, step = self._epoch, self.state.step
        name = epoch_name(epoch) if is_end else f"{epoch_name(epoch)}-step-{step:08d}"
        file = CheckpointFile(epoch, math.inf if is_end else step, self.folder / f"{name}.cp")
        progress = asdict(self.state)
        content = {
            "format": FORMAT,
            **self.facts,
            "facts": list(self.facts),
            "asked": self.asked,
            "step": step,
            "epoch": epoch,
            "history": progress["history"],  # a fact, too, so that a .model has it
            "scaler": self.scaler.state_dict(),
            "progress": progress,
        }

        def write() -> None:
            content["model"] = on_cpu(unwrapped(self.trainable.model).state_dict())
            content["optimizer"] = on_cpu(self.optimizer.state_dict())
            write_checkpoint(content, file.path)
            if is_end:
                write_weights(content, file.path.with_suffix(".model"))
            remove_old(file, self.settings.keep_epochs, best_epoch(self.state.history, self.settings.best_metric))

        self.group.on_main(write)
        self._saved_at = time.monotonic()


@contextmanager
def first_signal(patient: bool) -> Iterator[list[signal.Signals]]:
    """Within the block, the first SIGTERM or SIGINT is only noted in the list; the second acts as usual.

    Args:
        patient: later signals do nothing, after the block neither: what follows a stop is the process' end, together
            with the others. What starts several processes passes on each signal that it gets, beside the terminal or
            scheduler that sends it to every process, and ends processes that take too long.
    """
    received: list[signal.Signals] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if not patient:
            restore()

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield received
    finally:
        if not (patient and received):
            restore()
