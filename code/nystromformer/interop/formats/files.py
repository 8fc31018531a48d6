"""Reading tensors that other programs stored; no code in a file is ever run."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.errors import UserError, first_line

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The first that is there is read."""
_WITHIN = "_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module"
_WRAPPERS = re.compile(rf"^((module|{_WITHIN})\.)+|(?<=\.)(({_WITHIN})\.)+")
"""What DataParallel puts before names, and what torch.compile and FSDP put within them."""
_HOW_TO_GET = "Get the model's files again, all from the same source"


def read_weights(folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a transformers folder in float32, and a line for what was converted.

    Raises:
        UserError: no weights are there, a file is damaged, or holds more than tensors.
    """
    path = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"{folder}: no weights there: expected one of {', '.join(_WEIGHTS)}, in one file")
    if path.suffix != ".safetensors":
        content = read_pickled(path)
        if not isinstance(content, dict):
            raise UserError(f"{path}: expected a dict of tensors, found a {type(content).__name__}")
        return in_float32(content, path)
    # Only now: a model of the authors' needs none of it.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return in_float32(load_file(path), path)
    except SafetensorError as error:
        raise UserError(f"{path}: truncated or damaged: {first_line(error)}. {_HOW_TO_GET}") from error


def read_pickled(path: Path) -> Any:
    """What `torch.save` wrote, if it is tensors and plain data.

    Raises:
        UserError: it holds more, which could run code, or is damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: refused: the file holds more than tensors and plain data, and loading it could run code. If you "
            f"trust it, load it yourself and save its weights as safetensors. ({first_line(error)})"
        ) from error
    except (MemoryError, OSError):
        raise
    except Exception as error:  # torch raises whatever a damaged archive leads to
        raise UserError(f"{path}: truncated or damaged: {first_line(error)}. {_HOW_TO_GET}") from error


def in_float32(weights: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors, in float32, by names without what wraps a model in training; and a line for what was otherwise.

    Raises:
        UserError: something else than tensors; names the first.
    """
    others = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if others:
        kind = type(weights[others[0]]).__name__
        raise UserError(f"{path}: expected only tensors, found a {kind} at {others[0]!r:.80}")
    found = {str(value.dtype).removeprefix("torch.") for value in weights.values() if value.is_floating_point()}
    kinds = sorted(found - {"float32"})
    notes = [f"weights stored in {' and '.join(kinds)} are held in float32"] if kinds else []
    if wrappers := sorted({match[0] for name in weights if (match := _WRAPPERS.search(name))}):
        notes.append(f"names without {', '.join(wrappers)}, which wrap a model in training")
        weights = {_WRAPPERS.sub("", name): value for name, value in weights.items()}
    # Tied tensors are views of one; each gets memory of its own, so that nothing is stored twice for one of them.
    return {
        name: value.to(torch.float32 if value.is_floating_point() else value.dtype).contiguous()
        for name, value in weights.items()
    }, notes


def check_finite_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Check that a model's weights are numbers to compute with.

    Raises:
        UserError: NaN or infinities; names the first weight that has any.
    """
    for name, weight in weights.items():
        if isinstance(weight, Tensor) and weight.is_floating_point() and not weight.isfinite().all():
            raise UserError(
                f"{path}: {name}: expected finite weights, found NaN or infinity: the training has diverged. Take an "
                "earlier checkpoint"
            )
