"""Figures over seeds, their differences, and the smallest difference between two rows of a table of them that the table
could have shown.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from nystromformer.files.checked_json import STRICT

UNITS = {"rmse": "the labels' units", "mae": "classes", "log_loss": "nats", "calibration_error": "shares"}
"""How metrics begin that are no shares but errors, of which the lowest is the best, and what these are in."""
_IN_UNITS = tuple(UNITS)
_OF_LABELS = (
    *("gini", "auroc", "average_precision", "f_beta", "precision_at_recall", "recall_at_precision", "iou"),
    *("precision", "recall"),
)
"""How metrics begin whose noise depends on how many rows have which label."""
_CORRELATIONS = ("matthews", "pearson", "spearman", "kappa")
ERROR_RATE, POWER = 0.05, 0.8
"""Of a two-sided test: how often it finds a difference where there is none, and how often one that is there."""


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
    if not metric.startswith(_IN_UNITS):
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


def _has_known_noise(metric: str) -> bool:
    """Whether a metric's noise follows from its value and the number of rows."""
    return not metric.startswith((*_IN_UNITS, *_OF_LABELS))


def rows_behind(metric: str, rows: Mapping[str, int]) -> int:
    """Rows of the validation split that a metric is of, given those of all splits: of "accuracy_mismatched" those of
    "validation_mismatched", where there is such a split.
    """
    endings = [name.removeprefix("validation") for name in rows if name.startswith("validation")]
    return rows["validation" + max((ending for ending in endings if metric.endswith(ending)), key=len)]


def pooled_variance(figures: Iterable[tuple[Spread, int]]) -> tuple[float, int]:
    """Variance over seeds, the same in all groups, and its degrees of freedom; both 0 where no group has several seeds.

    Args:
        figures: each with its number of seeds.
    """
    several = [(figure.deviation, seeds) for figure, seeds in figures if figure.deviation is not None and seeds > 1]
    freedom = sum(seeds - 1 for _, seeds in several)
    return (sum((seeds - 1) * deviation**2 for deviation, seeds in several) / freedom if freedom else 0.0), freedom


@dataclass(frozen=True)
class Difference:
    """Of two means, as a fraction."""

    value: float
    half: float
    """Of its 95 % interval."""
    smallest: float
    """That could have been shown, see `ERROR_RATE` and `POWER`."""

    @classmethod
    def of(cls, value: float, of_rows: float, of_seeds: float, freedom: int) -> "Difference":
        """
        Args:
            of_rows: the part of the variance that comes from the rows, which are many.
            of_seeds: the part that comes from seeds, estimated with `freedom` degrees of freedom; 0 where they are 0.
        """
        variance = of_rows + of_seeds
        # Welch and Satterthwaite: only the seeds' part was estimated from a few figures.
        effective = freedom * (variance / of_seeds) ** 2 if of_seeds else math.inf
        half = _student(1 - ERROR_RATE / 2, effective)
        error = math.sqrt(variance)
        return cls(value, half * error, (half + _student(POWER, effective)) * error)

    def __str__(self) -> str:
        """In points, with the 95 % interval: `+1.5 (-0.5 to +3.5)`."""
        low, high = self.value - self.half, self.value + self.half
        return f"{100 * self.value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def difference_of(metric: str, one: tuple[Spread, int], other: tuple[Spread, int], rows: int) -> Difference | None:
    """How far one figure is above another on the same rows, each with its number of seeds; None where nobody knows the
    rows or the metric's noise.
    """
    if not rows or not _has_known_noise(metric):
        return None
    variance, freedom = pooled_variance([one, other])
    of_rows = sum(standard_error(metric, spread.mean, rows) ** 2 for spread, _ in (one, other))
    of_seeds = sum(variance / seeds for spread, seeds in (one, other) if spread.deviation is not None)
    return Difference.of(one[0].mean - other[0].mean, of_rows, of_seeds, freedom)


@dataclass(frozen=True)
class SmallestDifference:
    """What a table could have shown."""

    value: float
    """As a fraction: the difference of two means that a test finds in four of five repetitions with other seeds and
    other rows of data."""
    seeds: int
    """Of each of the two means."""
    rows: int
    """That each was scored on."""
    spread_is_known: bool
    """Whether some mean is of several seeds; else only the rows count, and the true value is larger."""

    def __str__(self) -> str:
        least = "" if self.spread_is_known else "at least "
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{least}{100 * self.value:.1f} points ({seeds}, {self.rows:,} examples)"


def smallest_difference(metric: str, figures: Sequence[tuple[Spread, int]], rows: int) -> SmallestDifference | None:
    """Of a column of figures on the same rows, each with its number of seeds; None where there are not two, nobody
    knows the rows, or the metric is no share.

    Two means of s seeds differ by chance with variance 2 (d²/s + e²): d is the seeds' deviation, pooled over the
    column, and e the standard error for the rows. Both are taken for independent, though two models are wrong on many
    rows together: a test of the paired rows can show less. s is the fewest of the column.
    """
    if len(figures) < 2 or not rows or not _has_known_noise(metric):
        return None
    variance, freedom = pooled_variance(figures)
    fewest = min(seeds for _, seeds in figures)
    error = standard_error(metric, math.fsum(figure.mean for figure, _ in figures) / len(figures), rows)
    found = Difference.of(0.0, 2 * error**2, 2 * variance / fewest, freedom)
    return SmallestDifference(found.smallest, fewest, rows, spread_is_known=freedom > 0)


def power_note(found: Mapping[str, SmallestDifference | None]) -> str:
    """A paragraph for below a table; empty where there is nothing to say.

    Args:
        found: by the column's heading, "" where there is one column alone.
    """
    known = {name: one for name, one in found.items() if one is not None}
    if not known:
        return ""
    text = "; ".join(f"{name} {one}".lstrip() for name, one in known.items())
    unknown = any(not one.spread_is_known for one in known.values())
    return (
        f"Smallest difference between two rows that could have been shown (two-sided test at {100 * ERROR_RATE:.0f} %, "
        f"power {100 * POWER:.0f} %, examples not paired): {text}."
        + (" At least: of one seed each, so that the spread of seeds is not counted." if unknown else "")
    )


def _student(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit  # takes a third of a second

    return float(stdtrit(freedom, probability))
