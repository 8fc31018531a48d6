"""Whether a model runs what was registered, and how far that is from its softmax.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, SoftmaxAttention
from nystromformer.config import SoftmaxConfig
from nystromformer.interop.drop_in.calls import NEVER_CALLS, Call
from nystromformer.interop.drop_in.names import REGISTERED

Batch = Mapping[str, Any] | Tensor


@dataclass(frozen=True)
class Check:
    """What one forward of a model called."""

    swapped: dict[str, int]
    """Calls of the registered attention by each layer's name."""
    own: dict[str, int]
    """Calls of layers that keep their own attention, for they have a sliding window."""

    def __str__(self) -> str:
        kept = f"; {len(self.own)} with a sliding window keep their own" if self.own else ""
        calls = sum(self.swapped.values())
        return f"{len(self.swapped)} layers run the registered attention, in {calls} calls{kept}"


@dataclass(frozen=True)
class LayerError:
    """How far a layer's attention is from softmax of the same queries, keys and values."""

    layer: str
    error: float
    """‖approximation - softmax‖ / ‖softmax‖, Frobenius, over all heads and valid tokens of the batch."""

    def __str__(self) -> str:
        return f"{self.layer}: {self.error:.2%}"


def check(model: nn.Module, batch: Batch) -> Check:
    """Count which layers of a model run a registered attention, in one forward without gradients.

    transformers takes any registered name for any model and does not look whether the model goes through its interface.

    Args:
        model: of transformers, loaded with a registered `attn_implementation`; in evaluation meanwhile.
        batch: the model's inputs by their names, or the first one alone.

    Raises:
        ValueError: the model calls no registered attention, with the reason; what a layer refuses.
    """
    calls: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    _forward(model, batch, lambda layer, call: calls[call.attention is not None].update([layer]))
    if not calls[True]:
        raise ValueError(_why_nothing(model, len(calls[False])))
    return Check(dict(calls[True]), dict(calls[False]))


def report_error(model: nn.Module, batch: Batch) -> list[LayerError]:
    """How far each layer's attention is from exact softmax of the very queries, keys and values that it got, in one
    forward without gradients. Those of a layer come from the approximations of the layers before it. Exact softmax is
    computed beside each layer, in float32, at O(N²) time.

    Args:
        model: of transformers, loaded with a registered `attn_implementation`; in evaluation meanwhile.
        batch: the model's inputs by their names, or the first one alone.

    Returns:
        One for each layer that runs a registered attention, in the order in which they are called. Layers that are
        called several times have one error over all calls.

    Raises:
        ValueError: as `check`.
    """
    squares: dict[str, Tensor] = {}

    def compare(layer: str, call: Call) -> None:
        if call.attention is not None:
            squares[layer] = squares.get(layer, torch.zeros(())) + _squares(*call.attention)

    _forward(model, batch, compare)
    if not squares:
        raise ValueError(_why_nothing(model, 0))
    least = torch.finfo(torch.float64).tiny
    return [LayerError(layer, float((x[0] / x[1].clamp(min=least)).sqrt())) for layer, x in squares.items()]


def _squares(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, out: Tensor) -> Tensor:
    """Squared norms of the difference and of softmax's output, (2,) in float64, on the CPU."""
    q, k, v, out = (x.float() for x in (q, k, v, out))
    with torch.autocast(q.device.type, enabled=False):
        exact = SoftmaxAttention(SoftmaxConfig(), q.shape[1], q.shape[3])(q, k, v, mask)
        if mask is not None:
            out = out * mask.multiplier(out.dtype)
        return torch.stack([(x.double() ** 2).sum() for x in (out - exact, exact)]).cpu()


def _forward(model: nn.Module, batch: Batch, tell: Callable[[str, Call], None]) -> None:
    """One forward, of whose calls of registered attentions `tell` is told, with the layers' names."""
    names = {module: name for name, module in model.named_modules()}

    def observe(call: Call) -> None:
        # Another model may run at the same time.
        if call.module in names:
            tell(names[call.module], call)

    with ExitStack() as stack:
        stack.enter_context(_evaluating(model))
        stack.enter_context(torch.no_grad())
        for drop_in in list(REGISTERED.values()):
            drop_in.observers.append(observe)
            stack.callback(drop_in.observers.remove, observe)
        if isinstance(batch, Tensor):
            model(batch)
        else:
            model(**batch)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; each module is as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _why_nothing(model: nn.Module, own: int) -> str:
    name = type(model).__name__
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if own:
        return f"{name}: all {own} layers have sliding windows and keep their own attention; nothing is swapped"
    if chosen not in REGISTERED:
        known = ", ".join(REGISTERED) or "nothing: call register() before"
        return (
            f'{name} runs attn_implementation="{chosen}": load it with one that is registered ({known}), or call '
            "model.set_attn_implementation"
        )
    return NEVER_CALLS % (name, chosen)
