"""Made-up measurements of time and memory."""

from collections.abc import Sequence
from typing import Any

from nystromformer.benchmark.attention import OURS, SOFTMAX
from nystromformer.benchmark.timing import Timing
from nystromformer.report.cost import WRITTEN_OUT, Cost, CostRow, CostSettings, LeftOut

LENGTHS = (512, 1024, 2048)
MACHINE = {"date": "2026-01-02", "commit": "abc1234", "processor": "a processor, 2 cores", "threads": 2}


def made_up_cost(
    ours: Sequence[float] = (4, 8, 16),
    softmax: Sequence[float] = (2, 8, 32),
    written_out: Sequence[float] = (3, 12, 48),
    left_out: Sequence[LeftOut] = (),
    **changes: Any,
) -> Cost:
    """Milliseconds of each method at the lengths; of memory, as many MiB, but of softmax as much as ours.

    Args:
        left_out: no row stands for these, from their lengths on.
        changes: of fields.
    """
    columns = {OURS: (ours, ours), SOFTMAX: (softmax, ours), WRITTEN_OUT: (written_out, written_out)}
    ends = {left.method: left.length for left in left_out}
    rows = [
        CostRow(length, method, Timing(times[i], times[i], times[i]), memory=float(memory[i]), repeats=3 + i)
        for i, length in enumerate(LENGTHS)
        for method, (times, memory) in columns.items()
        if length < ends.get(method, LENGTHS[-1] + 1)
    ]
    fields: dict[str, Any] = {
        "settings": CostSettings(lengths=LENGTHS),
        "weights": "0" * 64,
        "experiment": "nystrom-demo-conv",
        "trained_length": 256,
        "precision": "float32",
        "machine": MACHINE | {"device": "cpu", "torch": "2.0"},
        "seconds": 1.0,
        "rows": rows,
        "left_out": list(left_out),
    }
    return Cost(**fields | changes)
