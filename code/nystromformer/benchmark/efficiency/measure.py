"""`run_benchmark.py efficiency`: one length after the other, all methods of a length in turn."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from nystromformer.benchmark.efficiency.methods import CONTROL, PARTS, Method, Part, choose_methods
from nystromformer.benchmark.efficiency.report import (
    Cell,
    Measurements,
    Omission,
    as_data,
    csv_text,
    draw,
    for_terminal,
    to_read,
)
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.results import on_one_line
from nystromformer.benchmark.timing import Passes, check_memory, peak_memory, repeats_at, time_side_by_side
from nystromformer.errors import UserError
from nystromformer.files import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.resources import check_room, free_memory
from nystromformer.training.device import choose_device

logger = logging.getLogger(__name__)

_PROBES = (1024, 2048)
"""Lengths at which one row is tried first where all that are asked for are longer."""
_OVER = "budget: it was over"
_ROOM = 0.85
"""How much of the memory that is free a cell may be expected to take."""


def measure_efficiency(settings: Efficiency, folder: Path, command: str) -> str:
    """Measure, write `efficiency.json`, `.csv`, `.md` and a picture of each part, and return what to print.

    The files are written anew after each length, so that what was measured is there whatever stops the rest.

    Args:
        command: what repeats the measurement.

    Raises:
        UserError: an unknown attention, too little memory, or no time for anything.
    """
    methods = [*choose_methods(settings.attentions), Method(CONTROL, None)]
    torch.set_num_threads(settings.threads)
    if "attention" in settings.parts:
        check_memory(settings.batch, settings.lengths, settings.heads * settings.head_dim)
    if "encoder" in settings.parts:
        size = 4.0 * settings.encoder_batch * max(settings.encoder_lengths) * settings.encoder_width
        check_room(
            f"--encoder_batch {settings.encoder_batch} --encoder_lengths {max(settings.encoder_lengths)}: a step",
            {"what each layer keeps": 8 * settings.encoder_layers * size},
            _free() * 2**20,
            "on the GPU" if torch.cuda.is_available() else "on this machine",
            "lower one of the two",
        )
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    facts, found = machine_facts(), Measurements()
    device = choose_device("auto", mixed_precision=False)
    seconds = settings.budget / len(settings.parts)
    for name in settings.parts:
        for more in measure(PARTS[name](settings, device), methods, settings.repeats, seconds, _free()):
            found.cells += more.cells
            found.left_out += more.left_out
            if found.cells:
                _write(settings, found, folder, facts, command)
    names = ", ".join(f"efficiency{ending}" for ending in (".json", ".csv", ".md"))
    return f"{for_terminal(found)}\n\nresults: {folder} ({names}, and a picture of each part)"


def _free() -> float:
    """MiB."""
    if not torch.cuda.is_available():
        return free_memory() / 2**20
    torch.cuda.empty_cache()
    return free_memory(torch.device("cuda")) / 2**20


def _write(settings: Efficiency, found: Measurements, folder: Path, facts: Mapping[str, Any], command: str) -> None:
    described = asdict(settings) | {"command": command}
    write_json(folder / "efficiency.json", {"machine": facts, "settings": described} | as_data(found))
    write_text(folder / "efficiency.csv", csv_text(found))
    on = on_one_line(facts)
    header = [
        "# What every attention costs",
        f"float32; the attention alone: batch {settings.batch}, {settings.heads} heads of {settings.head_dim}; the "
        f"encoder: batch {settings.encoder_batch}, {settings.encoder_layers} layers of width {settings.encoder_width}, "
        f"{settings.encoder_heads} heads; no convolution; settings are the defaults unless named. Medians of up to "
        f"{settings.repeats} measurements, all methods of a length in turn in one process. {on}.",
        f"`{command}`",
    ]
    write_text(folder / "efficiency.md", to_read(found, header))
    for part in settings.parts:
        if any(cell.part == part for cell in found.cells):
            draw(found, part, folder / f"efficiency-{part}.png", on)


@dataclass
class Costs:
    """Of one method's forward and backward pass, by length."""

    seconds: dict[int, float] = field(default_factory=dict)
    memory: dict[int, float] = field(default_factory=dict)
    """MiB at the peak."""


def carry_on(costs: Mapping[int, float], length: int) -> float:
    """A cost at a length from those that are known, at least one: along the line through the last two on logarithmic
    axes, no flatter than proportional and no steeper than with the square; with the square from one alone.
    """
    *before, last = sorted(costs)
    growth = 2.0 if length > last else 1.0
    if length > last and before and min(costs[last], costs[before[-1]]) > 0:
        slope = math.log(costs[last] / costs[before[-1]]) / math.log(last / before[-1])
        growth = min(2.0, max(1.0, slope))
    return float(costs[last] * (length / last) ** growth)


def measure(part: Part, methods: Sequence[Method], repeats: int, seconds: float, free: float) -> Iterator[Measurements]:
    """Measure a part, from short to long, and give what was found at each length.

    Args:
        repeats: measurements of a cell at up to 2048 tokens.
        seconds: that it may take; what they do not allow is left out, the costliest first.
        free: MiB that there are.

    Raises:
        UserError: neither time nor memory are enough for a single cell.
    """
    until = time.monotonic() + seconds
    costs = {method.name: Costs() for method in methods}
    _probe(part, methods, costs)
    any_measured = False
    for number, length in enumerate(sorted(part.lengths)):
        found = Measurements()
        chosen = []
        for method in methods:
            left = until - time.monotonic()
            why = _why_not(method, costs[method.name], length, repeats, left, free)
            if why is None and number and left <= 0:
                # Of a method of which nothing is known the shortest length alone is tried without time.
                why = _OVER
            if why is None:
                chosen.append(method)
            else:
                found.left_out.append(Omission(part.name, length, method.name, why))
        if chosen:
            _measure_at(part, chosen, length, repeats, until, costs, found)
        any_measured = any_measured or any(cell.method != CONTROL for cell in found.cells)
        logger.info("%s, %d tokens: %d measured, %d left out", part.name, length, len(found.cells), len(found.left_out))
        yield found
    if not any_measured:
        last = found.left_out[-1] if found.left_out else None
        example = f": {last.method} at {last.length} tokens: {last.why}" if last else ""
        raise UserError(
            f"nothing of the part {part.name!r} could be measured{example}; raise --budget or lower --lengths"
        )


def _probe(part: Part, methods: Sequence[Method], costs: Mapping[str, Costs]) -> None:
    for length in _PROBES:
        if length >= min(part.lengths):
            return
        able = [method for method in methods if method.why_not(length) is None]
        for name, passes in part.passes(able, length, 1).items():
            costs[name].memory[length] = part.batch * (peak_memory(passes.both) + 3 * passes.weights)
            costs[name].seconds[length] = part.batch * _second_time(passes)


def _why_not(method: Method, costs: Costs, length: int, repeats: int, seconds: float, free: float) -> str | None:
    if (reason := method.why_not(length)) is not None:
        return reason
    if not costs.seconds:
        return None
    memory = carry_on(costs.memory, length)
    if memory > _ROOM * free:
        return f"memory: about {memory / 1024:,.1f} GiB, of {free / 1024:,.1f} that were free"
    needed = carry_on(costs.seconds, length) * _passes(length, repeats)
    return _over(needed, seconds) if needed > seconds else None


def _passes(length: int, repeats: int) -> float:
    """Passes forward and backward that a cell takes beside its first two: its measurements, those forward alone, which
    take about a third, and the one that tells the peak of memory, which a profiler slows.
    """
    return repeats_at(length, repeats) * 4 / 3 + 3


def _over(needed: float, left: float) -> str:
    return f"budget: some {needed:,.0f} s, {max(0.0, left):,.0f} were left"


def _measure_at(
    part: Part,
    methods: list[Method],
    length: int,
    repeats: int,
    until: float,
    costs: Mapping[str, Costs],
    found: Measurements,
) -> None:
    passes = dict(part.passes(methods, length, part.batch))
    needed: dict[str, float] = {}

    def leave_out(name: str, why: str) -> None:
        found.left_out.append(Omission(part.name, length, name, why))
        del passes[name]

    for name, each in list(passes.items()):
        if needed and time.monotonic() > until:
            leave_out(name, _OVER)
            continue
        try:
            needed[name] = _second_time(each) * _passes(length, repeats)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            leave_out(name, "memory: it was tried, and there was too little")
    while passes and sum(needed.values()) > (left := until - time.monotonic()):
        costliest = max(needed, key=lambda name: needed[name])
        leave_out(costliest, _over(needed.pop(costliest), left))
    repeats = repeats_at(length, repeats)
    forward = time_side_by_side({name: each.forward for name, each in passes.items()}, repeats, warmup=1)
    both = time_side_by_side({name: each.both for name, each in passes.items()}, repeats, warmup=0)
    for name, each in passes.items():
        memory = peak_memory(each.both) + 3 * each.weights
        forward_memory = peak_memory(each.forward) + each.weights
        costs[name].seconds[length], costs[name].memory[length] = both[name].median / 1e3, memory
        found.cells.append(Cell(part.name, length, name, forward[name], both[name], memory, forward_memory))


def _second_time(passes: Passes) -> float:
    """Seconds of a pass forward and backward after a first, slower one."""
    return time_side_by_side({"": passes.both}, repeats=1, warmup=1)[""].median / 1e3
