"""Tables and a picture of what attention.py measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.benchmark.attention import (
    BASE,
    CONTROL,
    FUSED_LIMIT,
    MASKED,
    MASKED_SOFTMAX,
    OURS,
    SOFTMAX,
    WRITTEN_OUT_LIMIT,
    AttentionBenchmark,
    AttentionRow,
    run_attention,
)
from nystromformer.benchmark.results import told, write_figures
from nystromformer.benchmark.timing import Timing
from nystromformer.files import write_figure, write_text
from nystromformer.machine import machine_facts
from nystromformer.tables import Column, aligned, markdown

_MASKED = (MASKED, MASKED_SOFTMAX)
_LEFT_OUT = (
    f"Left out, as they take seconds a step: softmax (SDPA) past {FUSED_LIMIT} tokens, written out past "
    f"{WRITTEN_OUT_LIMIT}."
)


@dataclass(frozen=True)
class _Compared:
    """A figure of a row, and what it is of the same figure of softmax (SDPA) and of the authors' formulation."""

    text: str
    of_softmax: float | None
    """None past the length at which softmax is left out."""
    of_base: float


def _compared(rows: Sequence[AttentionRow]) -> list[tuple[AttentionRow, tuple[_Compared, _Compared, _Compared]]]:
    """Forward, forward and backward, and memory of each row; a row with a mask beside softmax with the same mask."""
    measured = {(row.method, row.length): row for row in rows}

    def figure(row: AttentionRow, value: Callable[[AttentionRow], float], text: str) -> _Compared:
        softmax = measured.get((MASKED_SOFTMAX if row.method in _MASKED else SOFTMAX, row.length))
        of_softmax = None if softmax is None else value(row) / value(softmax)
        return _Compared(text, of_softmax, value(row) / value(measured[BASE, row.length]))

    return [
        (
            row,
            (
                figure(row, lambda each: each.forward.median, str(row.forward)),
                figure(row, lambda each: each.both.median, str(row.both)),
                figure(row, lambda each: each.memory, f"{row.memory:.1f}"),
            ),
        )
        for row in rows
    ]


def table(rows: Sequence[AttentionRow]) -> str:
    """Times, memory, and their ratios to softmax and to the authors' formulation at the same length."""
    columns = [Column("tokens", 7), Column("method", 28, is_text=True)]
    for heading, width in (("forward ms", 22), ("fwd+bwd ms", 25), ("MiB", 8)):
        columns += [Column(heading, width, gap=1), Column("/soft", 6, gap=1), Column("/auth", 6, gap=1)]
    lines = aligned(columns, ([str(row.length), row.method, *_cells(figures)] for row, figures in _compared(rows)))
    return "\n".join([*lines, _LEFT_OUT, "", *_scaling(rows)])


def _cells(figures: Sequence[_Compared]) -> list[str]:
    return [cell for each in figures for cell in (each.text, _ratio(each.of_softmax), _ratio(each.of_base))]


def to_paste(settings: AttentionBenchmark, rows: Sequence[AttentionRow], facts: Mapping[str, Any], command: str) -> str:
    """The same to be pasted: what was measured and on what, a row for each method, and the command.

    Args:
        facts: of the machine.
    """
    convolution = settings.conv_kernel_size or "none"
    lines = [
        f"float32, batch {settings.batch}, {settings.num_heads} heads of {settings.head_dim}, {settings.num_landmarks} "
        f"landmarks, convolution {convolution}; " + ", ".join(f"{key} {value}" for key, value in facts.items()) + ".",
        "Medians (quartiles); all methods of a length in turn in one process. A padding mask hides the last tenth of "
        "the tokens; what has one is compared with softmax that has it too.",
    ]
    header = ["tokens", "method", "forward, ms", "/ softmax (SDPA)", "/ authors'", "forward + backward, ms"]
    header += ["/ softmax", "/ authors'", "peak memory, MiB", "/ softmax", "/ authors'"]
    cells = [
        [str(row.length), row.method, *_cells(figures)] for row, figures in _compared(rows) if row.method != CONTROL
    ]
    return "\n".join([*lines, "", markdown(header, cells), "", _LEFT_OUT, "", f"`{command}`"])


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _scaling(rows: Sequence[AttentionRow]) -> list[str]:
    """How time grows from the first to the last of the long lengths, relative to the length."""
    long = sorted({row.length for row in rows if row.length >= 4096})
    if len(long) < 2:
        return []
    first, last = long[0], long[-1]
    measured = {(row.method, row.length): row for row in rows}
    lines = [f"time per token at {last} tokens over that at {first} (1 is proportional):"]
    for method in (OURS, MASKED, CONTROL):
        a, b = measured[method, first], measured[method, last]
        forward, both = (y.median / x.median * first / last for x, y in ((a.forward, b.forward), (a.both, b.both)))
        lines.append(f"  {method:24} forward {forward:.2f}, forward and backward {both:.2f}")
    return lines


def measure_attention(settings: AttentionBenchmark, folder: Path, command: str) -> str:
    """Measure, write what `write_results` writes, and return what to print.

    Args:
        command: what repeats the measurement.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    rows = run_attention(settings)
    write_results(settings, rows, folder, command)
    return told(table(rows), folder)


def write_results(settings: AttentionBenchmark, rows: Sequence[AttentionRow], folder: Path, command: str) -> None:
    """`attention.json`, `attention.txt`, `attention.md` and `attention.png`.

    Args:
        command: what repeats the measurement.
    """
    facts = machine_facts()
    header = write_figures(folder, "attention", facts, asdict(settings), rows, table(rows))
    write_text(folder / "attention.md", f"{to_paste(settings, rows, facts, command)}\n")
    _draw(rows, folder / "attention.png", header)


def _draw(rows: Sequence[AttentionRow], path: Path, header: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (("forward, ms", "forward"), ("forward and backward, ms", "both"), ("peak memory, MiB", "memory"))
    for axis, (title, field) in zip(figure.subplots(1, 3), panels, strict=True):
        for method in dict.fromkeys(row.method for row in rows):
            mine = [row for row in rows if row.method == method]
            values = [getattr(row, field) for row in mine]
            heights = [value.median if isinstance(value, Timing) else value for value in values]
            style = {"linewidth": 2.2} if method == OURS else {"linewidth": 1, "alpha": 0.8}
            axis.loglog([row.length for row in mine], heights, "o-", markersize=3, label=method, base=2, **style)
        axis.set_yscale("log", base=10)
        lengths = sorted({row.length for row in rows})
        axis.set_xticks(lengths, map(str, lengths))
        axis.set(xlabel="tokens", title=title)
        axis.grid(alpha=0.25)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(header, fontsize=8)
    write_figure(path, figure, dpi=110)
