"""Says of a model of transformers that it took a registered name and runs its own attention all the same."""

import functools
import logging
import threading
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

NEVER_CALLS = (
    '%s accepted attn_implementation="%s" and never calls it: its code computes the attention by itself (not through '
    "transformers' AttentionInterface), and nothing is swapped"
)

logger = logging.getLogger(__name__)
_CALLS = threading.local()
_BEFORE: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""By model: how many calls there were in this thread when its forward began."""


def count_call() -> None:
    """A layer has called a registered attention."""
    if not torch.compiler.is_compiling():
        _CALLS.number = _counted() + 1


def _counted() -> int:
    return getattr(_CALLS, "number", 0)


def watch_models(names: Collection[str]) -> None:
    """From now on, each model that is given one of these names tells after its first forward pass if it did not use it.

    transformers checks a name by `PreTrainedModel.get_correct_attn_implementation`, when a model is made and when
    another name is set; it does not look whether the model uses it.
    """
    given: Callable[..., str] = PreTrainedModel.get_correct_attn_implementation
    if hasattr(given, "__wrapped__"):
        return

    def begin(model: nn.Module, args: object) -> None:
        if not torch.compiler.is_compiling():
            _BEFORE[model] = _counted()

    def finish(model: PreTrainedModel, args: object, out: object) -> None:
        if torch.compiler.is_compiling():
            return
        for hooks, hook in ((model._forward_pre_hooks, begin), (model._forward_hooks, finish)):
            for key in [key for key, each in hooks.items() if each is hook]:
                del hooks[key]
        # What is called in a compiled part is not counted.
        compiled = any(each._compiled_call_impl is not None for each in model.modules())
        name = model.config._attn_implementation  # another one may have been set since
        if _counted() == _BEFORE.pop(model, -1) and not compiled and name in names:
            logger.warning(NEVER_CALLS, type(model).__name__, name)

    @functools.wraps(given)
    def checked(self: PreTrainedModel, *args: Any, **options: Any) -> str:
        name = given(self, *args, **options)
        if name in names and finish not in self._forward_hooks.values():
            self.register_forward_pre_hook(begin)
            self.register_forward_hook(finish)
        return name

    PreTrainedModel.get_correct_attn_implementation = checked  # type: ignore[method-assign]
