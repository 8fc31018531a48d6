"""Time and memory over the length, with the lengths from which on each method takes less than softmax."""

import math
from collections.abc import Mapping
from pathlib import Path

from nystromformer.benchmark.efficiency.measure import Found
from nystromformer.benchmark.efficiency.methods import CONTROL, SDPA, WRITTEN_OUT
from nystromformer.benchmark.efficiency.report import TITLES, crossover, series
from nystromformer.benchmark.results import new_figure
from nystromformer.files import write_figure

_LINES = ("-", "--", ":")
_NAMES = {
    "attention": (("both", "forward and backward, ms"), ("memory", "peak memory of both, MiB")),
    "encoder": (("both", "a step of training, ms"), ("memory", "peak memory of a step, MiB")),
}
_OWN = {SDPA: "black", WRITTEN_OUT: "dimgray", CONTROL: "lightgray", "nystrom": "crimson"}
"""Colours that are no other's."""


def draw(found: Found, part: str, path: Path, header: str) -> None:
    """Both on logarithmic axes; a star where a method's line goes below that of softmax through SDPA for good."""
    from matplotlib import colormaps

    figure = new_figure(13, 5.6)
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axis, (name, label) in zip(figure.subplots(1, 2), _NAMES[part], strict=True):
        lines = dict(series(found, part, name))
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
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    figure.suptitle(f"{TITLES[part]}; a star: from there on less than softmax (SDPA)\n{header}", fontsize=9)
    write_figure(path, figure, dpi=110)


def _between(costs: Mapping[int, float], length: float) -> float:
    """On a straight line between two measured lengths, on logarithmic axes."""
    low = max(each for each in costs if each <= length)
    high = min(each for each in costs if each >= length)
    if low == high:
        return costs[low]
    share = math.log(length / low) / math.log(high / low)
    return float(costs[low] ** (1 - share) * costs[high] ** share)
