"""Figures over seeds, and whether they differ from a baseline by more than noise."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nystromformer.kept import STRICT

Mark = Literal["", "≈", "<"]

MARKS = (
    "≈ within noise of a baseline: at most 2 s apart, where s² sums the squares of both deviations and of both "
    "standard errors for the rows of the split (of n rows: √(p(1−p)/n) for a share p, as which F1 counts, and "
    "(1−r²)/√n for a correlation or kappa r). < further below a baseline, and within noise of none."
)
"""How figures are marked, for below a table."""
UNITS = {"rmse": "the labels' units", "mae": "classes"}
"""How metrics begin that are no shares but errors, of which the lowest is the best, and what these are in."""
IN_UNITS = tuple(UNITS)
_TIMES = 2
_CORRELATIONS = ("matthews", "pearson", "spearman", "kappa")


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the latter None for a single one."""

    mean: float
    deviation: float | None
    __pydantic_config__ = STRICT

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        mean = math.fsum(values) / len(values)
        if len(values) < 2:
            return cls(mean, None)
        return cls(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))

    def __str__(self) -> str:
        """In percent: `88.1 ± 0.3`."""
        text = f"{100 * self.mean:.1f}"
        return text if self.deviation is None else f"{text} ± {100 * self.deviation:.1f}"


def shown(metric: str, spread: Spread) -> str:
    """A figure as tables have it: in percent, or, of an error, in its units."""
    if not metric.startswith(IN_UNITS):
        return str(spread)
    return f"{spread.mean:.4g}" if spread.deviation is None else f"{spread.mean:.4g} ± {spread.deviation:.2g}"


def standard_error(metric: str, value: float, rows: int) -> float:
    """How far a metric on so many rows is from that on endlessly many alike, one standard deviation.

    Args:
        metric: its name, such as "f1", or "accuracy_mismatched" of another split.
        value: a fraction (1.0 is best).
        rows: of the split, at least one.
    """
    if metric.startswith(_CORRELATIONS):
        return max(0.0, 1 - value**2) / math.sqrt(rows)
    return math.sqrt(max(0.0, value * (1 - value)) / rows)


def mark(metric: str, figure: Spread, baselines: Iterable[Spread], rows: int) -> Mark:
    """What to put beside a figure, see `MARKS`; nothing where it is clear of all baselines, or there are none.

    Both figures are of the same rows, which makes their difference surer than the two standard errors say: the mark
    rather says "noise" once too often. So it does by taking a deviation as it is and not over the root of the number of
    seeds, of which there are few.

    Args:
        baselines: the same metric of other ways to predict, on the same rows.
        rows: of the split; 0 where nobody knows, for which nothing is marked.
    """
    worst: Mark = ""
    if not rows or metric.startswith(IN_UNITS):  # their noise does not follow from them
        return worst
    for baseline in baselines:
        parts = [figure.deviation or 0.0, baseline.deviation or 0.0]
        parts += [standard_error(metric, spread.mean, rows) for spread in (figure, baseline)]
        difference, noise = figure.mean - baseline.mean, _TIMES * math.hypot(*parts)
        if abs(difference) <= noise:
            return "≈"
        if difference < 0:
            worst = "<"
    return worst


def rows_behind(metric: str, rows: Mapping[str, int]) -> int:
    """Rows of the validation split that a metric is of, given those of all splits: of "accuracy_mismatched" those of
    "validation_mismatched", where there is such a split.
    """
    endings = [name.removeprefix("validation") for name in rows if name.startswith("validation")]
    return rows["validation" + max((ending for ending in endings if metric.endswith(ending)), key=len)]
