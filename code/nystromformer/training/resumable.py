"""What a checkpoint must hold for a run to go on from it: all of it is checked before any of it is loaded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nystromformer.errors import UserError
from nystromformer.training.fitting import check_weights
from nystromformer.training.settings import TrainingSettings
from nystromformer.training.state import RunState, is_history
from nystromformer.wording import listed

_MOMENTS = ("exp_avg", "exp_avg_sq")
_SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}


def check_whole_state(
    content: Mapping[str, Any],
    model: nn.Module,
    optimizer: Optimizer,
    settings: TrainingSettings,
    may_lack_moments: bool,
    source: Path,
) -> None:
    """Check the whole content of a `.cp` file against the run that is to go on from it.

    Args:
        content: the file's, of whole tensors.
        model: of the run; sharded or not.
        optimizer: of the run, new.
        may_lack_moments: float16's loss scaler may have left out every step so far.

    Raises:
        UserError: lists all that does not fit.
    """
    if "optimizer" not in content:
        raise UserError(f"{source}: holds weights only; a run resumes from a .cp file")
    check_weights(model.state_dict(), content["model"], source)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    problems = [
        *_progress_problems(content, settings),
        *_optimizer_problems(content["optimizer"], optimizer, parameters, may_lack_moments, content.get("step")),
        *_scaler_problems(content.get("scaler")),
    ]
    if problems:
        raise UserError(
            f"{source}: is whole, but no state that this run can have written:{listed(problems)}\n"
            "Nothing was loaded. Move it away to go on from the checkpoint before it."
        )


def _progress_problems(content: Mapping[str, Any], settings: TrainingSettings) -> list[str]:
    progress, step, epoch = content.get("progress"), content.get("step"), content.get("epoch")
    if not isinstance(progress, dict):
        return [f"progress: expected a dict, found {type(progress).__name__}"]
    names = {field.name for field in fields(RunState)}
    problems = [f"progress.{name}: missing" for name in sorted(names - progress.keys())]
    problems += [f"progress.{name}: not known" for name in sorted(map(str, progress.keys() - names))]
    for name in ("step", "reported_at", "left_out", "tokens"):
        if not _is_count(progress.get(name, 0)):
            problems.append(f"progress.{name}: expected a count, found {progress[name]!r:.40}")
    if problems:
        return problems
    if not _is_count(step) or progress["step"] != step or not step:
        problems.append(f"step: {step!r:.40} beside progress.step {progress['step']}, expected equal ones from 1 on")
    elif not _is_count(epoch) or epoch != (step - 1) // settings.steps_per_epoch:
        problems.append(f"epoch: {epoch!r:.40} at step {step}, with {settings.steps_per_epoch} steps an epoch")
    if progress["reported_at"] + progress["left_out"] > progress["step"]:
        problems.append("progress.reported_at: beyond the step")
    if not is_history(progress.get("history", []), progress["step"]):
        problems.append("progress.history: expected each epoch's validation, in their order")
    for name in ("sums", "best"):
        values = progress[name]
        if not isinstance(values, list) or not all(_is_number(value) for value in values):
            problems.append(f"progress.{name}: expected a list of numbers")
    if isinstance(progress["best"], list) and len(progress["best"]) not in (0, 2):
        problems.append("progress.best: expected an epoch and its value")
    return problems


def _optimizer_problems(
    state: Any, optimizer: Optimizer, parameters: Sequence[Tensor], may_lack_moments: bool, step: Any
) -> list[str]:
    if not isinstance(state, dict) or not all(isinstance(state.get(key), kind) for key, kind in _OPTIMIZER.items()):
        return ["optimizer: expected its state and param_groups"]
    layout = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    groups = state["param_groups"]
    if not all(isinstance(group, dict) for group in groups) or [group.get("params") for group in groups] != layout:
        return [f"optimizer.param_groups: expected {[len(group) for group in layout]} parameters, found others"]
    entries = state["state"]
    problems = [f"optimizer.state: {key!r:.40} is no parameter" for key in entries if key not in range(len(parameters))]
    absent = [index for index in range(len(parameters)) if index not in entries]
    if absent and not (may_lack_moments and len(absent) == len(parameters)):
        problems.append(f"optimizer.state: no moments of {len(absent)} of {len(parameters)} parameters")
    for index, parameter in enumerate(parameters):
        if index in entries and (reason := _moments_problem(entries[index], parameter, step)):
            problems.append(f"optimizer.state[{index}]: {reason}")
    return problems


_OPTIMIZER = {"state": dict, "param_groups": list}


def _moments_problem(entry: Any, parameter: Tensor, step: Any) -> str | None:
    if not isinstance(entry, dict) or set(entry) != {"step", *_MOMENTS}:
        return "expected step, exp_avg and exp_avg_sq"
    for name in _MOMENTS:
        moment = entry[name]
        if not _is_plain(moment) or moment.shape != parameter.shape or moment.dtype != parameter.dtype:
            shape = f"{tuple(moment.shape)} of {moment.dtype}" if isinstance(moment, Tensor) else type(moment).__name__
            return f"{name}: the parameter has {tuple(parameter.shape)} of {parameter.dtype}, the checkpoint {shape}"
    count = entry["step"]
    if not _is_plain(count) or count.numel() != 1 or count.dtype != torch.float32:
        return "step: expected one number in float32"
    if not 0 <= float(count) <= (step if _is_count(step) else math.inf):
        return f"step: {float(count)}, expected at most the run's"
    return None


def _scaler_problems(scaler: Any) -> list[str]:
    if not isinstance(scaler, dict):
        return [f"scaler: expected a dict, found {type(scaler).__name__}"]
    if scaler and (set(scaler) != _SCALER or not all(_is_number(value) and value >= 0 for value in scaler.values())):
        return [f"scaler: expected {', '.join(sorted(_SCALER))}, each a number"]
    return []


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
