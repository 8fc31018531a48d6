"""How costs grow with the length, and where they are equal."""

import math
from collections.abc import Mapping, Sequence

FROM = 2048
"""Tokens from which on exponents are fitted: below, what a call costs whatever its length counts, too."""


def exponent(costs: Mapping[int, float], least: int = FROM) -> float | None:
    """p of cost ~ N^p: the slope of the least-squares line on logarithmic axes, over the lengths from `least` on; None
    where fewer than two are there.
    """
    points = [(math.log(length), math.log(cost)) for length, cost in costs.items() if length >= least and cost > 0]
    if len(points) < 2:
        return None
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points, strict=True))
    above = sum((x - x_mean) * (y - y_mean) for x, y in points)
    return float(above / sum((x - x_mean) ** 2 for x, _ in points))


def crossover(costs: Mapping[int, float], others: Mapping[int, float]) -> float | None:
    """The length from which on a cost stays below another one, between the measured lengths along straight lines on
    logarithmic axes. The shortest measured length where it is below at all; None where it is not at the longest.
    """
    lengths = sorted(set(costs) & set(others))
    ahead = [math.log(costs[length] / others[length]) for length in lengths]
    if not lengths or ahead[-1] >= 0:
        return None
    last_behind = max((index for index, each in enumerate(ahead) if each >= 0), default=None)
    if last_behind is None:
        return float(lengths[0])
    low, high = lengths[last_behind], lengths[last_behind + 1]
    share = ahead[last_behind] / (ahead[last_behind] - ahead[last_behind + 1])
    return math.exp(math.log(low) + share * math.log(high / low))


def told(crossing: float | None, lengths: Sequence[int]) -> str:
    """For a table: `from 700`, `from 512 or less`, `not up to 4096`."""
    if crossing is None:
        return f"not up to {max(lengths)}" if lengths else "-"
    return f"from {min(lengths)} or less" if crossing <= min(lengths) else f"from {crossing:,.0f}"
