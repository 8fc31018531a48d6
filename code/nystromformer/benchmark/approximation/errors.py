"""How far an attention is from exact softmax on given queries, keys and values.

Shapes: B rows, H heads, N tokens, M landmarks, D head dim.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import Attention, NystromAttention, create_attention
from nystromformer.benchmark.approximation.candidates import RULES, SOFTMAX, Candidate
from nystromformer.benchmark.checkpoints import Inputs, factors_product
from nystromformer.benchmark.timing import Timing, time_side_by_side
from nystromformer.config import AttentionConfig, attention_config

Inverse = int | str
"""How the landmarks' matrix is inverted: the number of iterations of eq. 14, `ridge_name` of a ridge, or EXACT."""
EXACT = "exact"
"""The pseudo-inverse itself."""
_RIDGE = "ridge "


def ridge_name(ridge: float) -> str:
    """What a ridge is called among the inverses."""
    return f"{_RIDGE}{ridge:g}"


@dataclass(frozen=True)
class OutputError:
    """Of one candidate on one layer's input."""

    layer: str
    method: str
    width: int | None
    output_error: float
    """‖out − softmax's‖ / ‖softmax's‖ over all rows and heads (Frobenius)."""


@dataclass(frozen=True)
class NystromError:
    """Of one setting of the Nyström method on one layer's input."""

    layer: str
    rule: str
    landmarks: int
    inverse: Inverse
    matrix_error: float
    """‖Ŝ − S‖ / ‖S‖."""
    output_error: float
    """‖Ŝ V − S V‖ / ‖S V‖."""
    residual: float
    """‖A Z A − A‖ / ‖A‖, the mean over rows and heads."""
    negative: float
    """The share of Ŝ's absolute values that is of negative weights."""


def exact_weights(inputs: Inputs) -> Tensor:
    """S of eq. 2, zero at masked positions: (B, H, N, N)."""
    _, H, N, D = inputs.q.shape
    softmax = create_attention("softmax", num_heads=H, head_dim=D)
    return softmax.weights(inputs.q, inputs.k, inputs.mask, queries=range(N))


def core_of(candidate: Candidate, inputs: Inputs) -> Attention:
    """The module, for inputs of this shape; random numbers are the same for all layers."""
    torch.manual_seed(0)
    _, H, N, D = inputs.q.shape
    return create_attention(candidate.config, num_heads=H, head_dim=D, max_length=N).to(inputs.q.device).eval()


@torch.no_grad()
def output_errors(candidates: Sequence[Candidate], layers: Iterable[Inputs]) -> Iterator[OutputError]:
    """Of each candidate on each layer."""
    for inputs in layers:
        exact = create_attention("softmax", num_heads=inputs.q.shape[1], head_dim=inputs.q.shape[3])
        wanted = exact(inputs.q, inputs.k, inputs.v, inputs.mask)
        for candidate in candidates:
            out = core_of(candidate, inputs)(inputs.q, inputs.k, inputs.v, inputs.mask)
            error = float((out - wanted).norm() / wanted.norm())
            yield OutputError(inputs.name, candidate.name, candidate.width, error)


@torch.no_grad()
def nystrom_errors(
    layers: Iterable[Inputs], landmarks: Sequence[int], inverses: Sequence[Inverse]
) -> Iterator[NystromError]:
    """Of each way to pick landmarks, their number, and each inverse and the exact one; in float64, because the latter
    turns what float32 rounds off into large numbers.
    """
    for inputs in layers:
        rows = [(row, exact_weights(row)) for row in inputs.double().rows()]
        for rule in RULES:
            for count in landmarks:
                for inverse in (*inverses, EXACT):
                    yield _nystrom_error(inputs.name, rows, rule, count, inverse)


def _nystrom_error(
    layer: str, rows: Sequence[tuple[Inputs, Tensor]], rule: str, landmarks: int, inverse: Inverse
) -> NystromError:
    config = _nystrom(rule, landmarks, inverse)
    sums = dict.fromkeys(("matrix", "exact", "output", "wanted", "negative", "weight"), 0.0)
    residuals = []
    for inputs, exact in rows:
        _, H, _, D = inputs.q.shape
        core = create_attention(config, num_heads=H, head_dim=D)
        assert isinstance(core, NystromAttention)
        factors = core.factors(inputs.q, inputs.k, inputs.mask, exact_inverse=inverse == EXACT)
        approximate = factors_product(factors)
        wanted = exact @ inputs.v
        sums["matrix"] += _squares(approximate - exact)
        sums["exact"] += _squares(exact)
        sums["output"] += _squares(approximate @ inputs.v - wanted)
        sums["wanted"] += _squares(wanted)
        sums["negative"] += float(-approximate.clamp(max=0).sum())
        sums["weight"] += float(approximate.abs().sum())
        residuals.append(core.residual(inputs.q, inputs.k, inputs.mask, exact_inverse=inverse == EXACT).mean())
    return NystromError(
        layer,
        rule,
        landmarks,
        inverse,
        (sums["matrix"] / sums["exact"]) ** 0.5,
        (sums["output"] / sums["wanted"]) ** 0.5,
        float(torch.stack(residuals).mean()),
        sums["negative"] / sums["weight"],
    )


def _nystrom(rule: str, landmarks: int, inverse: Inverse) -> AttentionConfig:
    """The configuration; of EXACT, which no model computes with, the rest of it."""
    settings: dict[str, Any] = {"num_landmarks": landmarks, "landmarks": rule}
    if isinstance(inverse, int):
        settings["pinv_iterations"] = inverse
    elif inverse != EXACT:
        settings["pinv_ridge"] = float(inverse.removeprefix(_RIDGE))
    return attention_config("nystrom", **settings)


def _squares(x: Tensor) -> float:
    return float(x.double().square().sum())


@torch.no_grad()
def forward_times(candidates: Sequence[Candidate], inputs: Inputs, repeats: int) -> Mapping[str, Timing]:
    """Milliseconds of a forward pass over one layer's input, all in turn; softmax's under its name."""
    works = {
        one.label: partial(core_of(one, inputs), inputs.q, inputs.k, inputs.v, inputs.mask)
        for one in (SOFTMAX, *candidates)
    }
    return time_side_by_side(works, repeats)
