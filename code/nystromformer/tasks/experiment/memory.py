"""Whether what a config.json and its flags ask for can fit into the machine: known before anything is allocated.

Every figure is a lower bound, so that nothing is refused that could run.
"""

import os

import torch

from nystromformer.config import ModelConfig
from nystromformer.config.size import encoder_weights, least_activations
from nystromformer.resources import check_room, free_memory

_FLOAT = 4
_TOKEN = 8
_ADVICE = "lower the largest of these"


def check_room_to_train(
    source: object, model: ModelConfig, device: torch.device, rows: int, length: int, batch: int = 0, shards: int = 1
) -> None:
    """Check that a model can be trained on a device.

    Args:
        source: of the config, such as its path, for the message.
        rows: that the device computes at once, of `length` tokens each.
        batch: rows whose tokens are in the machine's memory at once.
        shards: processes among which the model is divided.

    Raises:
        UserError: says what it takes and what there is.
    """
    weights = _weights(model)
    state = {f"{name} with gradients and Adam's two moments": 4 * size / shards for name, size in weights.items()}
    # Weights and moments are there while a step's activations are; its gradients come as these go.
    activations = least_activations(model, rows, length)
    gradients = sum(weights.values()) / shards
    if activations > gradients:
        state = {f"{name} with Adam's two moments": 3 * size / shards for name, size in weights.items()}
        state[f"activations of {rows:,} rows of {length:,} tokens"] = activations
    on_host = {f"tokens of a batch of {batch:,} rows": float(batch * length * _TOKEN)}
    what = f"{source}: training this model"
    if device.type == "cuda":
        check_room(what, state, free_memory(device), "on the GPU", _ADVICE)
        _check_host(what, weights | on_host)
    else:
        _check_host(what, state | on_host)


def check_room_to_compute(source: object, model: ModelConfig, device: torch.device) -> None:
    """Check that a model's weights fit on a device and, on the way there, into the machine's memory.

    Raises:
        UserError: says what they take and what there is.
    """
    what, weights = f"{source}: this model", _weights(model)
    if device.type == "cuda":
        check_room(what, weights, free_memory(device), "on the GPU", _ADVICE)
    _check_host(what, weights)


def _weights(model: ModelConfig) -> dict[str, float]:
    return {name: float(_FLOAT * count) for name, count in encoder_weights(model).items()}


def _check_host(what: str, parts: dict[str, float]) -> None:
    """Each of the processes that torchrun starts on a machine takes its own."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    check_room(
        what if processes == 1 else f"{what} in {processes} processes",
        {name: processes * size for name, size in parts.items()},
        free_memory(swap=True),
        "on this machine",
        _ADVICE,
    )
