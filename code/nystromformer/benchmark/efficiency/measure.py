"""`run_benchmark.py efficiency`: one length after the other, all methods of a length in turn."""

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from nystromformer.benchmark.efficiency.methods import WRITTEN_OUT, Method, choose_methods
from nystromformer.benchmark.efficiency.report import Cell, Measurements, Omission, draw, to_read
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.results import on_one_line, with_place
from nystromformer.benchmark.timing import passes_side_by_side, peak_memory, repeats_at, time_side_by_side
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts

logger = logging.getLogger(__name__)


def measure_efficiency(settings: Efficiency, folder: Path, command: str) -> str:
    """Measure, write `efficiency.json`, `.md` and `.png`, and return what to print.

    The files are written anew after each length, so that what was measured is there whatever stops the rest.

    Args:
        command: what repeats the measurement.

    Raises:
        UserError: an unknown attention.
    """
    methods = choose_methods(settings.attentions, settings.peers)
    torch.set_num_threads(settings.threads)
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    facts, found = machine_facts(), Measurements()
    until = time.monotonic() + settings.budget
    header = [
        "# What every attention costs",
        f"float32, batch {settings.batch}, {settings.heads} heads of {settings.head_dim}; settings are the defaults, "
        f"without a convolution, unless named. Medians of up to {settings.repeats} measurements, all methods of a "
        f"length in turn in one process. {on_one_line(facts)}.",
        f"`{command}`",
    ]
    for length in settings.lengths:
        measure_at(settings, methods, length, until, found)
        described = asdict(settings) | {"command": command}
        write_json(folder / "efficiency.json", {"machine": facts, "settings": described} | asdict(found))
        write_text(folder / "efficiency.md", to_read(found, header))
        draw(found, folder / "efficiency.png", on_one_line(facts))
    return with_place(to_read(found, []), folder)


def measure_at(settings: Efficiency, methods: Sequence[Method], length: int, until: float, found: Measurements) -> None:
    """Measure a length and add it to what was found at shorter ones.

    Args:
        until: on the monotonic clock. What the time does not allow is left out, the costliest first; of a method of
            which nothing is known, nothing is.
    """
    repeats = repeats_at(length, settings.repeats)
    seconds: dict[str, float] = {}
    chosen: dict[str, Method] = {}
    known = found.costs("both")

    def leave_out(method: Method, why: str) -> None:
        found.left_out.append(Omission(length, method.name, why))

    for method in methods:
        if why := method.why_not(length) or _too_large(method, settings, length):
            leave_out(method, why)
            continue
        chosen[method.name] = method
        # Beside its measurements, those forward alone, which take about a third, those of the memory, and one more.
        step = carry_on(known[method.name], length) / 1e3 if method.name in known else 0.0
        seconds[method.name] = step * (repeats * 4 / 3 + 4)
    left = until - time.monotonic()
    while sum(seconds.values()) > max(0.0, left):
        name = max(seconds, key=lambda name: seconds[name])
        leave_out(chosen.pop(name), f"budget: some {seconds.pop(name):,.0f} s, {max(0.0, left):,.0f} were left")
    torch.manual_seed(0)  # of the methods' own parameters
    calls = {name: method.build(settings.heads, settings.head_dim, length) for name, method in chosen.items()}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    passes = passes_side_by_side(calls, (settings.batch, length, settings.heads, settings.head_dim), device)
    forward = time_side_by_side({name: each.forward for name, each in passes.items()}, repeats, warmup=1)
    both = time_side_by_side({name: each.both for name, each in passes.items()}, repeats, warmup=1)
    for name, each in passes.items():
        memory = peak_memory(each.both), peak_memory(each.forward)
        found.cells.append(Cell(length, name, forward[name], both[name], *memory))
    logger.info("%d tokens: %d methods measured", length, len(chosen))


def _too_large(method: Method, settings: Efficiency, length: int) -> str | None:
    """What stands in the way of softmax written out: a system without memory kills who asks for it."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if torch.cuda.is_available():
        there = torch.cuda.get_device_properties(0).total_memory
    needed = 3 * 4 * settings.batch * settings.heads * length**2
    if method.name != WRITTEN_OUT or needed < 0.7 * there:
        return None
    return f"memory: its N x N matrices take {needed / 2**30:,.1f} GiB of {there / 2**30:,.1f}"


def carry_on(costs: Mapping[int, float], length: int) -> float:
    """A cost at a length from those at shorter ones, at least one: along the line through the last two on logarithmic
    axes, no flatter than proportional and no steeper than with the square; with the square from one alone.
    """
    *before, last = sorted(costs)
    growth = 2.0
    if before:
        growth = min(2.0, max(1.0, math.log(costs[last] / costs[before[-1]]) / math.log(last / before[-1])))
    return float(costs[last] * (length / last) ** growth)
