"""Fused kernels for GPUs, in Triton: what they can compute. `ops.py`, which needs triton, is imported where they do."""

import importlib.util
import os

from torch import Tensor

from nystromformer.attention.kernels.plan import (
    DTYPES,
    HEAD_DIMS,
    LANDMARKS,
    LARGEST_AREA,
    LARGEST_FILTER,
    LEAST_ROOM,
    room,
)

IS_INSTALLED = importlib.util.find_spec("triton") is not None


def why_not(q: Tensor, num_landmarks: int, kernel_size: int | None) -> str | None:
    """Why the kernels cannot compute this; None where they can.

    Args:
        q: (B, H, N, D).
        num_landmarks: M.
        kernel_size: taps of the convolution skip, or None.
    """
    if not IS_INSTALLED:
        return "triton is not installed (pip install triton)"
    if q.device.type != "cuda" and not interprets():
        return f"the tensors are on {q.device}: kernels run on CUDA devices (elsewhere only with TRITON_INTERPRET=1)"
    if num_landmarks not in LANDMARKS:
        return f"num_landmarks is {num_landmarks}: supported are {', '.join(map(str, LANDMARKS))}"
    if q.shape[3] not in HEAD_DIMS:
        return f"head_dim is {q.shape[3]}: supported are {', '.join(map(str, HEAD_DIMS))}"
    if q.dtype not in DTYPES:
        return f"the dtype is {q.dtype}: supported are bfloat16, float16 and float32"
    if num_landmarks * q.shape[3] > (largest := LARGEST_AREA[q.element_size()]):
        return f"num_landmarks x head_dim is {num_landmarks * q.shape[3]}: supported with {q.dtype} are up to {largest}"
    if q.shape[2] >= (longest := 2**31 // (num_landmarks + 1)):
        return f"there are {q.shape[2]:,} tokens: supported are fewer than {longest:,} with {num_landmarks} landmarks"
    if kernel_size is not None and kernel_size > LARGEST_FILTER:
        return f"conv_kernel_size is {kernel_size}: supported are up to {LARGEST_FILTER}"
    if (given := room(q.device)) < (needed := LEAST_ROOM[q.element_size()]):
        least = ", ".join(f"{size // 1024} for numbers of {8 * width} bits" for width, size in LEAST_ROOM.items())
        return (
            f"the GPU gives a program {given // 1024} KiB of shared memory, of which the kernels need "
            f"{needed // 1024} ({least})"
        )
    return None


def interprets() -> bool:
    """Whether Triton runs kernels in its interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"
