"""One model over several processes (DDP), and checkpoints that do not know of it: they hold what one process has."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nystromformer.training.device import Device, missing_compiler
from nystromformer.training.group import Group


def place(model: nn.Module, units: Sequence[nn.Module], compiles: bool, device: Device, group: Group) -> nn.Module:
    """Bring a model to the device, for training by all processes of a group; returns the module to call in its place,
    with gradients averaged over the processes in its backward.

    Args:
        model: with the same weights in every process.
        units: its layers, which are compiled one by one (in place, layers alike share one compilation).
        compiles: whether to compile the layers, where this machine has what that takes.
    """
    take_gpu(device)
    model.to(device.device)
    if compiles and (missing := missing_compiler(device.device)):
        group.say("model.compile: %s; the layers run uncompiled", missing)
    elif compiles:
        for unit in units:
            unit.compile()
    if group.size == 1:
        return model
    ids = [device.device] if device.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def take_gpu(device: Device) -> None:
    """Make the run's GPU the process' own: else it also opens the first one, and kernels start there."""
    if device.device.type == "cuda" and device.device.index is not None:
        torch.cuda.set_device(device.device)


def unwrapped(module: nn.Module) -> nn.Module:
    """The model itself, whose state has the names of a single process."""
    return module.module if isinstance(module, DistributedDataParallel) else module


@contextmanager
def accumulation(module: nn.Module, last: bool) -> Iterator[None]:
    """Within the block, a backward exchanges gradients only for the last micro-batch."""
    if isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


def on_cpu(state: Any, copies: dict[Any, Tensor] | None = None) -> Any:
    """A `state_dict` on the CPU, so that a file of it is the same from any device.

    Args:
        copies: what was copied there before, by where it lies on its device: a weight of two names is copied once.
    """
    copies = {} if copies is None else copies
    if isinstance(state, Mapping):
        return {key: on_cpu(item, copies) for key, item in state.items()}
    if not isinstance(state, Tensor) or state.device.type == "cpu":
        return state
    place = state.data_ptr(), state.shape, state.stride()
    if place not in copies:
        copies[place] = state.cpu()
    return copies[place]
