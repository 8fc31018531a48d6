"""How figures are written in tables and lines."""

from nystromformer.benchmark.gpu.ceilings import COPY, CeilingRow
from nystromformer.benchmark.timing import Timing


def ceiling(row: CeilingRow) -> str:
    """Bytes or operations a second."""
    if row.name == COPY:
        return f"{row.figure / 1e9:,.0f} GB/s, read and written"
    return f"{row.figure / 1e12:,.1f} TFLOP/s"


def bare(kernel: str) -> str:
    """A kernel's name without what all of them end in."""
    return kernel.removesuffix("_kernel")


def shown(timing: Timing | None) -> str:
    """Median and quartiles."""
    return "-" if timing is None else f"{timing.median:.3f} ({timing.low:.3f}-{timing.high:.3f})"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
