"""The device and the precision of a run."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from nystromformer.errors import UserError
from nystromformer.training.processor import fast_products, has_bf16

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
        raise UserError(
            f"--device {name}: expected auto, cpu, cuda or cuda:N ({str(error).splitlines()[0]})"
        ) from error
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
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if has_bf16() else None


def peak_memory_in_mib(device: torch.device) -> float:
    """The most memory in use so far: tensors in the GPU's allocator, or this process's resident set.

    Waits for no device: the allocator counts on the host.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource  # not on every platform

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
