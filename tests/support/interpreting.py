"""Triton's interpreter, which runs kernels on CPU tensors, one program after another in numpy.

`TRITON_INTERPRET` is read where a kernel is defined, so this module is imported before the kernels are.
"""

import functools
import os
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")

if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"


@functools.cache
def correct_the_interpreter() -> None:
    """numpy has no bfloat16: the interpreter keeps such numbers as integers of their bits. As of Triton 3.7 its matrix
    product multiplies those, its conversion cuts digits off where a GPU rounds, and float32 numbers are multiplied
    exactly whatever precision is asked for, where it is not refused."""
    import dataclasses

    import numpy as np
    import triton.language as tl
    from triton._C.libtriton import ir
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    allowed = (*options.allowed_dot_input_precisions, "bf16x3")
    interpreter.interpreter_builder.options = dataclasses.replace(options, allowed_dot_input_precisions=allowed)
    precision = ir.INPUT_PRECISION
    bits = {precision.BF16x3: 16, precision.TF32x3: 13, precision.TF32: 13}
    """Of float32's mantissa that a part of a number goes without."""
    original = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, wanted: Any, *rest: Any) -> Any:
        a, b = (
            interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
            if x.dtype.scalar == tl.bfloat16
            else x
            for x in (a, b)
        )
        if a.dtype.scalar != tl.float32 or wanted not in bits:
            return original(self, a, b, d, wanted, *rest)
        # A number is the sum of a part of few digits and of what is left, of few digits too; the product of the two
        # lesser parts is left out.
        (a, a_rest), (b, b_rest) = (_parts(x.data, bits[wanted]) for x in (a, b))
        products = [(a, b)] if wanted == precision.TF32 else [(a_rest, b), (a, b_rest), (a, b)]
        for x, y in products:
            x, y = (interpreter.TensorHandle(each, tl.float32) for each in (x, y))
            d = original(self, x, y, d, wanted, *rest)
        return d

    interpreter.InterpreterBuilder.create_dot = create_dot
    convert = interpreter.InterpreterBuilder.cast_impl

    def cast_impl(self: Any, source: Any, wanted: Any) -> Any:
        if source.dtype.scalar == tl.float32 and wanted.scalar == tl.bfloat16:
            rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.uint16).numpy()
            return interpreter.TensorHandle(rounded, tl.bfloat16)
        return convert(self, source, wanted)

    interpreter.InterpreterBuilder.cast_impl = cast_impl


@functools.cache
def quicken_the_interpreter() -> None:
    """As of Triton 3.7, every call of a function within a kernel searches the language's modules for what the start of
    the kernel has replaced already, every operation makes a table of numpy's types, and every sum of integers is
    computed twice, which no GPU does: half of all time."""
    import dataclasses

    import triton.language as tl
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    patch, table, known = interpreter._patch_lang, interpreter._get_np_dtype, {}

    def patch_once(fn: Any) -> Any:
        seen = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        replaced = seen and not any(tl.core.is_builtin(each.load) for each in seen)
        return interpreter._LangPatchScope() if replaced else patch(fn)

    def numpy_type(wanted: Any) -> Any:
        element = wanted.element_ty if isinstance(wanted, tl.block_type) else wanted
        name = "pointer" if isinstance(element, tl.pointer_type) else element.name
        if name not in known:
            known[name] = table(wanted)
        return known[name]

    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, numpy_type


def _parts(x: Any, bits: int) -> tuple[Any, Any]:
    import numpy as np

    def shortened(values: Any) -> Any:
        whole = np.ascontiguousarray(values).view(np.uint32)
        half = np.uint32(1 << (bits - 1))
        return ((whole + half) & ~np.uint32((1 << bits) - 1)).view(np.float32)

    first = shortened(x)
    return first, shortened(x - first)
