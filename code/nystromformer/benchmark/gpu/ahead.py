"""Compiling ahead: what is timed later has its kernels in Triton's cache, made by many processes at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nystromformer.benchmark.gpu.methods import OURS, Inputs, build
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.gpu.training import NYSTROM, training_config

AHEAD = "compile"
"""The section that comes before all others, unasked."""


@dataclass(frozen=True)
class AheadItem:
    """A forward and backward of our kernels, for what it leaves in the cache."""

    rows: int
    length: int
    conv_kernel_size: int
    section: str = AHEAD
    seconds: float = 10.0

    @property
    def title(self) -> str:
        return f"compile for {self.rows} x {self.length} tokens, {self.conv_kernel_size} taps"

    def measure(self, settings: GpuBenchmark) -> Sequence[Any]:
        sizes = replace(settings.sizes, conv_kernel_size=self.conv_kernel_size)
        changed = replace(settings, sizes=sizes)
        build(OURS, changed, Inputs.drawn(changed, self.rows, self.length)).both()
        return []


def ahead_items(settings: GpuBenchmark) -> Iterator[AheadItem]:
    """What the other sections will run; the longest sequence is cut like the longest of the batches."""
    if settings.dry_run:
        return
    sizes, usual = settings.sizes, settings.sizes.conv_kernel_size
    found: list[AheadItem] = []
    if {"attention", "kernels"} & set(settings.sections):
        found += [AheadItem(max(1, sizes.tokens // n), n, usual) for n in sizes.lengths]
        found += [AheadItem(1, n, usual) for n in sizes.launch_lengths]
    if "training" in settings.sections:
        for size in sizes.training:
            attention = training_config(size, NYSTROM, settings.implementation).attentions[0]
            found.append(AheadItem(size.rows, size.length, attention.conv_kernel_size or usual))
    yield from dict.fromkeys(found)
