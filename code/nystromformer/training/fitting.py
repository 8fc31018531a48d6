"""Whether weights are those of a model, and loading them where they are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nystromformer.errors import UserError
from nystromformer.training.distributed import laid_out_like
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
