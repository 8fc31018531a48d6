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


class _Calls(threading.local):
    """Calls of registered attentions in this thread."""

    number = 0


_CALLS = _Calls()
_BEFORE: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""By model: how many there were when its forward began."""
_WATCHED: Collection[str] = ()


def count_call() -> None:
    """A layer has called a registered attention."""
    if not torch.compiler.is_compiling():
        _CALLS.number += 1


def watch_models(names: Collection[str]) -> None:
    """From now on, each model that is given one of these names tells after its first forward pass if it did not use it.

    transformers checks a name by `PreTrainedModel.get_correct_attn_implementation`, when a model is made and when
    another name is set; it does not look whether the model uses it.
    """
    global _WATCHED
    _WATCHED = names
    given: Callable[..., str] = PreTrainedModel.get_correct_attn_implementation
    if hasattr(given, "__wrapped__"):
        return

    @functools.wraps(given)
    def checked(self: PreTrainedModel, *args: Any, **options: Any) -> str:
        name = given(self, *args, **options)
        if name in names and _finish not in self._forward_hooks.values():
            self.register_forward_pre_hook(_begin)
            self.register_forward_hook(_finish)
        return name

    PreTrainedModel.get_correct_attn_implementation = checked  # type: ignore[method-assign]


def _begin(model: nn.Module, args: object) -> None:
    if not torch.compiler.is_compiling():
        _BEFORE[model] = _CALLS.number


def _finish(model: PreTrainedModel, args: object, out: object) -> None:
    if torch.compiler.is_compiling():
        return
    for hooks, hook in ((model._forward_pre_hooks, _begin), (model._forward_hooks, _finish)):
        for key in [key for key, each in hooks.items() if each is hook]:
            del hooks[key]
    # What is called in a compiled part is not counted.
    compiled = any(each._compiled_call_impl is not None for each in model.modules())
    name = model.config._attn_implementation  # another one may have been set since
    if _CALLS.number == _BEFORE.pop(model, -1) and not compiled and name in _WATCHED:
        logger.warning(NEVER_CALLS, type(model).__name__, name)
