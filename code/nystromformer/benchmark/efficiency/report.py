"""Tables and pictures of what measure.py found: long ones as data, short ones to read."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nystromformer.benchmark.efficiency.methods import BASELINES, CONTROL, SDPA, WRITTEN_OUT
from nystromformer.benchmark.results import new_figure
from nystromformer.benchmark.timing import Timing, figure
from nystromformer.files.writing import write_figure
from nystromformer.tables import markdown

FROM = 2048
"""Tokens from which on exponents are fitted: below, what a call costs whatever its length counts, too."""
HEADINGS = {
    "forward": "Forward, ms",
    "both": "Forward and backward, ms",
    "forward_memory": "Peak memory of forward, MiB",
    "memory": "Peak memory of forward and backward, MiB",
}
"""Of each figure's table."""
_LINES = ("-", "--", ":")
_OWN = {SDPA: "black", WRITTEN_OUT: "dimgray", CONTROL: "lightgray", "nystrom": "crimson"}
"""Colours that are no other's."""


@dataclass(frozen=True)
class Cell:
    """One method at one length."""

    length: int
    method: str
    forward: Timing
    both: Timing
    """Forward and backward."""
    memory: float
    """MiB at the peak of forward and backward."""
    forward_memory: float
    """At that of forward alone, without gradients."""


@dataclass(frozen=True)
class Omission:
    """One that was not measured."""

    length: int
    method: str
    why: str


@dataclass
class Measurements:
    """What there is so far."""

    cells: list[Cell] = field(default_factory=list)
    left_out: list[Omission] = field(default_factory=list)

    def costs(self, name: str) -> dict[str, dict[int, float]]:
        """A figure by method and length: both softmaxes first, the control last, the others by name."""
        order = {SDPA: 0, WRITTEN_OUT: 1, CONTROL: 3}
        found: dict[str, dict[int, float]] = {}
        for cell in sorted(self.cells, key=lambda cell: (order.get(cell.method, 2), cell.method)):
            found.setdefault(cell.method, {})[cell.length] = figure(cell, name)
        return found


def exponent(costs: Mapping[int, float], least: int = FROM) -> float | None:
    """p of cost ~ N^p: the slope of the least-squares line on logarithmic axes, over the lengths from `least` on; None
    where fewer than two are there.
    """
    points = [(math.log(length), math.log(cost)) for length, cost in costs.items() if length >= least and cost > 0]
    return None if len(points) < 2 else statistics.linear_regression(*zip(*points, strict=True)).slope


def crossover(costs: Mapping[int, float], others: Mapping[int, float]) -> float | None:
    """The length from which on a cost stays below another one, between the measured lengths along straight lines on
    logarithmic axes. The shortest measured length where it is below at all; None where it is not at the longest.
    """
    lengths = sorted(set(costs) & set(others))
    logs = [math.log(costs[length] / others[length]) for length in lengths]
    if not lengths or logs[-1] >= 0:
        return None
    last_behind = max((index for index, each in enumerate(logs) if each >= 0), default=None)
    if last_behind is None:
        return float(lengths[0])
    low, high = lengths[last_behind], lengths[last_behind + 1]
    share = logs[last_behind] / (logs[last_behind] - logs[last_behind + 1])
    return math.exp(math.log(low) + share * math.log(high / low))


def crossing_text(costs: Mapping[int, float], others: Mapping[int, float]) -> str:
    """A crossover for a table: `from 700`, `from 512 or less`, `not up to 4096`."""
    lengths, crossing = set(costs) & set(others), crossover(costs, others)
    if crossing is None:
        return f"not up to {max(lengths)}" if lengths else "-"
    return f"from {min(lengths)} or less" if crossing <= min(lengths) else f"from {crossing:,.0f}"


def to_read(found: Measurements, header: Sequence[str]) -> str:
    """Markdown: a table for each figure, methods below and lengths beside each other.

    Args:
        header: paragraphs on what was measured, and on what.
    """
    how_to_read = (
        f"In brackets: over softmax through PyTorch's fused kernels (SDPA), then over softmax written out. exponent: p "
        f"of cost ~ N^p, over the lengths from {FROM} tokens on that were measured. less than SDPA: from which length "
        "on."
    )
    blocks = [*header, how_to_read]
    for name, heading in HEADINGS.items():
        blocks += [f"**{heading}**", _pivot(found.costs(name))]
    return "\n\n".join([*blocks, *describe_omissions(found)]) + "\n"


def _pivot(costs: Mapping[str, Mapping[int, float]]) -> str:
    lengths = sorted({length for mine in costs.values() for length in mine})
    fused, plain = (costs.get(baseline, {}) for baseline in BASELINES)
    rows = []
    for method, mine in costs.items():
        cells = [_cell(*(each.get(length) for each in (mine, fused, plain))) for length in lengths]
        grows = exponent(mine)
        crossing = "" if method in (SDPA, CONTROL) else crossing_text(mine, fused)
        rows.append([method, *cells, "" if grows is None else f"{grows:.2f}", crossing])
    return markdown(["attention", *map(str, lengths), "exponent", "less than SDPA"], rows)


def _cell(cost: float | None, *baselines: float | None) -> str:
    if cost is None:
        return "left out"
    shares = ", ".join("–" if other is None else f"{cost / other:.2f}" for other in baselines)
    return f"{cost:,.0f} ({shares})" if cost >= 100 else f"{cost:.3g} ({shares})"


def describe_omissions(found: Measurements) -> list[str]:
    """A paragraph on what was not measured, and why; none where all was."""
    why: dict[str, list[str]] = {}
    for one in found.left_out:
        why.setdefault(f"- {one.method}: ", []).append(f"{one.length} ({one.why})")
    lines = [method + "; ".join(each) for method, each in why.items()]
    return ["**Left out**, at these numbers of tokens:", "\n".join(lines)] if lines else []


def draw(found: Measurements, path: Path, header: str) -> None:
    """Time and memory over the length on logarithmic axes."""
    picture = new_figure(13, 5.6)
    for axis, name in zip(picture.subplots(1, 2), ("both", "memory"), strict=True):
        lines = found.costs(name)
        for number, (method, costs) in enumerate(lines.items()):
            style = {"color": f"C{number % 10}", "linestyle": _LINES[number // 10 % 3], "linewidth": 1.3}
            style |= {"color": _OWN[method], "linewidth": 2.4} if method in _OWN else {}
            axis.plot(list(costs), list(costs.values()), marker="o", markersize=3, label=method, **style)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        lengths = sorted({length for costs in lines.values() for length in costs})
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
        axis.set(xlabel="tokens", title=HEADINGS[name])
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    picture.suptitle(header, fontsize=9)
    write_figure(path, picture, dpi=110)
