"""What an encoder takes for a row, and what it would take with softmax attention: measured once, at the start.

Shapes: B rows, N tokens.
"""

import bisect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nystromformer.config import ModelConfig
from nystromformer.model import Encoder
from nystromformer.training import Device

_FIRST = 64
_SECONDS = 5.0
"""That the measurement may take; longer rows are extrapolated from there."""


@dataclass(frozen=True)
class RowTime:
    """Seconds of a forward over one row, by its length."""

    lengths: Sequence[int]
    seconds: Sequence[float]
    window: float | None = None
    """Of each row of a text that takes several, which are computed together; None: as of one alone."""

    def at(self, length: int) -> float:
        """Of a row of so many tokens: between measured ones, and beyond them, by the power of the length by which the
        next two differ, from the first to the second power.

        Softmax's power grows, so beyond what was measured it takes at least so long.
        """
        if length <= self.lengths[0] or len(self.lengths) == 1:
            return self.seconds[0] * max(length / self.lengths[0], 1.0)
        above = min(bisect.bisect_left(self.lengths, length), len(self.lengths) - 1)
        a, b = self.lengths[above - 1], self.lengths[above]
        power = math.log(self.seconds[above] / self.seconds[above - 1]) / math.log(b / a)
        if length > b:
            power = min(max(power, 1.0), 2.0)
        return self.seconds[above] * math.pow(length / b, power)

    def of_rows(self, tokens: int, rows: int) -> float:
        """Of a text that takes some rows of about the same length."""
        if rows > 1 and self.window is not None:
            return rows * self.window
        return rows * self.at(-(-tokens // rows))


def measure_encoder(
    config: ModelConfig, device: Device, window: tuple[int, int] | None
) -> dict[str, Callable[[int, int], float]]:
    """Seconds of a text of so many tokens in so many rows, as `create_app` takes them: of an encoder of these sizes,
    and of the same with softmax attention where it has another one.

    Args:
        window: see `measure_rows`.
    """
    measured = {"encoder_seconds": config}
    if (softmax := with_softmax(config)).attentions != config.attentions:
        measured["softmax_seconds"] = softmax
    return {name: measure_rows(each, device, window).of_rows for name, each in measured.items()}


def with_softmax(config: ModelConfig) -> ModelConfig:
    """The same network with softmax attention, through PyTorch's fused kernel, and without the convolution."""
    data = config.model_dump(mode="json", by_alias=True)
    return ModelConfig.model_validate({**data, "attn_type": "softmax", "num_landmarks": None, "conv_kernel_size": None})


@torch.no_grad()
def measure_rows(config: ModelConfig, device: Device, window: tuple[int, int] | None = None) -> RowTime:
    """Time an encoder of these sizes, with random weights, on one row at doubling lengths, in the device's precision
    and by its products.

    Args:
        window: (rows, tokens) of what is computed together of a text that takes several rows; None: none does.
    """
    with device.autocast(), device.products(config.transformer_dim):
        return _measure(config, device.device, window)


def _measure(config: ModelConfig, device: torch.device, window: tuple[int, int] | None) -> RowTime:
    encoder, longest = Encoder(config).to(device).eval(), config.max_seq_len
    lengths: list[int] = []
    seconds: list[float] = []
    length, left = config.fixed_length or min(_FIRST, longest), _SECONDS
    while not lengths or (lengths[-1] < longest and 6 * seconds[-1] < left):
        tokens_BN = torch.zeros(1, length, dtype=torch.int64, device=device)
        taken = [_timed(encoder, tokens_BN) for _ in range(3)]
        left -= sum(taken)
        lengths.append(length)
        seconds.append(min(taken))
        length = min(2 * length, longest)
    if window is None:
        return RowTime(lengths, seconds)
    tokens_BN = torch.zeros(window, dtype=torch.int64, device=device)
    return RowTime(lengths, seconds, min(_timed(encoder, tokens_BN) for _ in range(3)) / window[0])


def _timed(encoder: Encoder, tokens_BN: torch.Tensor) -> float:
    began = time.perf_counter()
    encoder(tokens_BN)
    if tokens_BN.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
