"""Compiling the kernels for a GPU that need not be here: Triton brings NVIDIA's assembler.

`python tests/support/compiling.py 90 bfloat16,64,64,33` prints what each kernel takes, for the compute capability 9.0
and the dtype, landmarks, head dims and taps named. A process of its own, because it stands in for a GPU's driver.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from nystromformer.attention.kernels import ops, plan
from nystromformer.attention.kernels.ops import nystrom_attention
from nystromformer.attention.mask import AttentionMask

_ROOM = {80: plan.LARGE_ROOM, 86: plan.SMALL_ROOM, 89: plan.SMALL_ROOM, 90: plan.HOPPER_ROOM, 120: plan.SMALL_ROOM}
_CUOBJDUMP = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"


class Driver:
    """What Triton asks of a GPU's driver in order to compile."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def compile_instead_of_launching(kernels: list[tuple[str, Any]]) -> None:
    def launcher(kernel: Any, grid: Any) -> Any:
        def warm_up(*args: Any, **options: Any) -> None:
            kernels.append((kernel.fn.__name__, kernel.warmup(*args, grid=grid, **options)))

        return warm_up

    JITFunction.__getitem__ = launcher


def resources(compiled: Any) -> dict[str, int]:
    """Bytes of shared memory, registers of a thread, bytes of its stack, which is where registers spill to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = subprocess.run([_CUOBJDUMP, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert usage is not None, told
    return {"shared": compiled.metadata.shared, "registers": int(usage[1]), "stack": int(usage[2])}


def main(capability: int, case: str) -> None:
    triton.runtime.driver.set_active(Driver(capability))
    kernels: list[tuple[str, Any]] = []
    compile_instead_of_launching(kernels)
    ops.room = lambda device: _ROOM[capability]  # type: ignore[assignment]
    dtype, *sizes = case.split(",")
    M, D, K = map(int, sizes)
    for masked in (False, True):
        kernels.clear()
        q, k, v = (torch.zeros(4, 12, 2 * M, D, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3))
        weight = torch.zeros(12, 1, K, 1, requires_grad=True)
        mask = AttentionMask(torch.ones(4, 2 * M, dtype=torch.bool))
        rows = (mask.keep_BN, *mask.ranges(M))
        out = nystrom_attention(q, k, v, *(rows if masked else (None,) * 6), weight, M, 6)[0]
        out.backward(torch.zeros_like(out))
        for name, compiled in kernels:
            words = " ".join(f"{key}={value}" for key, value in resources(compiled).items())
            sys.stdout.write(f"sm_{capability} {case} {'masked' if masked else 'all'} {name} {words}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
