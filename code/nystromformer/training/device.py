"""The device and the precision of a run."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from nystromformer.errors import UserError, first_line

_NAMES: dict[torch.dtype | None, str] = {None: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Device:
    """Where and in which precision a run computes."""

    device: torch.device
    autocast_dtype: torch.dtype | None
    """None: float32 throughout."""

    @property
    def precision(self) -> str:
        """bf16, fp16 or float32: what `mixed_precision` amounts to on this device."""
        return _NAMES[self.autocast_dtype]

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        dtype = str(self.autocast_dtype).removeprefix("torch.")
        return f"{name}, {'float32' if self.autocast_dtype is None else f'{dtype} autocast'}"


def choose_device(name: str, mixed_precision: bool | str, local_rank: int | None = None) -> Device:
    """The device and precision of a run.

    Args:
        name: "auto" (a GPU where there is one), or a name torch knows ("cpu", "cuda", "cuda:1").
        mixed_precision: false: float32. true: the best the device has: bfloat16 on a GPU or CPU with instructions for
            it, float16 on an older GPU, float32 on other CPUs. "bf16", "fp16": that one.
        local_rank: of several processes on this machine, this one's number: it gets the GPU of that number.
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
    if mixed_precision is True:
        return Device(device, _best_precision(device))
    return Device(device, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(str(mixed_precision)))


def _best_precision(device: torch.device) -> torch.dtype | None:
    if device.type == "cuda":
        with torch.cuda.device(device):  # else the first GPU is asked
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    # Without such instructions bfloat16 on a CPU is emulated, and slower than float32.
    info = Path("/proc/cpuinfo")
    facts = info.read_text() if info.exists() else ""
    return torch.bfloat16 if "avx512_bf16" in facts or "amx_bf16" in facts else None


def peak_memory_in_mib(device: torch.device) -> float:
    """The most memory in use so far: tensors in the GPU's allocator, or this process's resident set.

    Waits for no device: the allocator counts on the host.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource  # not on every platform

    # In KiB, and on a Mac in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
