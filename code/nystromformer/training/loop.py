"""The training loop: plain PyTorch, for anything trainable."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import Signals
from typing import Any

import torch
from torch import Tensor

from nystromformer.training.archive import FORMAT, write_checkpoint
from nystromformer.training.checkpoint import between_name, epoch_name, remove_leftovers, remove_old, weights_of
from nystromformer.training.device import Device, peak_memory_in_mib
from nystromformer.training.distributed import (
    accumulation,
    gathered,
    optimizer_state_laid_out_like,
    unwrapped,
    whole,
)
from nystromformer.training.fitting import load_weights
from nystromformer.training.group import Group
from nystromformer.training.log import Clock, RunLog, SilentLog
from nystromformer.training.optim import build_optimizer, check_finite, check_loss_scale, learning_rate
from nystromformer.training.prefetch import copy_steps
from nystromformer.training.state import RunState, TrainingSettings, dropout_seed
from nystromformer.training.stop import StopSignal
from nystromformer.training.trainable import Step, Trainable, to_device

_WORTH_SAVING = 60.0
"""Seconds since the last checkpoint after which a validation begins with one."""


class Trainer:
    """Trains in a folder, from a checkpoint's content where there is one.

    Args:
        trainable: model, data and loss.
        settings: of the run.
        folder: where checkpoints and logs go; the caller holds its lock.
        device: where to compute; the model is on it already.
        extra: plain data that every checkpoint carries (config, dataset).
        group: the processes that train together; each has its own trainer.
    """

    def __init__(
        self,
        trainable: Trainable,
        settings: TrainingSettings,
        folder: Path,
        device: Device,
        extra: Mapping[str, Any],
        group: Group = Group(),  # noqa: B008  # immutable
    ) -> None:
        self.trainable = trainable
        self.settings = settings
        self.folder = folder
        self.device = device
        self.extra = dict(extra)
        self.group = group
        self.optimizer = build_optimizer(unwrapped(trainable.model), settings)
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=device.needs_loss_scale)
        self.state = RunState()
        self._saved_at = time.monotonic()
        self._pending: Tensor | None = None
        self._gradient_norms: Tensor | None = None
        self._left_out: Tensor | None = None
        # Attentions that draw random numbers anew every so many steps.
        self._told_of_steps: list[Any] = [each for each in trainable.model.modules() if hasattr(each, "at_step")]

    def resume(self, content: Mapping[str, Any], source: Path) -> None:
        """Go on from the content of a `.cp` checkpoint, that any number of processes wrote.

        Raises:
            UserError: the weights do not fit the model (lists all that differs); nothing is loaded then.
        """
        load_weights(unwrapped(self.trainable.model), content["model"], source)
        # The moments are the checkpoint's; all else of the optimizer is as config.json says and this version does it.
        wanted = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        state = optimizer_state_laid_out_like(content["optimizer"], parameters)
        # Merged before they are loaded: where a step's number lies depends on what the optimizer is.
        groups = [saved | options for saved, options in zip(state["param_groups"], wanted, strict=True)]
        self.optimizer.load_state_dict({**state, "param_groups": groups})
        if content["scaler"]:
            self.scaler.load_state_dict(content["scaler"])
        self.state = RunState(**content["progress"])
        # Where nothing but an epoch's end is left to do, its checkpoint says what an uninterrupted run's does.
        self._set_rate(max(self.state.step - 1, 0))

    def run(self) -> Signals | None:
        """Train to the end, or until a signal; returns the signal (a checkpoint is written then).

        Raises:
            UserError: the loss is not finite, or a checkpoint cannot be written.
        """
        first, last = self.state.step, self.settings.num_steps
        owes = self._owes_an_epochs_end()
        log: RunLog | SilentLog = SilentLog()

        def prepare_folder() -> None:
            nonlocal log
            remove_leftovers(self.folder)
            log = RunLog(self.folder, first, last, owes)

        self.group.on_main(prepare_folder)
        with ExitStack() as stack:
            stack.callback(log.close)
            stop = stack.enter_context(StopSignal(patient=self.group.size > 1))
            log.event(
                "start",
                first,
                num_steps=last,
                device=str(self.device),
                processes=self.group.size,
                version=self.extra.get("version"),
            )
            if first > last:
                log.say(f"step {first} of {last}: the run is already past its new end, and stops here")
            if owes:
                self._end_epoch(log)
            if self._is_over:
                return self._stopped_at_its_end(stop, log)
            clock = Clock(self.state.tokens)
            for step in clock.waiting_for(copy_steps(self.trainable.steps(first, last), self.device.device)):
                gradient_norm = self._step(step)
                log.advance()
                if self._is_report_due():
                    self._collect_sums()  # waits for the device, so that the clock is read when the work is done
                    self._report(log, gradient_norm, clock.speed(self.state.tokens))
                # A signal may reach one process of several, and their clocks differ.
                due = self._saved_ago() >= 60 * self.settings.minutes_per_checkpoint
                worthwhile = self._saved_ago() >= _WORTH_SAVING
                signal, is_due, is_worthwhile = self.group.highest(stop.received or 0, due, worthwhile)
                if signal:
                    # At once: what sent it may not wait for a validation, which the next start makes up for.
                    self._save_between(log)
                    log.event("stop", self.state.step, signal=Signals(signal).name)
                    log.say(
                        f"stopped by {Signals(signal).name} after step {self.state.step}; its checkpoint is written"
                    )
                    return Signals(signal)
                if self._is_epochs_end:
                    if is_worthwhile:
                        self._save_between(log)  # a kill during the validation shall not cost it
                    self._end_epoch(log)
                    clock.restart(self.state.tokens)
                    if self._is_over:
                        if self.state.step < last and self.state.has_stalled(self.settings.patience):
                            log.say(
                                f"stopped after step {self.state.step} of {last}: {self.settings.best_metric} was best "
                                f"in epoch {self.state.best[0]:.0f} (--patience {self.settings.patience})"
                            )
                        return self._stopped_at_its_end(stop, log)
                elif is_due:
                    self._save_between(log)
        return None

    def _stopped_at_its_end(self, stop: StopSignal, log: RunLog | SilentLog) -> Signals | None:
        """The signal that came while the last validation and checkpoint were made: nothing may follow this run."""
        (signal,) = self.group.highest(stop.received or 0)
        if not signal:
            return None
        log.event("stop", self.state.step, signal=Signals(signal).name)
        log.say(f"stopped by {Signals(signal).name} after step {self.state.step}, the last")
        return Signals(signal)

    @property
    def _is_epochs_end(self) -> bool:
        step = self.state.step
        # Beyond the last step where an earlier start of the run was to have more.
        return step % self.settings.steps_per_epoch == 0 or self._is_over

    @property
    def _is_over(self) -> bool:
        if self.state.has_stalled(self.settings.patience):
            return True
        return self.state.step >= self.settings.num_steps

    def _owes_an_epochs_end(self) -> bool:
        """Whether the run stands at an epoch's or its own end without the validation and checkpoint that belong there.

        A stop prevented them, or the run was to go on then.
        """
        if not self.state.step or not self._is_epochs_end:
            return False
        path = self.folder / f"{epoch_name(self._epoch)}.cp"
        return not self.group.on_main(path.exists)

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
        gradient_norm = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        total = gradient_norm.detach()
        if self.scaler.is_enabled():
            # The scaler leaves a step out whose gradients are not finite; the loss may not be, either.
            left_out = ~torch.isfinite(total)
            step_sums = step_sums.masked_fill(left_out, 0.0)
            self._left_out = left_out.long() if self._left_out is None else self._left_out + left_out
        self._add_sums(step_sums)
        self._gradient_norms = total if self._gradient_norms is None else self._gradient_norms + total
        self.state.step += 1
        self.state.tokens += step.tokens
        return gradient_norm

    def _set_rate(self, step: int) -> None:
        rate = learning_rate(step, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)

    def _add_sums(self, sums: Tensor) -> None:
        """Sums stay on the device until somebody reads them, so that no step waits for it."""
        self._pending = sums.double() if self._pending is None else self._pending + sums.double()

    def _collect_sums(self) -> list[float]:
        if self._pending is not None:
            new = self.group.sum(self._pending).tolist()
            old = self.state.sums or [0.0] * len(new)
            self.state.sums = [a + b for a, b in zip(old, new, strict=True)]
            self._pending = None
        if self._left_out is not None:
            self.state.left_out += int(self._left_out)
            self._left_out = None
        return self.state.sums

    def _metrics(self) -> dict[str, float]:
        """Of the steps since the last report; none where the scaler left out every one of them."""
        sums = self._collect_sums()
        counted = self.state.step - self.state.reported_at - self.state.left_out
        return self.trainable.metrics(sums) if counted else {}

    def _is_report_due(self) -> bool:
        return self.state.step - self.state.reported_at >= self.settings.steps_per_report

    def _saved_ago(self) -> float:
        return time.monotonic() - self._saved_at

    def _report(self, log: RunLog | SilentLog, gradient_norm: Tensor, speed: Mapping[str, float]) -> None:
        metrics = self._metrics()
        check_finite(self.state.step, metrics)
        if self.scaler.is_enabled():
            check_loss_scale(self.state.step, self.scaler.get_scale())
        rate = self.optimizer.param_groups[0]["lr"]
        (memory,) = self.group.highest(round(peak_memory_in_mib(self.device.device)))
        state = {
            "learning_rate": rate,
            "gradient_norm": float(gradient_norm),
            **speed,
            "memory_mib": float(memory),
        }
        if self.scaler.is_enabled():
            state |= {"loss_scale": self.scaler.get_scale(), "steps_left_out": float(self.state.left_out)}
        log.train(self.state.step, self._epoch, metrics, state)
        self.state.sums, self.state.reported_at, self.state.left_out = [], self.state.step, 0

    def _end_epoch(self, log: RunLog | SilentLog) -> None:
        self._check_before_saving()
        metrics = self.validate()
        check_finite(self.state.step, metrics)
        self.state.note_validation(self._epoch, metrics)
        log.validation(self.state.step, self._epoch, metrics)
        name = self.settings.best_metric
        if name is not None and (not self.state.best or metrics[name] > self.state.best[1]):
            self.state.best = [self._epoch, metrics[name]]
        self._save(log, is_end=True)

    def _save_between(self, log: RunLog | SilentLog) -> None:
        self._check_before_saving()
        self._save(log, is_end=False)

    def _save(self, log: RunLog | SilentLog, is_end: bool) -> None:
        """Write the checkpoint of where the run stands, with its `.model` at an epoch's end, and remove old ones."""
        log.flush()
        name = epoch_name(self._epoch) if is_end else between_name(self._epoch, self.state.step)
        path, content, settings = self.folder / f"{name}.cp", self._content(), self.settings
        weights = path.with_suffix(".model")
        # Where there is a best epoch, its weights stay and those of the last one that is over.
        epochs = (int(self.state.best[0]), self._epoch - (not is_end)) if self.state.best else None

        def write() -> None:
            write_checkpoint(content, path)
            if is_end:
                write_checkpoint(weights_of(content), weights)
            remove_old(self.folder, settings.keep_checkpoints, epochs, settings.keep_epochs, newest=path)

        self.group.on_main(write)
        self._saved_at = time.monotonic()

    def validate(self) -> dict[str, float]:
        """Validation, without gradients and dropout."""
        self.trainable.model.eval()
        with torch.no_grad(), self.device.autocast():
            return self.trainable.validate()

    def _content(self) -> dict[str, Any]:
        progress = asdict(self.state)
        return {
            "format": FORMAT,
            **self.extra,
            "step": self.state.step,
            "epoch": self._epoch,
            "history": progress["history"],  # a fact, too, so that a .model has it
            "model": gathered(unwrapped(self.trainable.model).state_dict(), keep=self.group.is_main),
            "optimizer": gathered(self.optimizer.state_dict(), keep=self.group.is_main),
            "scaler": self.scaler.state_dict(),
            "progress": progress,
        }

    @property
    def _epoch(self) -> int:
        """The epoch that the last step belonged to, from 0."""
        return (self.state.step - 1) // self.settings.steps_per_epoch

    def _check_before_saving(self) -> None:
        """No checkpoint of a run that has diverged: the next start would go on from it."""
        check_finite(self.state.step, self._metrics())
        # Under float16 a step whose gradient overflows is left out, and the scale lowered: nothing is wrong then, but
        # where the weights are the reason.
        if self.scaler.is_enabled():
            norm = torch.nn.utils.get_total_norm(list(self.trainable.model.parameters()))
            check_finite(self.state.step, {"the norm of the weights": float(norm)})
        elif self._gradient_norms is not None:
            check_finite(self.state.step, {"gradient_norm": float(self._gradient_norms)})
