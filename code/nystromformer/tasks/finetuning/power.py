"""The smallest difference between two rows of a table of scores that the table could have shown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from nystromformer.tasks.finetuning.spread import IN_UNITS, Spread, standard_error

ERROR_RATE, POWER = 0.05, 0.8
"""Of a two-sided test: how often it finds a difference where there is none, and how often one that is there."""


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
    """Of a column of figures on the same rows; None where there are not two, nobody knows the
    rows, or the metric is no share.

    Two means of s seeds differ by chance with variance 2 (d²/s + e²): d is the seeds' deviation, pooled over the
    column, and e the standard error for the rows. Both are taken for independent, though two models are wrong on many
    rows together: a test of the paired rows can show less.

    Args:
        metric: its name, as for `standard_error`.
        figures: each with its number of seeds; the difference is between two rows of the fewest.
        rows: of the split.
    """
    if len(figures) < 2 or not rows or metric.startswith(IN_UNITS):
        return None
    several = [(figure.deviation, seeds) for figure, seeds in figures if figure.deviation is not None and seeds > 1]
    freedom = sum(seeds - 1 for _, seeds in several)
    variance = sum((seeds - 1) * deviation**2 for deviation, seeds in several) / freedom if freedom else 0.0
    fewest = min(seeds for _, seeds in figures)
    error = standard_error(metric, math.fsum(figure.mean for figure, _ in figures) / len(figures), rows)
    of_seeds, of_both = variance / fewest, variance / fewest + error**2
    # Welch and Satterthwaite: only the seeds' part was estimated from a few figures.
    effective = freedom * (of_both / of_seeds) ** 2 if of_seeds else math.inf
    value = (_student(1 - ERROR_RATE / 2, effective) + _student(POWER, effective)) * math.sqrt(2 * of_both)
    return SmallestDifference(value, fewest, rows, spread_is_known=freedom > 0)


def power_note(found: Mapping[str, SmallestDifference | None]) -> str:
    """A paragraph for below a table; empty where there is nothing to say.

    Args:
        found: by the column's heading, "" where there is one column alone.
    """
    known = {name: one for name, one in found.items() if one is not None}
    if not known:
        return ""
    shown = "; ".join(f"{name} {one}".lstrip() for name, one in known.items())
    unknown = any(not one.spread_is_known for one in known.values())
    return (
        f"Smallest difference between two rows that could have been shown (two-sided test at {100 * ERROR_RATE:.0f} %, "
        f"power {100 * POWER:.0f} %, examples not paired): {shown}."
        + (" At least: of one seed each, so that the spread of seeds is not counted." if unknown else "")
    )


def _student(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution, by its expansion about the normal one's (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom ** (order + 1) for order, term in enumerate(terms))
