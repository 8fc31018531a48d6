"""Tables of what measure.py found: long ones as data, short ones to read."""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nystromformer.benchmark.efficiency.measure import Cell, Found
from nystromformer.benchmark.efficiency.methods import BASELINES, CONTROL, SDPA, WRITTEN_OUT
from nystromformer.tables import Column, aligned, markdown

FROM = 2048
"""Tokens from which on exponents are fitted: below, what a call costs whatever its length counts, too."""
Value = Callable[[Cell], float]
MEASURES: dict[str, tuple[tuple[str, str, Value], ...]] = {
    "attention": (
        ("forward", "Forward, ms", lambda cell: cell.forward.median),
        ("both", "Forward and backward, ms", lambda cell: cell.both.median),
        ("forward_memory", "Peak memory of forward, MiB", lambda cell: cell.forward_memory),
        ("memory", "Peak memory of forward and backward, MiB", lambda cell: cell.memory),
    ),
    "encoder": (
        ("both", "Steps of training a second", lambda cell: cell.both.median),
        ("forward", "Forward, ms", lambda cell: cell.forward.median),
        ("memory", "Peak memory of a step of training, weights and optimizer included, MiB", lambda cell: cell.memory),
    ),
}
"""Of each part: the name of a figure, its heading, and the cost itself; steps a second are shown of their time."""
TITLES = {"attention": "The attention alone", "encoder": "A small encoder"}


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


def csv_text(found: Found) -> str:
    """A line for each cell, what was left out included, with ratios to both softmaxes."""
    text = io.StringIO()
    ratios = [f"{name}_over_{short}" for name, _, _ in MEASURES["attention"] for short in ("sdpa", "written_out")]
    timing = [f"{name}_ms{suffix}" for name in ("forward", "both") for suffix in ("", "_low", "_high")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["part", "tokens", "method", *timing, "forward_memory_mib", "memory_mib", *ratios, "left_out"])
    by_place = {(cell.part, cell.method, cell.length): cell for cell in found.cells}
    for cell in found.cells:
        times = [getattr(each, key) for each in (cell.forward, cell.both) for key in ("median", "low", "high")]
        shares = []
        for _, _, value in MEASURES["attention"]:
            for baseline in BASELINES:
                other = by_place.get((cell.part, baseline, cell.length))
                shares.append("" if other is None else f"{value(cell) / value(other):.4f}")
        figures = [f"{each:.4f}" for each in (*times, cell.forward_memory, cell.memory)]
        writer.writerow([cell.part, cell.length, cell.method, *figures, *shares, ""])
    for one in found.left_out:
        writer.writerow([one.part, one.length, one.method, *[""] * (len(timing) + 2 + len(ratios)), one.why])
    return text.getvalue()


def as_data(found: Found) -> dict[str, Any]:
    """Cells and what was left out, and of each method exponents and crossovers."""
    return {
        "cells": [asdict(cell) for cell in found.cells],
        "left_out": [asdict(one) for one in found.left_out],
        "scaling": [
            {"part": part, "method": method}
            | {f"{name}_exponent": exponent(_of(found.cells, part, method, value)) for name, _, value in MEASURES[part]}
            | {
                f"{name}_crossover": crossover(
                    _of(found.cells, part, method, value), _of(found.cells, part, SDPA, value)
                )
                for name, _, value in MEASURES[part]
                if method != SDPA
            }
            for part in _parts(found)
            for method in _methods(found, part)
        ],
    }


def to_read(found: Found, header: Sequence[str]) -> str:
    """Markdown: a table for each figure, methods below and lengths beside each other.

    Args:
        header: paragraphs on what was measured, and on what.
    """
    blocks = list(header)
    for part in _parts(found):
        blocks += [f"## {TITLES[part]}", _how_to_read()]
        for name, heading, value in MEASURES[part]:
            blocks += [f"**{heading}**", markdown(*_pivot(found, part, name, value))]
    blocks += left_out(found)
    return "\n\n".join(blocks) + "\n"


def _how_to_read() -> str:
    return (
        f"In brackets: over softmax through PyTorch's fused kernels (SDPA), then over softmax written out; below 1 is "
        f"less of it (of steps a second, of the time that they take). exponent: p of cost ~ N^p, over the lengths from "
        f"{FROM} tokens on that were measured. less than SDPA: from which length on."
    )


def _pivot(found: Found, part: str, name: str, value: Value) -> tuple[list[str], list[list[str]]]:
    lengths = sorted({cell.length for cell in found.cells if cell.part == part})
    fused, plain = (_of(found.cells, part, baseline, value) for baseline in BASELINES)
    rows = []
    for method in _methods(found, part):
        mine = _of(found.cells, part, method, value)
        cells = [_cell(part, name, mine.get(length), fused.get(length), plain.get(length)) for length in lengths]
        grows = exponent(mine)
        both = sorted(set(mine) & set(fused))
        crossing = "" if method in (SDPA, CONTROL) else crossing_text(crossover(mine, fused), both)
        rows.append([method, *cells, "" if grows is None else f"{grows:.2f}", crossing])
    return [part, *map(str, lengths), "exponent", "less than SDPA"], rows


def _cell(part: str, name: str, cost: float | None, *baselines: float | None) -> str:
    if cost is None:
        return "left out"
    shown = f"{1e3 / cost:.3g}" if (part, name) == ("encoder", "both") else _rounded(cost)
    shares = ", ".join("–" if other is None else f"{cost / other:.2f}" for other in baselines)
    return f"{shown} ({shares})"


def _rounded(cost: float) -> str:
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"


def left_out(found: Found) -> list[str]:
    """A paragraph on what was not measured, and why; none where all was."""
    if not found.left_out:
        return []
    why: dict[tuple[str, str], list[str]] = {}
    for one in found.left_out:
        why.setdefault((one.part, one.method), []).append(f"{one.length} ({one.why})")
    lines = [f"- {part}, {method}: {'; '.join(each)}" for (part, method), each in why.items()]
    return ["**Left out**, at these numbers of tokens:", "\n".join(lines)]


def for_terminal(found: Found) -> str:
    """The same figures, a line for each cell."""
    columns = [Column("part", is_text=True), Column("tokens", 6), Column("method", is_text=True)]
    columns += [Column("forward ms"), Column("/SDPA", gap=1), Column("fwd+bwd ms"), Column("/SDPA", gap=1)]
    columns += [Column("MiB"), Column("/SDPA", gap=1)]
    by_place = {(cell.part, cell.method, cell.length): cell for cell in found.cells}
    lines = []
    for cell in found.cells:
        other = by_place.get((cell.part, SDPA, cell.length))

        def share(value: Value, cell: Cell = cell, other: Cell | None = other) -> str:
            return "" if other is None else f"{value(cell) / value(other):.2f}"

        figures = [str(cell.forward), share(lambda each: each.forward.median)]
        figures += [str(cell.both), share(lambda each: each.both.median)]
        figures += [f"{cell.memory:.1f}", share(lambda each: each.memory)]
        lines.append([cell.part, str(cell.length), cell.method, *figures])
    return "\n".join([*aligned(columns, lines), *("\n".join(["", *left_out(found)]).splitlines())])


def _parts(found: Found) -> list[str]:
    return [part for part in MEASURES if any(cell.part == part for cell in found.cells)]


def _methods(found: Found, part: str) -> list[str]:
    """Both softmaxes first, the control last, the others by name."""
    order = {SDPA: 0, WRITTEN_OUT: 1, CONTROL: 3}
    names = {cell.method for cell in found.cells if cell.part == part}
    return sorted(names, key=lambda name: (order.get(name, 2), name))


def _of(cells: Sequence[Cell], part: str, method: str, value: Value) -> Mapping[int, float]:
    return {cell.length: value(cell) for cell in cells if (cell.part, cell.method) == (part, method)}


def series(found: Found, part: str, name: str) -> Iterator[tuple[str, Mapping[int, float]]]:
    """Of each method a figure by length, for a picture."""
    (value,) = (value for each, _, value in MEASURES[part] if each == name)
    for method in _methods(found, part):
        yield method, _of(found.cells, part, method, value)
