"""Compiling first: what is timed later is in the compilers' caches, made by many processes at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nystromformer.benchmark.gpu.methods import OURS, Inputs, build
from nystromformer.benchmark.gpu.settings import GpuBenchmark, TrainingSize
from nystromformer.benchmark.gpu.training import NYSTROM, SOFTMAX, prepare_training, training_config
from nystromformer.benchmark.pieces import Piece
from nystromformer.training.compile import missing_compiler

AHEAD = "compile"
"""The section that comes before all others, unasked."""
_FEW_LAYERS = "model.num_layers=2"
"""All layers but the last are alike: two compile to what twelve do, in a sixth of the memory."""


def compile_kernels(settings: GpuBenchmark, rows: int, length: int, conv_kernel_size: int) -> Sequence[Any]:
    """A forward and backward of our kernels, for what it leaves in the cache."""
    changed = replace(settings, sizes=replace(settings.sizes, conv_kernel_size=conv_kernel_size))
    build(OURS, changed, Inputs.drawn(changed, rows, length)).both()
    return []


def compile_layers(settings: GpuBenchmark, size: TrainingSize, attention: str) -> Sequence[Any]:
    """A step with compiled layers."""
    few = replace(size, overrides=(*size.overrides, _FEW_LAYERS))
    prepare_training(few, attention, compiled=True, settings=settings)
    return []


def _kernels(rows: int, length: int, conv_kernel_size: int) -> Piece:
    title = f"kernels for {rows} x {length} tokens, {conv_kernel_size} taps"
    return Piece(AHEAD, title, 25.0, compile_kernels, (rows, length, conv_kernel_size))


def _layers(size: TrainingSize, attention: str) -> Piece:
    title = f"layers with {attention} for {size.rows} x {size.length} tokens"
    return Piece(AHEAD, title, 60.0, compile_layers, (size, attention))


def pieces_to_compile(settings: GpuBenchmark) -> Iterator[Piece]:
    """What the others will run, the slowest to compile first. The longest sequence is cut as other single rows are."""
    if settings.dry_run:
        return
    sizes, usual = settings.sizes, settings.sizes.conv_kernel_size
    kernels: list[Piece] = []
    if "training" in settings.sections:
        if sizes.compiles and missing_compiler(settings.device) is None:
            for size in sizes.training:
                yield from (_layers(size, attention) for attention in (NYSTROM, SOFTMAX))
        for size in sizes.training:
            attention = training_config(size, NYSTROM, settings.implementation).attentions[0]
            kernels.append(_kernels(size.rows, size.length, attention.conv_kernel_size or usual))
    if {"attention", "kernels"} & set(settings.sections):
        kernels += [_kernels(sizes.rows(n), n, usual) for n in sizes.lengths]
        kernels += [_kernels(1, n, usual) for n in sizes.launch_lengths]
        kernels += [_kernels(rows, n, usual) for rows, n in sizes.batches]
    yield from dict.fromkeys(kernels)
