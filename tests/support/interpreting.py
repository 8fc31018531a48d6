"""Triton's interpreter, which runs kernels on CPU tensors, one program after another in numpy.

`TRITON_INTERPRET` is read where a kernel is defined, so this module is imported before the kernels are.
"""

import os
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")

if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"


def correct_the_interpreter() -> None:
    """numpy has no bfloat16: the interpreter keeps such numbers as integers of their bits. As of Triton 3.7 its matrix
    product multiplies those, and its conversion cuts digits off where a GPU rounds."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (
            interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
            if x.dtype.scalar == tl.bfloat16
            else x
            for x in (a, b)
        )
        return original(self, a, b, *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot
    convert = interpreter.InterpreterBuilder.cast_impl

    def cast_impl(self: Any, source: Any, wanted: Any) -> Any:
        if source.dtype.scalar == tl.float32 and wanted.scalar == tl.bfloat16:
            rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.uint16).numpy()
            return interpreter.TensorHandle(rounded, tl.bfloat16)
        return convert(self, source, wanted)

    interpreter.InterpreterBuilder.cast_impl = cast_impl
