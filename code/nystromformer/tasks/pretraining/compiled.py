"""Whether a pretraining run compiles its layers: `model.compile` of config.json."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from nystromformer.config import ExperimentConfig
from nystromformer.errors import UserError
from nystromformer.model.dropout import Dropout
from nystromformer.tasks.experiment.run import say, take_gpu
from nystromformer.training import Device, Group, Step, Trainable
from nystromformer.training.compile import compiling_pays, try_compiled
from nystromformer.training.trainable import Batch, to_device

logger = logging.getLogger(__name__)

Stance = Literal["default", "eager_on_recompile", "force_eager"]

_WORTHWHILE = 5000
"""Steps that make up for the minutes that compiling takes."""
_LIFT = 1024.0
"""A factor of the loss that is tried: float16 gradients vanish without one."""


def compiled_where_it_pays(
    layers: Sequence[nn.Module],
    trainable: Trainable,
    config: ExperimentConfig,
    device: Device,
    group: Group,
    steps: Iterable[Step],
    num_steps: int,
) -> Stance:
    """Compile layers in place where config.json leaves it open and it pays and works; says what was decided.

    Args:
        layers: of the trainable's model, which is not distributed yet and goes to the device.
        steps: some of the run, whose micro-batches have all sizes that are worth compiling for.
        num_steps: of the whole run, not of what is left: one that was interrupted goes on as it began.

    Returns:
        The stance of torch.compile for the run.
    """
    if config.model.compile != "auto" or not compiling_pays(device.device):
        return "default"
    if config.model.reversible:
        say(group, "layers run uncompiled: reversible ones are not compiled")
        return "default"
    if group.size > 1 and config.gpu_setting.parallel == "fsdp":
        say(group, 'layers run uncompiled: in shards ("fsdp") they are compiled with model.compile true only')
        return "default"
    if num_steps < _WORTHWHILE:
        say(
            group,
            "layers run uncompiled: compiling does not pay off for %d steps (model.compile true forces it)",
            num_steps,
        )
        return "default"
    say(group, "compiling the layers, which takes a minute or two (model.compile false turns this off)")
    began = time.monotonic()
    take_gpu(device)
    trainable.model.to(device.device).train()

    def attempt() -> None:
        batches = [to_device(batch, device.device) for batch in _kinds(steps)]
        uses = [partial(_loss_and_gradients, trainable, batch, device) for batch in batches]
        if reason := try_compiled(layers, device, partial(_without_dropout, trainable, batches[0], device), uses):
            raise UserError(reason)

    try:
        group.check(attempt)
    except UserError as error:
        if group.is_main:
            logger.warning("layers run uncompiled: compiling was tried, and %s", error)
        return "force_eager"
    say(group, "layers compiled in %.0f seconds", time.monotonic() - began)
    return "eager_on_recompile"


def _kinds(steps: Iterable[Step]) -> list[Batch]:
    """A micro-batch of each kind: with and without mask, of each size."""
    by_shape: dict[object, Batch] = {}
    for step in steps:
        for batch in step.micro_batches:
            by_shape.setdefault(tuple((name, batch[name].shape) for name in sorted(batch)), batch)
    return list(by_shape.values())


def _loss_and_gradients(trainable: Trainable, batch: Batch, device: Device) -> list[Tensor]:
    trained = [parameter for parameter in trainable.model.parameters() if parameter.requires_grad]
    with device.autocast():
        loss, _ = trainable.loss(batch)
    return [loss, *torch.autograd.grad(loss * _LIFT, trained, allow_unused=True, materialize_grads=True)]


def _without_dropout(trainable: Trainable, batch: Batch, device: Device) -> list[Tensor]:
    with _no_dropout(trainable.model):
        return _loss_and_gradients(trainable, batch, device)


@contextmanager
def _no_dropout(model: nn.Module) -> Iterator[None]:
    # Compiled dropout draws other numbers, so that only without it there is something to compare.
    modules = [module for module in model.modules() if isinstance(module, (Dropout, nn.Dropout))]
    before = [module.p for module in modules]
    try:
        for module in modules:
            module.p = 0.0
        yield
    finally:
        for module, p in zip(modules, before, strict=True):
            module.p = p
