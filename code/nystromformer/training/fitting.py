"""Whether weights are those of a model, loading them where they are, and what else a run needs to go on."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from nystromformer.errors import UserError
from nystromformer.training.distributed import laid_out_like
from nystromformer.training.state import RunState, TrainingSettings
from nystromformer.wording import listed


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Load weights that fit exactly.

    Raises:
        UserError: lists every missing, unexpected and differently shaped weight.
    """
    expected = model.state_dict()
    check_weights(expected, weights, source)
    model.load_state_dict({name: laid_out_like(weight, expected[name]) for name, weight in weights.items()})


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: Path) -> None:
    """Check that weights fit a model's exactly.

    Raises:
        UserError: lists every missing, unexpected and differently shaped weight.
    """
    problems = [f"{name}: missing from the checkpoint" for name in expected if name not in weights]
    problems += [f"{name}: not in the model" for name in weights if name not in expected]
    for name in expected:
        if name in weights and (difference := _difference(expected[name], weights[name])):
            problems.append(f"{name}: {difference}")
    if problems:
        raise UserError(f"{source}: of another architecture than the model in config.json:{listed(problems)}")


def _difference(expected: Tensor, weight: Any) -> str | None:
    if not isinstance(weight, Tensor):
        return f"the model has a tensor, the checkpoint a {type(weight).__name__}"
    if weight.shape != expected.shape:
        return f"the model has {tuple(expected.shape)}, the checkpoint {tuple(weight.shape)}"
    if weight.dtype != expected.dtype or weight.layout != expected.layout:
        return f"the model has {expected.dtype}, the checkpoint {weight.dtype}"
    return None


def check_whole_state(
    content: Mapping[str, Any], model: nn.Module, optimizer: Optimizer, settings: TrainingSettings, source: Path
) -> None:
    """Check the content of a `.cp` file, which this project wrote, against the run that is to go on from it.

    Args:
        content: the file's, of whole tensors.
        model: of the run; sharded or not.
        optimizer: of the run, new.

    Raises:
        UserError: lists all that does not fit.
    """
    if "optimizer" not in content:
        raise UserError(f"{source}: holds weights only; a run resumes from a .cp file")
    check_weights(model.state_dict(), content["model"], source)
    problems = [*_progress_problems(content, settings), *_optimizer_problems(content["optimizer"], optimizer)]
    if problems:
        raise UserError(
            f"{source}: is not damaged, but this run cannot have written it:{listed(problems)}\nNothing was loaded. "
            "Move it away to resume from the checkpoint before it."
        )


def _progress_problems(content: Mapping[str, Any], settings: TrainingSettings) -> list[str]:
    progress, step, epoch = content["progress"], content["step"], content["epoch"]
    names = {field.name for field in fields(RunState)}
    problems = [f"progress.{name}: missing" for name in sorted(names - progress.keys())]
    problems += [f"progress.{name}: not known" for name in sorted(progress.keys() - names)]
    if progress.get("step", step) != step:
        problems.append(f"step: {step} beside progress.step {progress['step']}, expected equal ones")
    if epoch != (step - 1) // settings.steps_per_epoch:
        problems.append(f"epoch: {epoch} at step {step}, with {settings.steps_per_epoch} steps an epoch")
    return problems


def _optimizer_problems(state: Mapping[str, Any], optimizer: Optimizer) -> list[str]:
    expected, found = (
        [len(group["params"]) for group in groups] for groups in (optimizer.param_groups, state["param_groups"])
    )
    if found != expected:
        return [f"optimizer.param_groups: expected {expected} parameters, found {found}"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # Without any: float16's loss scaler left out every step so far.
    lacking = [index for index in range(len(parameters)) if index not in state["state"]] if state["state"] else []
    problems = [f"optimizer.state: no moments of {len(lacking)} of {len(parameters)} parameters"] if lacking else []
    for index, moments in state["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            shape, wanted = tuple(moments[name].shape), tuple(parameters[index].shape)
            if shape != wanted:
                problems.append(f"optimizer.state[{index}].{name}: the parameter has {wanted}, the checkpoint {shape}")
    return problems
