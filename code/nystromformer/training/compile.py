"""Compiling a model's layers, where this machine has what that takes, and trying them before a run relies on them."""

import importlib.util
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nystromformer.training.device import Device

logger = logging.getLogger(__name__)

_COMPILERS = ("g++", "c++", "clang++")
_PAYS_ON = ("cuda",)
"""Kinds of device on which compiled layers are the faster ones."""
_BACKEND = "inductor"
_KINDS = 64
"""Compilations that one trial may take: with and without mask, dropout, positions; of each kind of attention."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Relative errors of gradients above these are mistakes. Rounding in another order or at fewer places gave 3e-6, 0.03
and 0.006 at most (4 and 12 layers, inductor on a CPU)."""
_SMALL = 0.01
"""Of the largest gradient's norm: smaller ones, such as those that cancel to zero, are held to the error of this."""


def compile_units(units: Iterable[nn.Module], device: torch.device) -> str | None:
    """Compile modules in place, their parameters' names unchanged; layers alike share one compilation.

    Returns:
        What the machine lacks for that, where the modules run as they are; None where it lacks nothing.
    """
    missing = missing_compiler(device)
    if missing is None:
        for unit in units:
            unit.compile()
    return missing


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine; None where it lacks nothing."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name):
        return f"found no C++ compiler ({', '.join(_COMPILERS)}, or the environment variable CXX)"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "found no triton package (pip install triton)"
    return None


def compiling_pays(device: torch.device) -> bool:
    """Whether compiled layers are faster there than the others."""
    return device.type in _PAYS_ON


def try_compiled(
    units: Iterable[nn.Module],
    device: Device,
    results: Callable[[], Sequence[Tensor]],
    uses: Sequence[Callable[[], object]],
) -> str | None:
    """Compile modules in place for a run that has a few kinds of input, and try them forward and backward.

    All that the run needs is compiled here: under `torch.compiler.set_stance("eager_on_recompile")` other input later,
    a validation's say, goes through the modules as they are, and nothing can fail in a compiler any more. Random
    numbers, gradients and the peak of the memory in use are as before.

    Args:
        results: a loss and gradients, the same at each call, computed by the modules.
        uses: what the run will do with the modules, once each.

    Returns:
        Why they cannot be used, None where they agree with the modules as they are. Where there is a reason, the run
        belongs under `torch.compiler.set_stance("force_eager")`.
    """
    if (missing := missing_compiler(device.device)) is not None:
        return missing
    with _undisturbed(device.device):
        return _failure(units, device, results, uses)


def _failure(
    units: Iterable[nn.Module],
    device: Device,
    results: Callable[[], Sequence[Tensor]],
    uses: Sequence[Callable[[], object]],
) -> str | None:
    # What fails here fails without a compiler, too.
    with torch.compiler.set_stance("force_eager"):
        expected = [x.detach() for x in results()]
    try:
        # Of fixed sizes: what is compiled for any size is slower, and no batch of the run has another one.
        with torch._dynamo.config.patch(recompile_limit=_KINDS):
            for unit in units:
                unit.compile(backend=_BACKEND, dynamic=False)
            compiled = [x.detach() for x in results()]
            for use in uses:
                use()
        # What is compiled for one call alone would never serve the run, and nobody would notice.
        with torch.compiler.set_stance("fail_on_recompile"):
            for use in uses:
                use()
        wrong = _worst_error(compiled, expected)
    except Exception as error:  # of whatever kind: a compiler's, a driver's
        logger.debug("compiled layers", exc_info=True)
        reason = " ".join(str(error).split("\n")[:2]).strip()  # the first line may only say that there is another
        return f"compiled layers fail on {device}: {type(error).__name__}: {reason[:300]}"
    if not wrong < _TOLERANCE[device.autocast_dtype or torch.float32]:  # NaN is not below either
        return f"compiled layers compute something else on {device} (relative error {wrong:.2g})"
    return None


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        yield
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _worst_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative error of a tensor."""
    norms = torch.stack([x.double().norm() for x in expected])
    errors = torch.stack([(a.double() - b.double()).norm() for a, b in zip(actual, expected, strict=True)])
    least = _SMALL * norms[1:].amax() if len(norms) > 1 else 0.0
    return float((errors / norms.clamp(min=torch.as_tensor(least).clamp(min=1e-30))).amax())
