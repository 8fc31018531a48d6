"""The device and the precision of a run, and what its machine is good at."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.errors import UserError, first_line

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


_NAMED = {"bf16": torch.bfloat16, "fp16": torch.float16}
_WIDE = 256


@dataclass(frozen=True)
class Device:
    """Where and in which precision a run computes."""

    device: torch.device
    autocast_dtype: torch.dtype | None
    """None: float32 throughout."""

    @property
    def precision(self) -> str:
        """bf16, fp16 or float32: what `mixed_precision` amounts to on this device."""
        names: dict[torch.dtype | None, str] = {None: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}
        return names[self.autocast_dtype]

    @property
    def needs_loss_scale(self) -> bool:
        """float16 gradients underflow without a scale; bfloat16 and float32 need none."""
        return self.autocast_dtype == torch.float16

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def products(self, width: int) -> AbstractContextManager[bool]:
        """While a model of this width computes, rows of few lengths: `fast_products` where they pay, nothing elsewhere.

        They pay in float32 on a CPU, from a width on where a product takes longer than oneDNN's preparation of it.
        """
        pays = self.device.type == "cpu" and self.autocast_dtype is None and width >= _WIDE
        return fast_products() if pays else nullcontext(False)

    def __str__(self) -> str:
        precision = (
            "float32" if self.autocast_dtype is None else f"{str(self.autocast_dtype).removeprefix('torch.')} autocast"
        )
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return f"{name}, {precision}"


def choose_device(name: str, mixed_precision: bool | str, local_rank: int | None = None) -> Device:
    """The device and precision of a run.

    Args:
        name: "auto" (a GPU where there is one), or a name torch knows ("cpu", "cuda", "cuda:1").
        mixed_precision: false: float32. true: the best the device has: bfloat16 on a GPU or CPU with instructions for
            it, float16 on an older GPU, float32 on other CPUs. "bf16", "fp16": that one.
        local_rank: of several processes on this machine, this one's number: it gets the GPU of that number.

    Raises:
        UserError: a device that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if local_rank is not None and name.startswith("cuda"):
        if name != "cuda":
            raise UserError(f"--device {name}: of several processes each takes its own GPU: use --device cuda or auto")
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name}: expected auto, cpu, cuda or cuda:N ({first_line(error)})") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            advice = (
                "use --device cpu or auto" if local_rank is None else "start as many processes, or use --device cpu"
            )
            raise UserError(
                f"--device {name}: this machine has {count} CUDA devices; {advice} (with launch.py: --gpus none)"
            )
    elif device.type != "cpu":
        raise UserError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if isinstance(mixed_precision, str):
        return Device(device, _NAMED[mixed_precision])
    return Device(device, _best_precision(device) if mixed_precision else None)


def _best_precision(device: torch.device) -> torch.dtype | None:
    if device.type == "cuda":
        with torch.cuda.device(device):  # else the first GPU is asked
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if has_bf16() else None


def peak_memory_in_mib(device: torch.device) -> float:
    """The most memory in use so far: tensors in the GPU's allocator, or this process's resident set.

    Waits for no device: the allocator counts on the host.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource  # not on every platform

    # In KiB, and on a Mac in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


_COMPILERS = ("g++", "c++", "clang++")


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine; None where it lacks nothing."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name):
        return f"found no C++ compiler ({', '.join(_COMPILERS)}, or the environment variable CXX)"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "found no triton package (pip install triton)"
    return None
