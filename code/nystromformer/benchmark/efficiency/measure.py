"""`run_benchmark.py efficiency`: one length after the other, all methods of a length in turn."""

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from nystromformer.benchmark.efficiency.methods import PARTS, WRITTEN_OUT, Method, Part, choose_methods
from nystromformer.benchmark.efficiency.report import Cell, Measurements, Omission, as_data, draw, to_read
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.results import on_one_line, with_place
from nystromformer.benchmark.timing import peak_memory, repeats_at, time_side_by_side
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.training.device import choose_device

logger = logging.getLogger(__name__)


def measure_efficiency(settings: Efficiency, folder: Path, command: str) -> str:
    """Measure, write `efficiency.json`, `.md` and a picture of each part, and return what to print.

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
    device = choose_device("auto", mixed_precision=False)
    for name in settings.parts:
        part = PARTS[name](settings, device)
        until = time.monotonic() + settings.budget / len(settings.parts)
        mine = [method for method in methods if part.takes(method)]
        for length in part.lengths:
            measure_at(part, mine, length, settings.repeats, until, found)
            _write(settings, found, folder, facts, command)
    return with_place(to_read(found, []), folder)


def measure_at(
    part: Part, methods: Sequence[Method], length: int, repeats: int, until: float, found: Measurements
) -> None:
    """Measure a length and add it to what was found at shorter ones.

    Args:
        repeats: measurements of a cell at up to 2048 tokens.
        until: on the monotonic clock. What the time does not allow is left out, the costliest first; of a method of
            which nothing is known, nothing is.
    """
    repeats = repeats_at(length, repeats)
    seconds: dict[str, float] = {}
    chosen: dict[str, Method] = {}
    known = found.costs(part.name, "both")

    def leave_out(method: Method, why: str) -> None:
        found.left_out.append(Omission(part.name, length, method.name, why))

    for method in methods:
        if why := method.why_not(length) or _too_large(part, method, length):
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
    passes = part.passes(list(chosen.values()), length)
    forward = time_side_by_side({name: each.forward for name, each in passes.items()}, repeats, warmup=1)
    both = time_side_by_side({name: each.both for name, each in passes.items()}, repeats, warmup=1)
    for name, each in passes.items():
        memory = peak_memory(each.both) + 3 * each.weights
        forward_memory = peak_memory(each.forward) + each.weights
        found.cells.append(Cell(part.name, length, name, forward[name], both[name], memory, forward_memory))
    logger.info("%s, %d tokens: %d methods measured", part.name, length, len(chosen))


def _too_large(part: Part, method: Method, length: int) -> str | None:
    """What stands in the way of softmax written out: a system without memory kills who asks for it."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if torch.cuda.is_available():
        there = torch.cuda.get_device_properties(0).total_memory
    needed = part.matrix * length**2
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


def _write(settings: Efficiency, found: Measurements, folder: Path, facts: Mapping[str, Any], command: str) -> None:
    described = asdict(settings) | {"command": command}
    write_json(folder / "efficiency.json", {"machine": facts, "settings": described} | as_data(found))
    on = on_one_line(facts)
    header = [
        "# What every attention costs",
        f"float32; the attention alone: batch {settings.batch}, {settings.heads} heads of {settings.head_dim}; the "
        f"encoder: batch {settings.encoder_batch}, {settings.encoder_layers} layers of width {settings.encoder_width}, "
        f"{settings.encoder_heads} heads; settings are the defaults, without a convolution, unless named. Medians of "
        f"up to {settings.repeats} measurements, all methods of a length in turn in one process. {on}.",
        f"`{command}`",
    ]
    write_text(folder / "efficiency.md", to_read(found, header))
    for part in found.parts:
        draw(found, part, folder / f"efficiency-{part}.png", on)
