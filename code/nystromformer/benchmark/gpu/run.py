"""The whole measurement: sections in order, within the time, written down as it goes."""

import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nystromformer.attention.kernels import plan
from nystromformer.benchmark.gpu.attention import attention_pieces
from nystromformer.benchmark.gpu.budget import Budget
from nystromformer.benchmark.gpu.ceilings import ceiling_pieces
from nystromformer.benchmark.gpu.check import check_pieces
from nystromformer.benchmark.gpu.compiling import AHEAD, pieces_to_compile
from nystromformer.benchmark.gpu.figures import Figures
from nystromformer.benchmark.gpu.kernels import kernel_pieces
from nystromformer.benchmark.gpu.plots import draw
from nystromformer.benchmark.gpu.report import report
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.gpu.summary import DRY_RUN, failures, omissions
from nystromformer.benchmark.gpu.training import training_pieces
from nystromformer.benchmark.pieces import Outcome, Piece, measure_here, measure_in_processes
from nystromformer.files import NewFile, write_json
from nystromformer.machine import machine_facts

logger = logging.getLogger(__name__)

_SEVERAL = 12
"""Processes that compile and compare at once; what is timed has the device for itself."""


def run_gpu_benchmark(settings: GpuBenchmark, folder: Path, command: str) -> Figures:
    """Measure, and write `gpu.json` after every piece and `gpu.md` and the pictures after every section and at the end,
    which SIGTERM and Ctrl-C bring early.
    """
    facts = gpu_facts(settings, command)
    stages = [stage for stage in _stages(settings) if stage]
    budget = Budget(settings.minutes, [name for name in (AHEAD, *settings.sections) if _of(stages, name)])
    outcomes: list[Outcome] = []
    figures = Figures(settings, outcomes, None if settings.dry_run else _device_memory())
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
    return figures


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
    with NewFile(folder / "gpu.md") as file:
        file.write(report(figures, facts).encode())
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
        "failed": failures(figures),
        "left out": omissions(figures),
        "outcomes": [asdict(outcome) for outcome in figures.outcomes],
    }


def _stages(settings: GpuBenchmark) -> Iterator[Sequence[Piece]]:
    """Pieces that may run at once; the next stage begins when all are done."""
    chosen = settings.sections
    yield [*pieces_to_compile(settings), *(check_pieces(settings) if "check" in chosen else ())]
    if "ceilings" in chosen:
        yield list(ceiling_pieces())
    if "kernels" in chosen:
        yield list(kernel_pieces(settings))
    if "attention" in chosen:
        yield list(attention_pieces(settings))
    if "training" in chosen:
        yield list(training_pieces(settings))


def _outcomes(stage: Sequence[Piece], settings: GpuBenchmark, budget: Budget) -> Iterator[Outcome]:
    if settings.dry_run:
        return measure_here(stage, settings, budget.refusal)
    count = min(_SEVERAL, max(1, (os.cpu_count() or 1) - 2)) if stage[0].section in (AHEAD, "check") else 1
    return measure_in_processes(stage, settings, count, budget.refusal, budget.until_stopped)


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


def _device_memory() -> float:
    return torch.cuda.get_device_properties(0).total_memory / 2**20


def _of(stages: Sequence[Sequence[Piece]], section: str) -> bool:
    return any(piece.section == section for stage in stages for piece in stage)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
