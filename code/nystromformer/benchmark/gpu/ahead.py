"""Compiling ahead: what is timed later is in the compilers' caches, made by many processes at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nystromformer.benchmark.gpu.methods import OURS, Inputs, build
from nystromformer.benchmark.gpu.settings import GpuBenchmark, TrainingSize
from nystromformer.benchmark.gpu.training import NYSTROM, SOFTMAX, prepared, training_config
from nystromformer.training.compile import missing_compiler

AHEAD = "compile"
"""The section that comes before all others, unasked."""
_FEW_LAYERS = "model.num_layers=2"
"""All layers but the last are alike: two compile to what twelve do, in a sixth of the memory."""


@dataclass(frozen=True)
class KernelsAhead:
    """A forward and backward of our kernels, for what it leaves in the cache."""

    rows: int
    length: int
    conv_kernel_size: int
    section: str = AHEAD
    seconds: float = 25.0

    @property
    def title(self) -> str:
        return f"kernels for {self.rows} x {self.length} tokens, {self.conv_kernel_size} taps"

    def measure(self, settings: GpuBenchmark) -> Sequence[Any]:
        sizes = replace(settings.sizes, conv_kernel_size=self.conv_kernel_size)
        changed = replace(settings, sizes=sizes)
        build(OURS, changed, Inputs.drawn(changed, self.rows, self.length)).both()
        return []


@dataclass(frozen=True)
class LayersAhead:
    """A step with compiled layers."""

    size: TrainingSize
    attention: str
    section: str = AHEAD
    seconds: float = 60.0

    @property
    def title(self) -> str:
        return f"layers with {self.attention} for {self.size.rows} x {self.size.length} tokens"

    def measure(self, settings: GpuBenchmark) -> Sequence[Any]:
        size = replace(self.size, overrides=(*self.size.overrides, _FEW_LAYERS))
        prepared(size, self.attention, compiled=True, settings=settings)
        return []


def ahead_items(settings: GpuBenchmark) -> Iterator[KernelsAhead | LayersAhead]:
    """What the others will run, the slowest to compile first. The longest sequence is cut as other single rows are."""
    if settings.dry_run:
        return
    sizes, usual = settings.sizes, settings.sizes.conv_kernel_size
    kernels: list[KernelsAhead] = []
    if "training" in settings.sections:
        if sizes.compiles and missing_compiler(settings.device) is None:
            for size in sizes.training:
                yield from (LayersAhead(size, attention) for attention in (NYSTROM, SOFTMAX))
        for size in sizes.training:
            attention = training_config(size, NYSTROM, settings.implementation).attentions[0]
            kernels.append(KernelsAhead(size.rows, size.length, attention.conv_kernel_size or usual))
    if {"attention", "kernels"} & set(settings.sections):
        kernels += [KernelsAhead(sizes.rows(n), n, usual) for n in sizes.lengths]
        kernels += [KernelsAhead(1, n, usual) for n in sizes.launch_lengths]
        kernels += [KernelsAhead(rows, n, usual) for rows, n in sizes.batches]
    yield from dict.fromkeys(kernels)
