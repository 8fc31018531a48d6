"""`run_benchmark.py efficiency`: one length after the other, all methods of a length in turn."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
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
from nystromformer.files.writing import write_json, write_text
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
        measurement = PartMeasurement(PARTS[name](settings, device), methods, settings.repeats, seconds, _free())
        for more in measurement.run():
            found.cells += more.cells
            found.left_out += more.left_out
            if found.cells:
                _write(settings, found, folder, facts, command)
    names = "efficiency.json, efficiency.csv, efficiency.md, and a picture of each part"
    return f"{for_terminal(found)}\n\nresults: {folder} ({names})"


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


class PartMeasurement:
    """Measures a part, from short to long.

    Args:
        repeats: measurements of a cell at up to 2048 tokens.
        seconds: that it may take; what they do not allow is left out, the costliest first.
        free: MiB that there are.
    """

    def __init__(self, part: Part, methods: Sequence[Method], repeats: int, seconds: float, free: float) -> None:
        self._part, self._methods, self._repeats, self._free = part, methods, repeats, free
        self._until = time.monotonic() + seconds
        # Of each method's forward and backward pass, by length.
        self._seconds: dict[str, dict[int, float]] = defaultdict(dict)
        self._memory: dict[str, dict[int, float]] = defaultdict(dict)

    def run(self) -> Iterator[Measurements]:
        """What was found at each length.

        Raises:
            UserError: neither time nor memory are enough for a single cell.
        """
        part = self._part
        self._probe()
        any_measured = False
        for number, length in enumerate(sorted(part.lengths)):
            found = Measurements()
            chosen = []
            for method in self._methods:
                why = self._why_not(method, length)
                if why is None and number and self._left <= 0:
                    # Of a method of which nothing is known the shortest length alone is tried without time.
                    why = _OVER
                if why is None:
                    chosen.append(method)
                else:
                    found.left_out.append(Omission(part.name, length, method.name, why))
            if chosen:
                self._measure_at(chosen, length, found)
            any_measured = any_measured or any(cell.method != CONTROL for cell in found.cells)
            counts = len(found.cells), len(found.left_out)
            logger.info("%s, %d tokens: %d measured, %d left out", part.name, length, *counts)
            yield found
        if not any_measured:
            last = found.left_out[-1] if found.left_out else None
            example = f": {last.method} at {last.length} tokens: {last.why}" if last else ""
            raise UserError(
                f"no case of the part {part.name!r} could be measured{example}; raise --budget or lower --lengths"
            )

    @property
    def _left(self) -> float:
        return self._until - time.monotonic()

    def _probe(self) -> None:
        part = self._part
        for length in _PROBES:
            if length >= min(part.lengths):
                return
            able = [method for method in self._methods if method.why_not(length) is None]
            for name, passes in part.passes(able, length, 1).items():
                self._memory[name][length] = part.batch * (peak_memory(passes.both) + 3 * passes.weights)
                self._seconds[name][length] = part.batch * _second_time(passes)

    def _passes(self, length: int) -> float:
        """Passes forward and backward that a cell takes beside its first two: its measurements, those forward alone,
        which take about a third, and the one that tells the peak of memory, which a profiler slows.
        """
        return repeats_at(length, self._repeats) * 4 / 3 + 3

    def _why_not(self, method: Method, length: int) -> str | None:
        if (reason := method.why_not(length)) is not None or not self._seconds[method.name]:
            return reason
        memory = carry_on(self._memory[method.name], length)
        if memory > _ROOM * self._free:
            return f"memory: about {memory / 1024:,.1f} GiB, of {self._free / 1024:,.1f} that were free"
        needed = carry_on(self._seconds[method.name], length) * self._passes(length)
        return self._over(needed) if needed > self._left else None

    def _over(self, needed: float) -> str:
        return f"budget: some {needed:,.0f} s, {max(0.0, self._left):,.0f} were left"

    def _measure_at(self, methods: list[Method], length: int, found: Measurements) -> None:
        passes = dict(self._part.passes(methods, length, self._part.batch))
        needed: dict[str, float] = {}

        def leave_out(name: str, why: str) -> None:
            found.left_out.append(Omission(self._part.name, length, name, why))
            del passes[name]

        for name, each in list(passes.items()):
            if needed and self._left < 0:
                leave_out(name, _OVER)
                continue
            try:
                needed[name] = _second_time(each) * self._passes(length)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                    raise
                leave_out(name, "memory: it was tried, and there was too little")
        while passes and sum(needed.values()) > self._left:
            costliest = max(needed, key=lambda name: needed[name])
            leave_out(costliest, self._over(needed.pop(costliest)))
        repeats = repeats_at(length, self._repeats)
        forward = time_side_by_side({name: each.forward for name, each in passes.items()}, repeats, warmup=1)
        both = time_side_by_side({name: each.both for name, each in passes.items()}, repeats, warmup=0)
        for name, each in passes.items():
            memory = peak_memory(each.both) + 3 * each.weights
            forward_memory = peak_memory(each.forward) + each.weights
            self._seconds[name][length], self._memory[name][length] = both[name].median / 1e3, memory
            found.cells.append(Cell(self._part.name, length, name, forward[name], both[name], memory, forward_memory))


def _second_time(passes: Passes) -> float:
    """Seconds of a pass forward and backward after a first, slower one."""
    return time_side_by_side({"": passes.both}, repeats=1, warmup=1)[""].median / 1e3
