"""One model over several processes: whole in each (DDP), or in shards (FSDP2); and checkpoints that know neither.

A checkpoint holds whole tensors, in the layout of a single process. So any number of processes reads what any other
number wrote, sharded or not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nystromformer.errors import UserError
from nystromformer.training.device import Device, missing_compiler
from nystromformer.training.group import Group

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

Layout = Literal["ddp", "fsdp"]


def place(
    model: nn.Module, units: Sequence[nn.Module], layout: Layout, compiles: bool, device: Device, group: Group
) -> nn.Module:
    """Bring a model to the device, for training by all processes of a group; returns the module to call in its place,
    with gradients averaged over the processes in its backward.

    Args:
        model: with the same weights in every process.
        units: its layers, which are compiled one by one (in place, layers alike share one compilation), and which a
            sharded model gathers one at a time.
        layout: "ddp": the whole model in each process. "fsdp": weights, gradients and optimizer in shards.
        compiles: whether to compile the layers, where this machine has what that takes.

    Raises:
        UserError: float16 with "fsdp", whose loss scale would differ between shards.
    """
    take_gpu(device)
    if layout == "ddp" or group.size == 1:
        model.to(device.device)  # shards go there on their own: the whole may be too large
    if compiles and (missing := missing_compiler(device.device)):
        group.say("model.compile: %s; the layers run uncompiled", missing)
    elif compiles:
        for unit in units:
            unit.compile()
    if group.size == 1:
        return model
    if layout == "ddp":
        ids = [device.device] if device.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    if device.needs_loss_scale:
        raise UserError(
            'gpu_setting.parallel "fsdp" does not go with float16: set model.mixed_precision to "bf16" or false, or '
            'gpu_setting.parallel to "ddp"'
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.device.type, (group.size,))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


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
    if _gathers_shards(module):
        module.set_requires_gradient_sync(last)
        yield
    elif isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


def gathered(state: Any, keep: bool, copies: dict[Any, Tensor] | None = None) -> Any:
    """A `state_dict` with every sharded tensor whole; all processes call this together.

    Args:
        keep: whether this process wants the whole tensors, on the CPU, so that a file of them is the same from any
            device; others get None in the place of sharded ones.
        copies: what was copied there before, by where it lies on its device: a weight of two names is copied once.
    """
    copies = {} if copies is None else copies
    if _is_sharded(state):
        full = state.full_tensor()
        return full.cpu() if keep else None
    if isinstance(state, Mapping):
        return {key: gathered(item, keep, copies) for key, item in state.items()}
    if not keep or not isinstance(state, Tensor) or state.device.type == "cpu":
        return state
    place = state.data_ptr(), state.shape, state.stride()
    if place not in copies:
        copies[place] = state.cpu()
    return copies[place]


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or what its shards amount to, in every process."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def laid_out_like(whole: Tensor, place: Tensor) -> Tensor:
    """This process' shard of a whole tensor where `place` is sharded; the tensor itself elsewhere."""
    if not _is_sharded(place):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(place.device), place.device_mesh, place.placements, src_data_rank=None)


def optimizer_state_laid_out_like(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """An optimizer's `state_dict` of whole tensors, with the moments laid out as the parameters that they belong to."""
    moments = {
        index: {
            name: laid_out_like(value, parameters[index]) if value.shape == parameters[index].shape else value
            for name, value in entry.items()
        }
        for index, entry in state["state"].items()
    }
    return {**state, "state": moments}


# What shards takes a second to import, of every start of a command. Before that is done nothing is sharded.


def _is_sharded(value: object) -> TypeGuard[DTensor]:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _gathers_shards(value: object) -> TypeGuard[FSDPModule]:
    module = sys.modules.get("torch.distributed.fsdp")
    return module is not None and isinstance(value, module.FSDPModule)
