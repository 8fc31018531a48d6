"""What cost.py measured, as a table, sentences and a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path

from nystromformer.benchmark.attention import OURS, SOFTMAX
from nystromformer.benchmark.results import new_figure
from nystromformer.files.writing import write_figure
from nystromformer.report.cost import METHODS, WRITTEN_OUT, Cost, CostRow

_AS_MUCH = 0.02
"""Peaks of memory that differ by less than this part are called equal."""


def cost_table(cost: Cost) -> list[list[str]]:
    """A row for each length, after a header."""
    measured = {(row.length, row.method): row for row in cost.rows}

    def cell(row: CostRow | None) -> str:
        return "left out" if row is None else f"{_ms(row)}, {_mib(row)}"

    rows = [[f"{length:,}", *(cell(measured.get((length, m))) for m in METHODS)] for length in cost.settings.lengths]
    return [["tokens", *METHODS], *rows]


def cost_findings(cost: Cost) -> list[str]:
    """Where the trained encoder is faster than its twins and what memory it takes; what was left out; the machine."""
    machine = cost.machine
    return [
        _compared(cost, SOFTMAX, "softmax through SDPA"),
        _compared(cost, WRITTEN_OUT, "softmax written out"),
        *(f"Left out: {left.method} from {left.length:,} tokens on: there {left.reason}." for left in cost.left_out),
        f"Measured on {machine['date']} on {machine['processor']} (threads: {machine['threads']}, device: "
        f"{machine['device']}), torch {machine['torch']}, commit {machine['commit']}; it took {cost.seconds:.0f} s.",
    ]


def what_is_measured(cost: Cost) -> str:
    """The paragraph without which the figures say little."""
    counts = sorted({row.repeats for row in cost.rows})
    repeats = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    longer = "the position embeddings are repeated to the lengths here"
    if cost.positions == "rotary":
        longer = "rotary positions extend beyond that"
    return (
        f"One forward of the whole trained encoder of {cost.experiment} (embeddings and layers, no head), without "
        f"gradients, in {cost.precision}, on one row of validation text. Beside it are encoders with the same weights, "
        f"the same convolution and softmax instead of Nyström attention: in PyTorch's "
        f"scaled_dot_product_attention (SDPA), which never stores the N x N matrix, and written out as "
        f"softmax(QKᵀ/√d)V, which does. Rows had {cost.trained_length} tokens in training; {longer}, "
        f"so this shows time and memory, not what was learned. All methods "
        f"of a length ran in turn. Times are medians (repeats: {repeats}); memory is the peak of tensors without "
        "weights and input."
    )


def draw_cost(cost: Cost, path: Path) -> None:
    """Time and peak memory over the length, both axes logarithmic."""
    # Importing it takes a second.
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure = new_figure(11.2, 4.2)
    panels: dict[str, Callable[[CostRow], float]] = {
        "time of a forward, ms": lambda row: row.time.median,
        "peak memory of a forward, MiB": lambda row: row.memory,
    }
    for axis, (title, height) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for number, method in enumerate(METHODS):
            mine = [row for row in cost.rows if row.method == method]
            # Open and smaller from one to the next, so that equal figures are seen as such.
            style = {"markersize": 11 - 3 * number, "linewidth": 3 - 0.8 * number, "markerfacecolor": "none"}
            axis.loglog([row.length for row in mine], [height(row) for row in mine], "o-", label=method, **style)
        axis.set_xticks(cost.settings.lengths, [f"{length:,}" for length in cost.settings.lengths])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set(xlabel="tokens", title=title)
        axis.grid(alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    write_figure(path, figure, dpi=120)


def _compared(cost: Cost, method: str, name: str) -> str:
    """The trained encoder beside another, at the lengths that both were measured at."""
    measured = {(row.length, row.method): row for row in cost.rows}
    both = [n for n in cost.settings.lengths if (n, OURS) in measured and (n, method) in measured]
    if not both:
        return f"{name[0].upper()}{name[1:]} was not measured."
    pairs = [(measured[n, OURS], measured[n, method]) for n in both]
    return f"{_time(pairs, name)} {_memory(*pairs[-1], name)}"


def _time(pairs: Sequence[tuple[CostRow, CostRow]], name: str) -> str:
    slower = [ours.length for ours, theirs in pairs if ours.time.median >= theirs.time.median]
    faster = [ours.length for ours, _ in pairs if ours.length > max(slower, default=0)]
    ours, theirs = pairs[-1]
    times = f"({_ms(ours)} against {_ms(theirs)})"
    if not faster:
        return (
            f"At {ours.length:,} tokens, the most that both were measured at, the trained Nyström encoder is not "
            f"faster than {name}: it takes {ours.time.median / theirs.time.median:.2f} times as long {times}. So no "
            "length was met from which on it is faster."
        )
    since = f"From {faster[0]:,} tokens on" if slower else f"At every length, from {faster[0]:,} tokens on,"
    ratio = theirs.time.median / ours.time.median
    return (
        f"{since} the trained Nyström encoder is faster than {name}; at {ours.length:,} tokens {ratio:.1f} times "
        f"{times}."
    )


def _memory(ours: CostRow, theirs: CostRow, name: str) -> str:
    ratio = theirs.memory / ours.memory
    much = (
        "as much memory as" if abs(ratio - 1) < _AS_MUCH else f"{ratio:.{1 if ratio >= 2 else 2}f} times the memory of"
    )
    return f"There {name} takes {much} the Nyström encoder ({_mib(theirs)} against {_mib(ours)} at the peak)."


def _ms(row: CostRow) -> str:
    return f"{row.time.median:.1f} ms" if row.time.median < 10 else f"{row.time.median:,.0f} ms"


def _mib(row: CostRow) -> str:
    return f"{row.memory:.1f} MiB" if row.memory < 10 else f"{row.memory:,.0f} MiB"
