"""The processes that train together: what they agree on, how one's failure becomes everybody's, and one model over them
(DDP), whose checkpoints hold what one process has."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nystromformer.errors import UserError, first_line
from nystromformer.training.device import Device

log = logging.getLogger(__name__)

T = TypeVar("T")


class ProcessLost(UserError):
    """Another process of the run has ended; what started the processes decides whether to start them again."""

    exit_status = 1


@dataclass(frozen=True)
class Group:
    """The processes of a run; alone, every method is trivial.

    rank: this process' number; process 0 writes logs and checkpoints.
    local_rank: its number on its machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def say(self, text: str, *values: object) -> None:
        """A line for people, once, however many processes there are."""
        if self.is_main:
            log.info(text, *values)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, of equal shape in each; alone, the tensor itself."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def highest(self, *numbers: int) -> tuple[int, ...]:
        """The highest of each number over the processes; waits for them, but for no device."""
        if self.size == 1:
            return numbers
        highest = torch.tensor(numbers)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        return tuple(highest.tolist())

    def check(self, work: Callable[[], T]) -> T:
        """Do `work` in every process; where it fails in one, it fails in all, with that one's message."""
        if self.size == 1:
            return work()
        result, failure = _attempt(work)
        failures: list[UserError | None] = [None] * self.size
        dist.all_gather_object(failures, failure)
        for rank, error in enumerate(failures):
            if error is not None:
                alike = all(str(other) == str(error) for other in failures)
                raise error if alike else UserError(f"process {rank}: {error}")
        return result  # type: ignore[return-value]  # only a failure leaves none

    def on_main(self, work: Callable[[], T]) -> T:
        """Do `work` in the main process and give its result (plain data) to all; all raise where it fails."""
        if self.size == 1:
            return work()
        shared: list[Any] = list(_attempt(work)) if self.is_main else [None, None]
        dist.broadcast_object_list(shared)
        result, failure = shared
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]

    def leave(self, status: int) -> NoReturn:
        """End the process with an exit status.

        One of several ends at once, with its group as it is: while groups and interpreter are taken down, threads that
        collectives left behind now and then abort the process (torch 2.13), and what started it takes that for a failed
        run.
        """
        if self.size > 1:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.exit(status)


@contextmanager
def join_group() -> Iterator[Group]:
    """Join the processes that torchrun started, or be alone; they wait for each other at the end of the block.

    A command that joined ends by `Group.leave`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Group()
        return
    # Objects and flags travel by gloo, so that agreeing on them waits for no GPU.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    # What process 0 does alone, such as preparing data, may take hours; torchrun ends the others of one that is lost.
    patience = timedelta(days=1)
    dist.init_process_group(backend, timeout=patience)
    try:
        yield Group(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")))
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            # Leaving in good order would wait for the lost one.
            raise ProcessLost(
                "another process of the run has ended, so this one ends too. With torchrun's --max_restarts the run "
                "starts again from its last checkpoint; else start the same command again. "
                f"({first_line(error):.200})"
            ) from error
        raise
    # All are done; destroying the group could still abort one of them (see `leave`).
    dist.barrier()


def _attempt(work: Callable[[], T]) -> tuple[T | None, UserError | None]:
    try:
        return work(), None
    except UserError as error:
        return None, UserError(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        return None, UserError(f"{error.filename}: {error.strerror or error}")


def place(model: nn.Module, units: Sequence[nn.Module], compiles: bool, device: Device, group: Group) -> nn.Module:
    """Bring a model to the device, for training by all processes of a group; returns the module to call in its place,
    with gradients averaged over the processes in its backward.

    Args:
        model: with the same weights in every process.
        units: its layers, which are compiled one by one (in place, layers alike share one compilation).
        compiles: whether to compile the layers.
    """
    take_gpu(device)
    model.to(device.device)
    for unit in units if compiles else ():
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
