"""`run_benchmark.py gpu`: sections in order, within the time, written down as it goes."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nystromformer.attention.kernels import plan
from nystromformer.benchmark.gpu.attention import OURS, attention_pieces, build, draw_inputs
from nystromformer.benchmark.gpu.bandwidth import ceiling_pieces, kernel_pieces
from nystromformer.benchmark.gpu.check import check_pieces
from nystromformer.benchmark.gpu.figures import Figures
from nystromformer.benchmark.gpu.report import DRY_RUN, draw, report, summary
from nystromformer.benchmark.gpu.settings import GpuBenchmark, TrainingSize, choose_settings
from nystromformer.benchmark.gpu.training import ATTENTIONS, NYSTROM, prepare_training, training_config, training_pieces
from nystromformer.benchmark.pieces import Outcome, Piece, measure_here, measure_in_processes
from nystromformer.benchmark.questions.gpu import Gpu
from nystromformer.benchmark.results import with_place
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.training.compile import missing_compiler

logger = logging.getLogger(__name__)

COMPILE = "compile"
"""The section that comes before all others, unasked."""
_FEW_LAYERS = "model.num_layers=2"
"""All layers but the last are alike: two compile to what twelve do, in a sixth of the memory."""
_SEVERAL = 12
"""Processes that compile and compare at once; what is timed has the device for itself."""
SHARES = {COMPILE: 0.1, "check": 0.25, "ceilings": 0.03, "kernels": 0.07, "attention": 0.27, "training": 0.28}
"""Of the time, by section. What a section leaves over goes to those behind it."""
GRACE = 10.0
"""Seconds past its section's end after which a running piece is stopped: one without end costs its section alone."""


class Budget:
    """When each section must be done.

    Args:
        sections: those that run, in order.
        now: seconds, of a clock that all processes share.
    """

    def __init__(self, minutes: float, sections: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        begin = now()
        whole = sum(SHARES[name] for name in sections)
        used = 0.0
        self._ends: dict[str, float] = {}
        for name in sections:
            used += SHARES[name]
            self._ends[name] = begin + 60 * minutes * used / whole
        if "check" in self._ends:
            # The two run together.
            self._ends[COMPILE] = self._ends["check"]

    def refusal(self, piece: Piece) -> str | None:
        """Why a piece is not begun now; None where there is time for it."""
        left = self._ends[piece.section] - self._now()
        if left >= piece.seconds:
            return None
        return f"the time limit: of {piece.section}'s time {max(0.0, left):.0f} s are left, this takes about " + (
            f"{piece.seconds:.0f} s"
        )

    def until_stopped(self, section: str) -> float:
        """Seconds until what still runs of a section is stopped."""
        return max(0.0, self._ends[section] + GRACE - self._now())


def measure_on_gpu(flags: Gpu, folder: Path, command: str) -> tuple[str, bool]:
    """Measure, and write `gpu.json` after every piece and `gpu.md` and the pictures after every section and at the end,
    which SIGTERM and Ctrl-C bring early; returns what to print, and whether all went well and agreed with float64.

    Args:
        command: what repeats the measurement.

    Raises:
        UserError: as `choose_settings`.
    """
    settings = choose_settings(flags)
    folder.mkdir(parents=True, exist_ok=True)
    facts = gpu_facts(settings, command)
    stages = _stages(settings)
    sections = {piece.section for stage in stages for piece in stage}
    budget = Budget(settings.minutes, [name for name in (COMPILE, *settings.sections) if name in sections])
    outcomes: list[Outcome] = []
    device_memory = None if settings.dry_run else torch.cuda.get_device_properties(0).total_memory / 2**20
    figures = Figures(settings, outcomes, device_memory)
    write(figures, facts, folder)
    with _few_programs() if settings.dry_run else nullcontext(), _ended_by_sigterm():
        try:
            for stage in stages:
                for outcome in _outcomes(stage, settings, budget):
                    outcomes.append(outcome)
                    logger.info("%s", outcome)
                    write_json(folder / "gpu.json", as_data(figures, facts))
                write(figures, facts, folder)
        except BaseException:  # it may have come while files were written
            write(figures, facts, folder)
            raise
    return with_place(summary(figures), folder), not figures.failures()


def gpu_facts(settings: GpuBenchmark, command: str) -> dict[str, Any]:
    """What the figures must be read with."""
    facts = machine_facts()
    if settings.dry_run:
        ours = (
            "the kernels in Triton's interpreter"
            if settings.implementation == "triton"
            else ("tensor operations instead of kernels, which need triton and TRITON_INTERPRET=1")
        )
        facts |= {"device": "cpu", "note": f"{DRY_RUN}; ours: {ours}"}
    else:
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "multiprocessors": properties.multi_processor_count,
            "device memory": f"{properties.total_memory / 2**30:.1f} GiB",
            "L2 cache": f"{properties.L2_cache_size / 2**20:.0f} MiB",
            "CUDA": torch.version.cuda,
        }
    facts |= {name: _version(name) for name in ("triton", "transformers", "nystrom-attention")}
    return facts | {"command": command, "time limit": f"{settings.minutes:g} minutes"}


def write(figures: Figures, facts: Mapping[str, Any], folder: Path) -> None:
    """All files, of what is there so far."""
    write_json(folder / "gpu.json", as_data(figures, facts))
    write_text(folder / "gpu.md", report(figures, facts))
    shown = ("date", "commit", "device", "torch", "triton")
    header = ", ".join(f"{key} {facts[key]}" for key in shown)
    draw(figures, folder, f"{DRY_RUN}, {header}" if figures.settings.dry_run else header)


def as_data(figures: Figures, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, for JSON."""
    goals = [{**asdict(goal), "state": goal.state} for goal in figures.goals()]
    return {
        "machine": dict(facts),
        "settings": asdict(figures.settings),
        "goals": goals,
        "failed": figures.failures(),
        "left out": figures.omissions(),
        "outcomes": [asdict(outcome) for outcome in figures.outcomes],
    }


def _stages(settings: GpuBenchmark) -> list[list[Piece]]:
    """Pieces that may run at once; the next stage begins when all are done."""
    pieces_of = {
        "check": check_pieces,
        "ceilings": ceiling_pieces,
        "kernels": kernel_pieces,
        "attention": attention_pieces,
        "training": training_pieces,
    }
    stages = {name: list(pieces_of[name](settings)) for name in settings.sections}
    first = [*pieces_to_compile(settings), *stages.pop("check", [])]
    return [stage for stage in (first, *stages.values()) if stage]


def _outcomes(stage: Sequence[Piece], settings: GpuBenchmark, budget: Budget) -> Iterator[Outcome]:
    if settings.dry_run:
        return measure_here(stage, settings, budget.refusal)
    count = min(_SEVERAL, max(1, (os.cpu_count() or 1) - 2)) if stage[0].section in (COMPILE, "check") else 1
    return measure_in_processes(stage, settings, count, budget.refusal, budget.until_stopped)


def compile_kernels(settings: GpuBenchmark, rows: int, length: int, conv_kernel_size: int) -> Sequence[Any]:
    """A forward and backward of our kernels, for what it leaves in the cache."""
    changed = replace(settings, sizes=replace(settings.sizes, conv_kernel_size=conv_kernel_size))
    build(OURS, changed, draw_inputs(changed, rows, length)).both()
    return []


def compile_layers(settings: GpuBenchmark, size: TrainingSize, attention: str) -> Sequence[Any]:
    """A step with compiled layers."""
    few = replace(size, overrides=(*size.overrides, _FEW_LAYERS))
    prepare_training(few, attention, compiled=True, settings=settings)
    return []


def pieces_to_compile(settings: GpuBenchmark) -> Iterator[Piece]:
    """What the others will run, the slowest to compile first. The longest sequence is cut as other single rows are."""
    if settings.dry_run:
        return
    sizes, usual = settings.sizes, settings.sizes.conv_kernel_size
    batches: list[tuple[int, int, int]] = []
    if "training" in settings.sections:
        compiles = sizes.compiles and missing_compiler(settings.device) is None
        for size in sizes.training:
            for attention in ATTENTIONS if compiles else ():
                title = f"layers with {attention} for {size.rows} x {size.length} tokens"
                yield Piece(COMPILE, title, 60.0, compile_layers, (size, attention))
            taps = training_config(size, NYSTROM, settings.implementation).attentions[0].conv_kernel_size
            batches.append((size.rows, size.length, taps or usual))
    if {"attention", "kernels"} & set(settings.sections):
        batches += [(sizes.rows(n), n, usual) for n in sizes.lengths]
        batches += [(1, n, usual) for n in sizes.launch_lengths]
        batches += [(rows, n, usual) for rows, n in sizes.batches]
    for rows, length, taps in dict.fromkeys(batches):
        title = f"kernels for {rows} x {length} tokens, {taps} taps"
        yield Piece(COMPILE, title, 25.0, compile_kernels, (rows, length, taps))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as an error would, so that what runs is ended and what was measured is written."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    usual = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


@contextmanager
def _few_programs() -> Iterator[None]:
    """Work is split no further than it must be: the interpreter's time goes by programs."""
    usual = plan.ENOUGH_PROGRAMS
    plan.ENOUGH_PROGRAMS = 1
    try:
        yield
    finally:
        plan.ENOUGH_PROGRAMS = usual


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
