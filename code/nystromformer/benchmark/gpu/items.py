"""What is measured piece by piece, and what became of each piece."""

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from nystromformer.benchmark.gpu.clock import finish
from nystromformer.benchmark.gpu.settings import GpuBenchmark

logger = logging.getLogger(__name__)

T = TypeVar("T")

MEASURED, FAILED, LEFT_OUT = "measured", "failed", "left out"


class Item(Protocol):
    """A piece of a section: a process of its own can measure it."""

    @property
    def section(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def seconds(self) -> float:
        """What it takes about: with less time left it is not begun."""

    def measure(self, settings: GpuBenchmark) -> Sequence[Any]:
        """Rows, each a dataclass."""


class LeftOut(Exception):
    """Why something within an item is not measured: it is not there, or would take too long."""


@dataclass(frozen=True)
class NoFigure:
    """Why something within an item has no figure."""

    reason: str
    is_failure: bool
    """Not where it was left out."""
    is_memory: bool = False
    """Whether there was too little memory."""


@dataclass(frozen=True)
class Outcome:
    """What became of an item."""

    section: str
    title: str
    status: str
    """MEASURED, FAILED or LEFT_OUT."""
    reason: str = ""
    """Why it failed or was left out."""
    seconds: float = 0.0
    rows: Sequence[Any] = field(default_factory=tuple)


def left_out(item: Item, reason: str) -> Outcome:
    return Outcome(item.section, item.title, LEFT_OUT, reason)


def failed(item: Item, reason: str, seconds: float = 0.0) -> Outcome:
    return Outcome(item.section, item.title, FAILED, reason, seconds)


def measured(item: Item, settings: GpuBenchmark) -> tuple[Outcome, bool]:
    """The item's outcome whatever happens within it, and whether the device can still be used."""
    begin = time.perf_counter()
    try:
        rows = item.measure(settings)
    except LeftOut as reason:
        outcome = left_out(item, str(reason))
    except Exception as error:
        # Whatever it is, the other items are worth their time; the outcome names it and the command fails at its end.
        logger.info("%s, %s", item.section, item.title, exc_info=True)
        outcome = failed(item, described(error), time.perf_counter() - begin)
    else:
        outcome = Outcome(item.section, item.title, MEASURED, "", time.perf_counter() - begin, rows)
    gc.collect()
    return outcome, device_answers(settings)


def attempt(work: Callable[[], T], settings: GpuBenchmark) -> T | NoFigure:
    """What the work gives, or why it gives nothing. An error that costs the device is raised."""
    try:
        result = work()
        finish(settings.device)
    except LeftOut as reason:
        return NoFigure(str(reason), is_failure=False)
    except Exception as error:
        if not device_answers(settings):
            raise
        logger.info("%s", described(error), exc_info=True)
        # A backend that this device or version of PyTorch does not have is nobody's failure.
        is_memory = isinstance(error, torch.OutOfMemoryError)
        return NoFigure(described(error), "No available kernel" not in str(error), is_memory)
    return result


def described(error: Exception) -> str:
    """One line: a compiler's message says at its end what an error of the device says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [lines[0], lines[-1]] if len(lines) > 1 else lines
    return (
        ": ".join([type(error).__name__, " ... ".join(line[:200] for line in told)]) if told else type(error).__name__
    )


def device_answers(settings: GpuBenchmark) -> bool:
    """Whether the device works: after a kernel's illegal access everything fails until the process ends."""
    if settings.device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return float(torch.ones(1, device="cuda")) == 1.0
    except RuntimeError:
        return False
