"""Tables and pictures of what measure.py found: long ones as data, short ones to read."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nystromformer.benchmark.efficiency.methods import BASELINES, CONTROL, SDPA, WRITTEN_OUT
from nystromformer.benchmark.results import new_figure
from nystromformer.benchmark.timing import Timing, figure
from nystromformer.files.writing import write_figure
from nystromformer.tables import markdown

FROM = 2048
"""Tokens from which on exponents are fitted: below, what a call costs whatever its length counts, too."""
HEADINGS = {
    "attention": {
        "forward": "Forward, ms",
        "both": "Forward and backward, ms",
        "forward_memory": "Peak memory of forward, MiB",
        "memory": "Peak memory of forward and backward, MiB",
    },
    "encoder": {
        "both": "Steps of training a second",
        "forward": "Forward, ms",
        "memory": "Peak memory of a step of training, weights and optimizer included, MiB",
    },
}
"""Of each part: the figures of its tables; steps a second are shown of their time."""
TITLES = {"attention": "The attention alone", "encoder": "A small encoder"}
_DRAWN = {
    "attention": {"both": "forward and backward, ms", "memory": "peak memory of both, MiB"},
    "encoder": {"both": "a step of training, ms", "memory": "peak memory of a step, MiB"},
}
_LINES = ("-", "--", ":")
_OWN = {SDPA: "black", WRITTEN_OUT: "dimgray", CONTROL: "lightgray", "nystrom": "crimson"}
"""Colours that are no other's."""


@dataclass(frozen=True)
class Cell:
    """One method at one length."""

    part: str
    length: int
    method: str
    forward: Timing
    both: Timing
    """Forward and backward; of an encoder, a step of training."""
    memory: float
    """MiB at the peak of forward and backward."""
    forward_memory: float
    """At that of forward alone, without gradients."""


@dataclass(frozen=True)
class Omission:
    """One that was not measured."""

    part: str
    length: int
    method: str
    why: str


@dataclass
class Measurements:
    """What there is so far."""

    cells: list[Cell] = field(default_factory=list)
    left_out: list[Omission] = field(default_factory=list)

    @property
    def parts(self) -> list[str]:
        """Of which there is a cell."""
        return [part for part in HEADINGS if any(cell.part == part for cell in self.cells)]

    def costs(self, part: str, name: str) -> dict[str, dict[int, float]]:
        """A figure by method and length: both softmaxes first, the control last, the others by name."""
        order = {SDPA: 0, WRITTEN_OUT: 1, CONTROL: 3}
        cells = [cell for cell in self.cells if cell.part == part]
        methods = sorted({cell.method for cell in cells}, key=lambda method: (order.get(method, 2), method))
        return {
            method: {cell.length: figure(cell, name) for cell in cells if cell.method == method} for method in methods
        }


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


def crossing_text(crossing: float | None, lengths: Sequence[int]) -> str:
    """For a table: `from 700`, `from 512 or less`, `not up to 4096`."""
    if crossing is None:
        return f"not up to {max(lengths)}" if lengths else "-"
    return f"from {min(lengths)} or less" if crossing <= min(lengths) else f"from {crossing:,.0f}"


def as_data(found: Measurements) -> dict[str, Any]:
    """Cells and what was left out, and of each method exponents and crossovers."""
    scaling: dict[tuple[str, str], dict[str, Any]] = {}
    for part in found.parts:
        for name in HEADINGS[part]:
            costs = found.costs(part, name)
            for method, mine in costs.items():
                facts = scaling.setdefault((part, method), {"part": part, "method": method})
                facts[f"{name}_exponent"] = exponent(mine)
                if method != SDPA:
                    facts[f"{name}_crossover"] = crossover(mine, costs.get(SDPA, {}))
    return asdict(found) | {"scaling": list(scaling.values())}


def to_read(found: Measurements, header: Sequence[str]) -> str:
    """Markdown: a table for each figure, methods below and lengths beside each other.

    Args:
        header: paragraphs on what was measured, and on what.
    """
    how_to_read = (
        f"In brackets: over softmax through PyTorch's fused kernels (SDPA), then over softmax written out; below 1 is "
        f"less of it (of steps a second, of the time that they take). exponent: p of cost ~ N^p, over the lengths from "
        f"{FROM} tokens on that were measured. less than SDPA: from which length on."
    )
    blocks = list(header)
    for part in found.parts:
        blocks += [f"## {TITLES[part]}", how_to_read]
        for name, heading in HEADINGS[part].items():
            blocks += [f"**{heading}**", _pivot(found, part, name)]
    return "\n\n".join([*blocks, *describe_omissions(found)]) + "\n"


def _pivot(found: Measurements, part: str, name: str) -> str:
    costs = found.costs(part, name)
    lengths = sorted({length for mine in costs.values() for length in mine})
    fused, plain = (costs.get(baseline, {}) for baseline in BASELINES)
    rows = []
    for method, mine in costs.items():
        cells = [_cell((part, name), *(each.get(length) for each in (mine, fused, plain))) for length in lengths]
        grows = exponent(mine)
        shared = sorted(set(mine) & set(fused))
        crossing = "" if method in (SDPA, CONTROL) else crossing_text(crossover(mine, fused), shared)
        rows.append([method, *cells, "" if grows is None else f"{grows:.2f}", crossing])
    return markdown([part, *map(str, lengths), "exponent", "less than SDPA"], rows)


def _cell(place: tuple[str, str], cost: float | None, *baselines: float | None) -> str:
    if cost is None:
        return "left out"
    shown = f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
    if place == ("encoder", "both"):
        shown = f"{1e3 / cost:.3g}"
    shares = ", ".join("–" if other is None else f"{cost / other:.2f}" for other in baselines)
    return f"{shown} ({shares})"


def describe_omissions(found: Measurements) -> list[str]:
    """A paragraph on what was not measured, and why; none where all was."""
    if not found.left_out:
        return []
    why: dict[tuple[str, str], list[str]] = {}
    for one in found.left_out:
        why.setdefault((one.part, one.method), []).append(f"{one.length} ({one.why})")
    lines = [f"- {part}, {method}: {'; '.join(each)}" for (part, method), each in why.items()]
    return ["**Left out**, at these numbers of tokens:", "\n".join(lines)]


def draw(found: Measurements, part: str, path: Path, header: str) -> None:
    """Time and memory over the length on logarithmic axes; a star where a method's line goes below that of softmax
    through SDPA for good.
    """
    from matplotlib import colormaps

    picture = new_figure(13, 5.6)
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axis, (name, label) in zip(picture.subplots(1, 2), _DRAWN[part].items(), strict=True):
        lines = found.costs(part, name)
        fused = lines.get(SDPA, {})
        others = [method for method in lines if method not in _OWN]
        for method, costs in lines.items():
            if method in others:
                number = others.index(method)
                style = {"color": colours[number % 10], "linestyle": _LINES[number // 10 % 3], "linewidth": 1.3}
            else:
                style = {"color": _OWN[method], "linewidth": 2.4, "linestyle": "--" if method == WRITTEN_OUT else "-"}
            axis.plot(list(costs), list(costs.values()), "o", markersize=3, color=style["color"])
            axis.plot(list(costs), list(costs.values()), label=method, **style)
            crossing = None if method in (SDPA, CONTROL) else crossover(costs, fused)
            if crossing is not None and crossing > min(fused):
                axis.plot([crossing], [_between(fused, crossing)], "*", color=style["color"], markersize=13, zorder=5)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        lengths = sorted({length for costs in lines.values() for length in costs})
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
        axis.set(xlabel="tokens", title=label)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    picture.suptitle(f"{TITLES[part]}; a star: from there on less than softmax (SDPA)\n{header}", fontsize=9)
    write_figure(path, picture, dpi=110)


def _between(costs: Mapping[int, float], length: float) -> float:
    """On a straight line between two measured lengths, on logarithmic axes."""
    low = max(each for each in costs if each <= length)
    high = min(each for each in costs if each >= length)
    if low == high:
        return costs[low]
    share = math.log(length / low) / math.log(high / low)
    return float(costs[low] ** (1 - share) * costs[high] ** share)
