"""How a model with another attention is trained to be like the one that it was made from, whichever library it is of.

Shapes: B rows, N tokens, E width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

Stage = Literal["layers", "hidden"]
Batch = Mapping[str, Tensor]
Hidden = tuple[Sequence[Tensor], Tensor | None]
"""The vectors (B, N, E) that each layer gives, and which tokens are valid, bool (B, N); None: all are."""
Call = tuple[Callable[[], Tensor], Tensor]
"""What the model's attention gives where the source's was called, computed when called; and what the source's gave."""


@dataclass(frozen=True)
class Distillation:
    """A model and its source, both in evaluation."""

    stage: Stage
    """What is trained towards the source's: first each attention by itself, then what each layer gives."""
    model: nn.Module
    source: nn.Module
    attentions: Sequence[str]
    """Modules of both."""
    embeddings: nn.Module | None
    """Of the model, which no stage trains."""
    hidden: Callable[[Any, Batch], Hidden]
    """One forward of either."""

    @property
    def trained(self) -> list[nn.Parameter]:
        if self.stage == "layers":
            return [p for name in self.attentions for p in self.model.get_submodule(name).parameters()]
        kept = set() if self.embeddings is None else set(self.embeddings.parameters())
        return [p for p in self.model.parameters() if p not in kept]

    @torch.no_grad()
    def wanted(self, batch: Batch) -> tuple[list[Call], Hidden]:
        """What the source computes."""
        calls: list[Call] = []

        def note(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            attention = self.model.get_submodule(name)
            calls.append((lambda: _vectors(attention(*args, **kwargs)), _vectors(output)))

        hooks = [
            self.source.get_submodule(name).register_forward_hook(partial(note, name), with_kwargs=True)
            for name in self.attentions
        ]
        hidden = self.hidden(self.source, batch)
        for hook in hooks:
            hook.remove()
        return calls, hidden

    def distance(self, batch: Batch) -> Tensor:
        """The mean over layers of Σ (found - wanted)² / Σ wanted²: else those with large outputs would decide. Of the
        attentions (LoLCATs, arXiv 2410.10254), or of all that a layer gives.
        """
        calls, (wanted, keep_BN) = self.wanted(batch)
        if self.stage == "layers":
            pairs = [(attend(), output_BNE) for attend, output_BNE in calls]
        else:
            pairs = list(zip(self.hidden(self.model, batch)[0], wanted, strict=True))
        sums = [squares(*pair, keep_BN, torch.float32) for pair in pairs]
        return torch.stack([error / size for error, size in sums]).mean()


def squares(found_BNE: Tensor, wanted_BNE: Tensor, keep_BN: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Σ (found - wanted)² and Σ wanted² over valid tokens, (2,)."""
    found, wanted = (valid_alone(x, keep_BN).to(dtype) for x in (found_BNE, wanted_BNE))
    return torch.stack([(found - wanted).square().sum(), wanted.square().sum()])


def valid_alone(x_BNE: Tensor, keep_BN: Tensor | None) -> Tensor:
    """Zero at the other tokens."""
    return x_BNE if keep_BN is None else torch.where(keep_BN[..., None], x_BNE, 0.0)


def warm_up_steps(steps: int) -> int:
    """Of a stage's, those in which the learning rate rises; then it falls to zero linearly."""
    return max(1, round(0.05 * steps))


def _vectors(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The attention's output among all that a layer's module returns."""
    return output if isinstance(output, Tensor) else output[0]
