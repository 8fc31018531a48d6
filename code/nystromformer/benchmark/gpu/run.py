"""`run_benchmark.py gpu`: sections in order, within the time, written down as it goes."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from nystromformer.benchmark.gpu.attention import OURS, attention_pieces, build, ceiling_pieces, draw_inputs
from nystromformer.benchmark.gpu.check import check_pieces
from nystromformer.benchmark.gpu.report import DRY_RUN, draw, failures, omissions, report
from nystromformer.benchmark.gpu.settings import GpuBenchmark, TrainingSize, choose_settings
from nystromformer.benchmark.gpu.training import ATTENTIONS, NYSTROM, prepare_training, training_config, training_pieces
from nystromformer.benchmark.pieces import Outcome, Piece, measure_here, measure_in_processes
from nystromformer.benchmark.questions.gpu import Gpu
from nystromformer.benchmark.results import on_one_line, with_place
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.training.device import missing_compiler

logger = logging.getLogger(__name__)

COMPILE = "compile"
"""The section that comes before all others, unasked."""
_FEW_LAYERS = "model.num_layers=2"
"""All layers but the last are alike: two compile to what twelve do, in a sixth of the memory."""
_SEVERAL = 12
"""Processes that compile and compare at once; what is timed has the device for itself."""
_MEMORY = 16 << 30
"""Bytes that the largest comparison with float64 takes."""
SHARES = {COMPILE: 0.1, "check": 0.3, "ceilings": 0.03, "attention": 0.3, "training": 0.27}
"""Of the time, by section. What a section leaves over goes to those behind it."""


def measure_on_gpu(flags: Gpu, folder: Path, command: str) -> tuple[str, bool]:
    """Measure, and write `gpu.json` after every piece, `gpu.md` and `gpu-time.png` after every section; returns what to
    print, and whether all went well and agreed with float64.

    Args:
        command: what repeats the measurement.

    Raises:
        UserError: as `choose_settings`.
    """
    settings = choose_settings(flags)
    folder.mkdir(parents=True, exist_ok=True)
    facts = gpu_facts(settings, command)
    pieces_of: dict[str, Callable[[GpuBenchmark], Iterator[Piece]]] = {
        COMPILE: pieces_to_compile,
        "check": check_pieces,
        "ceilings": ceiling_pieces,
        "attention": attention_pieces,
        "training": training_pieces,
    }
    sections = [*([] if settings.dry_run else [COMPILE]), *settings.sections]
    seconds_left = share_out(settings.minutes, sections)
    outcomes: list[Outcome] = []
    for section in sections:
        for outcome in _measure(list(pieces_of[section](settings)), settings, seconds_left):
            outcomes.append(outcome)
            logger.info("%s", outcome)
            data: dict[str, Any] = {"machine": facts, "settings": asdict(settings), "failed": failures(outcomes)}
            data |= {"left out": omissions(outcomes), "outcomes": [asdict(each) for each in outcomes]}
            write_json(folder / "gpu.json", data)
        text = report(outcomes, settings, facts)
        write_text(folder / "gpu.md", text)
        shown = {key: facts[key] for key in ("date", "commit", "device", "torch", "triton")}
        draw(outcomes, folder / "gpu-time.png", f"{DRY_RUN if settings.dry_run else ''} {on_one_line(shown)}")
    return with_place(text, folder), not failures(outcomes)


def share_out(minutes: float, sections: Sequence[str]) -> Callable[[str], float]:
    """Seconds until each section must end, asked from now on."""
    begin = time.monotonic()
    used = list(accumulate(SHARES[name] for name in sections))
    ends = {name: begin + 60 * minutes * part / used[-1] for name, part in zip(sections, used, strict=True)}
    return lambda section: ends[section] - time.monotonic()


def gpu_facts(settings: GpuBenchmark, command: str) -> dict[str, Any]:
    """What the figures must be read with."""
    facts = machine_facts()
    if settings.dry_run:
        ours = "the kernels in Triton's interpreter"
        if settings.implementation != "triton":
            ours = "tensor operations instead of kernels, which need triton and TRITON_INTERPRET=1"
        facts |= {"device": "cpu", "note": f"{DRY_RUN}; ours: {ours}"}
    else:
        properties = torch.cuda.get_device_properties(0)
        facts |= {"device memory": f"{properties.total_memory / 2**30:.1f} GiB", "CUDA": torch.version.cuda}
    for name in ("triton", "transformers", "nystrom-attention"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "not installed"
    return facts | {"command": command, "time limit": f"{settings.minutes:g} minutes"}


def _measure(
    pieces: Sequence[Piece], settings: GpuBenchmark, seconds_left: Callable[[str], float]
) -> Iterator[Outcome]:
    if settings.dry_run:
        return measure_here(pieces, settings, seconds_left)
    at_once = bool(pieces) and pieces[0].section in (COMPILE, "check")
    count = min(_SEVERAL, max(1, (os.cpu_count() or 1) - 2)) if at_once else 1
    if pieces and pieces[0].section == "check" and torch.cuda.is_available():
        _, memory = torch.cuda.mem_get_info()
        count = max(1, min(count, memory // _MEMORY))
    return measure_in_processes(pieces, settings, count, seconds_left)


def compile_kernels(settings: GpuBenchmark, rows: int, length: int, conv_kernel_size: int) -> Sequence[Any]:
    """A forward and backward of our kernels, for what it leaves in the cache."""
    changed = replace(settings, sizes=replace(settings.sizes, conv_kernel_size=conv_kernel_size))
    build(OURS, changed, draw_inputs(changed, length, rows)).both()
    return []


def compile_layers(settings: GpuBenchmark, size: TrainingSize, attention: str) -> Sequence[Any]:
    """A step with compiled layers."""
    few = replace(size, overrides=(*size.overrides, _FEW_LAYERS))
    prepare_training(few, attention, compiled=True, settings=settings)
    return []


def pieces_to_compile(settings: GpuBenchmark) -> Iterator[Piece]:
    """What the others will run, the slowest to compile first. The longest sequence is cut as other single rows are."""
    sizes, usual = settings.sizes, settings.sizes.conv_kernel_size
    batches: list[tuple[int, int, int]] = []
    if "training" in settings.sections:
        compiles = sizes.compiles and missing_compiler(settings.device) is None
        for size in sizes.training:
            for attention in ATTENTIONS if compiles else ():
                title = f"layers with {attention} for {size.rows} x {size.length} tokens"
                yield Piece(COMPILE, title, 30.0, compile_layers, (size, attention))
            taps = training_config(size, NYSTROM, settings.implementation).attentions[0].conv_kernel_size
            batches.append((size.rows, size.length, taps or usual))
    if "attention" in settings.sections:
        batches += [(sizes.rows(n), n, usual) for n in sizes.lengths]
    for rows, length, taps in dict.fromkeys(batches):
        title = f"kernels for {rows} x {length} tokens, {taps} taps"
        yield Piece(COMPILE, title, 25.0, compile_kernels, (rows, length, taps))
