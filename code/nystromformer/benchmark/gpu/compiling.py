"""Compiling first: what is timed later is in the compilers' caches, made by many processes at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nystromformer.benchmark.gpu.attention import OURS, build, draw_inputs
from nystromformer.benchmark.gpu.settings import GpuBenchmark, TrainingSize
from nystromformer.benchmark.gpu.training import ATTENTIONS, NYSTROM, prepare_training, training_config
from nystromformer.benchmark.pieces import Piece
from nystromformer.training.compile import missing_compiler

COMPILE = "compile"
"""The section that comes before all others, unasked."""
_FEW_LAYERS = "model.num_layers=2"
"""All layers but the last are alike: two compile to what twelve do, in a sixth of the memory."""


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
