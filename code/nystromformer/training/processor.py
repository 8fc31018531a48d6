"""What the CPU can, and which library computes its float32 products."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_MKLDNN: Any = torch.backends.mkldnn  # half of it is not typed
_FLOAT32_ERROR = 1e-5
"""Of a product's largest number, at most: float32 is at 1e-6, bfloat16 at 1e-3."""


@cache
def _facts() -> str:
    """As Linux tells them; nothing elsewhere."""
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""


def has_bf16() -> bool:
    """Without such instructions bfloat16 on a CPU is emulated, and slower than float32."""
    return "avx512_bf16" in _facts() or "amx_bf16" in _facts()


@contextmanager
def fast_products() -> Iterator[bool]:
    """Have oneDNN compute float32 products where that is twice as fast and as exact; gives whether it does.

    PyTorch has MKL compute them, which keeps to AVX2 on processors that are not Intel's. oneDNN takes AVX-512 wherever
    it is, but PyTorch asks it only where it may be less exact: it may, and has no less exact way without AMX. So this
    is for AMD's processors with AVX-512 and without AMX, and a trial must confirm it. Each new shape of a product costs
    it about a millisecond: it is of use to wide models, and to shapes that come again. What somebody else has chosen
    for the process stays.
    """
    setting = _MKLDNN.matmul
    if not _is_wide_amd() or setting.fp32_precision != "none":
        yield False
        return
    try:
        setting.fp32_precision = "bf16"
        is_exact = products_are_float32()
        if not is_exact:
            setting.fp32_precision = "none"
        yield is_exact
    finally:
        setting.fp32_precision = "none"


def _is_wide_amd() -> bool:
    # As PyTorch sees it: ATEN_CPU_CAPABILITY may ask for less than there is.
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and _MKLDNN.is_available()
    return bool(wide) and "AuthenticAMD" in _facts() and "amx_" not in _facts()


@cache
def products_are_float32() -> bool:
    """Whether products of numbers that no shorter format has are as exact as float32 makes them."""
    numbers = torch.arange(3 * 96 * 96, dtype=torch.float64).mul(0.7368062997280773).sin().float().view(3, 96, 96)
    found, exact = _products(numbers), _products(numbers.double())
    errors = [float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, exact, strict=True)]
    return max(errors) < _FLOAT32_ERROR


def _products(a: Tensor) -> list[Tensor]:
    """Of each kind that a model asks for."""
    return [a[0] @ a[1], torch.addmm(a[2][0], a[0], a[1].mT), torch.baddbmm(a, a, a, beta=7, alpha=-1)]
