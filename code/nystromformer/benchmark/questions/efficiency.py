"""Time and memory of every attention, one length after the other, all methods of a length in turn.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from nystromformer.attention.comparison import draw_inputs
from nystromformer.benchmark.findings import Findings, Record, new_figure
from nystromformer.benchmark.methods import CONTROL, SDPA, WRITTEN_OUT, Method, choose_methods
from nystromformer.benchmark.questions import ATTENTIONS, OUT, REPEATS, Out, count, flag, numbers, threads
from nystromformer.benchmark.timing import Work, peak_memory, repeats_at, time_side_by_side
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.tables import markdown, show

logger = logging.getLogger(__name__)

FROM = 2048
"""Tokens from which on exponents are fitted: below, what a call costs whatever its length counts, too."""
HEADINGS = {
    "forward.median": "Forward, ms",
    "both.median": "Forward and backward, ms",
    "forward_memory": "Peak memory of forward, MiB",
    "memory": "Peak memory of forward and backward, MiB",
}
"""Of each figure's table."""
MOST_BYTES = 16 << 30
"""Of softmax written out."""
_ORDER = {SDPA: 0, WRITTEN_OUT: 1, CONTROL: 3}
_OWN = {SDPA: "black", WRITTEN_OUT: "dimgray", CONTROL: "lightgray", "nystrom": "crimson"}
"""Colours that are no other's."""


@dataclass(frozen=True)
class Efficiency:
    """What is measured."""

    attentions: list[str] = flag([], f"{ATTENTIONS}all.", name="attention")
    lengths: Sequence[int] = numbers(
        (512, 1024, 2048, 4096, 8192, 16384), "Sequence lengths in tokens, separated by commas."
    )
    batch: int = count(1, "Sequences that are computed together.")
    heads: int = count(12, "Heads of the attention.")
    head_dim: int = count(64, "Width of each head.")
    repeats: int = count(9, REPEATS)
    threads: int = threads()
    budget: float = flag(
        1800.0, "Time limit in seconds; what does not fit is left out and listed, the reference (SDPA) last.", 0
    )
    peers: bool = flag(False, "Also measure installed public implementations of Nyström attention, and padded rows.")


@with_flag_groups
def efficiency(settings: Efficiency, out: Out = OUT) -> None:
    """Time and memory of every attention over the length, beside softmax."""
    methods = {length: choose_methods(settings.attentions, settings.peers, length) for length in settings.lengths}
    torch.set_num_threads(settings.threads)
    found, text = Findings.begin("efficiency", settings, out), ""
    until = time.monotonic() + settings.budget
    for length, chosen in methods.items():
        measure_at(settings, chosen, length, until, found)
        text = found.publish(out / "efficiency.json")
        logger.info("%d tokens measured", length)
    show(text)


def measure_at(settings: Efficiency, methods: Sequence[Method], length: int, until: float, found: Findings) -> None:
    """Measure a length and add it to what was found at shorter ones.

    Args:
        until: on the monotonic clock. What the time does not allow, by the last length and with the square, is left
            out, the costliest first and SDPA last; of a method of which nothing is known, nothing is.
    """
    repeats = repeats_at(length, settings.repeats)
    known = {record["method"]: record for record in found.records}  # at the longest so far
    left, possible = max(0.0, until - time.monotonic()), dict[str, Method]()

    def seconds(method: Method) -> float:
        before = known.get(method.name)
        step = before["both"]["median"] / 1e3 * (length / before["length"]) ** 2 if before else 0.0
        # Beside its measurements, those forward alone, which take about a third, those of the memory, and one more.
        return step * (repeats * 4 / 3 + 4)

    for method in sorted(methods, key=lambda method: (method.name != SDPA, seconds(method))):
        needed, why = 3 * 4 * settings.batch * settings.heads * length**2, method.why_not
        if method.name == WRITTEN_OUT and needed > MOST_BYTES:  # a system without memory kills who asks for it
            why = f"memory: its N x N matrices take {needed / 2**30:,.1f} GiB"
        elif seconds(method) > left:
            why = f"budget: some {seconds(method):,.0f} s, {left:,.0f} were left"
        if why is None:
            possible[method.name], left = method, left - seconds(method)
        else:
            found.left_out.append(f"{method.name}, {length} tokens: {why}")
    torch.manual_seed(0)  # of the methods' own parameters
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = settings.batch, length, settings.heads, settings.head_dim
    inputs = draw_inputs(size, torch.float32, torch.Generator(device).manual_seed(0))
    calls = {name: method.build(settings.heads, settings.head_dim, length) for name, method in possible.items()}
    found.records += [{"length": length, **record} for record in side_by_side(calls, inputs, repeats)]


def side_by_side(
    methods: Mapping[str, Callable[..., Tensor]],
    inputs: Sequence[Tensor],
    repeats: int,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Record]:
    """Time and memory of each method, forward without gradients, and forward with the gradients of the inputs and of
    the method's parameters.

    Args:
        methods: modules or functions of q, k, v that give (B, H, N, D) or (B, N, H·D).
        inputs: q, k, v and a gradient of the output, each (B, H, N, D).
        context: of the forward pass, such as an autocast.
    """
    *leaves, upstream_BHND = inputs
    leaves = [x.detach().requires_grad_() for x in leaves]

    def attend(method: Callable[..., Tensor]) -> Tensor:
        with context():
            return method(*leaves)

    def both(method: Callable[..., Tensor], wanted: Sequence[Tensor]) -> object:
        out = attend(method)
        upstream = upstream_BHND if out.ndim == 4 else upstream_BHND.transpose(1, 2).flatten(2)
        # What makes its keys of the queries has no use for k.
        return torch.autograd.grad(out, wanted, upstream.to(out.dtype), allow_unused=True)

    works: dict[str, dict[str, Work]] = {"forward": {}, "both": {}}
    for name, method in methods.items():
        module = method.to(upstream_BHND.device) if isinstance(method, nn.Module) else None
        parameters = [each for each in module.parameters() if each.requires_grad] if module is not None else []
        works["forward"][name] = partial(torch.no_grad()(attend), method)
        works["both"][name] = partial(both, method, [*leaves, *parameters])
    times = {kind: time_side_by_side(own, repeats, warmup=1) for kind, own in works.items()}
    return [
        {
            "method": name,
            "forward": times["forward"][name],
            "both": times["both"][name],
            "memory": peak_memory(works["both"][name]),
            "forward_memory": peak_memory(works["forward"][name]),
        }
        for name in methods
    ]


def costs(records: Sequence[Record], name: str) -> pd.DataFrame:
    """A figure of methods, both softmaxes first and the control last, over the lengths."""
    table = pd.json_normalize(list(records)).pivot(index="method", columns="length", values=name)
    return table.loc[sorted(table.index, key=lambda method: (_ORDER.get(method, 2), method))]


def exponent(known: pd.Series) -> float | None:
    """p of cost ~ N^p: the slope of the least-squares line on logarithmic axes, over the lengths from FROM tokens on;
    None where fewer than two are there.
    """
    points = known[(known.index >= FROM) & (known > 0)]
    return None if len(points) < 2 else float(np.polyfit(np.log(points.index), np.log(points.to_numpy()), 1)[0])


def crossing(ratios: pd.Series) -> str:
    """From which length on a ratio stays below 1, between the measured ones along straight lines on logarithmic axes:
    `from 700`, `from 512 or less`, `not up to 4096`.
    """
    logs, lengths = np.log(ratios.to_numpy()), list(ratios.index)
    if not lengths:
        return "-"
    if logs[-1] >= 0:
        return f"not up to {lengths[-1]}"
    behind = np.flatnonzero(logs >= 0)
    if not len(behind):
        return f"from {lengths[0]} or less"
    at = behind[-1]
    return f"from {np.exp(np.interp(0.0, [-logs[at], -logs[at + 1]], np.log(lengths[at : at + 2]))):,.0f}"


def blocks(found: Findings) -> list[str]:
    """What was measured, and a table of each figure."""
    settings = ", ".join(f"{key} {value}" for key, value in found.settings.items() if key not in ("out", "attentions"))
    return [
        "What every attention costs",
        f"float32; an attention's settings are its defaults, without a convolution, unless named. {settings}. Medians "
        "of up to as many measurements as repeats say, all methods of a length in turn in one process.",
        *tables(found.records),
    ]


def tables(records: Sequence[Record]) -> list[str]:
    """A table for each figure, methods below and lengths beside each other."""
    how_to_read = (
        "In brackets: over softmax through PyTorch's fused kernels (SDPA), then over softmax written out. exponent: p "
        f"of cost ~ N^p, over the lengths from {FROM} tokens on that were measured. less than SDPA: from which length "
        "on."
    )
    known = {name: heading for name, heading in HEADINGS.items() if name.partition(".")[0] in records[0]}
    pairs = ((f"**{heading}**", _pivot(costs(records, name))) for name, heading in known.items())
    return [how_to_read, *(block for pair in pairs for block in pair)]


def _pivot(table: pd.DataFrame) -> str:
    missing = pd.Series(dtype=float)
    fused, plain = (table.loc[name] if name in table.index else missing for name in (SDPA, WRITTEN_OUT))
    rows = []
    for method, mine in table.iterrows():
        cells = [_cell(cost, fused.get(length, np.nan), plain.get(length, np.nan)) for length, cost in mine.items()]
        grows = exponent(mine.dropna())
        cheaper = "" if method in (SDPA, CONTROL) else crossing((mine / fused).dropna())
        rows.append([str(method), *cells, "" if grows is None else f"{grows:.2f}", cheaper])
    return markdown(["attention", *map(str, table.columns), "exponent", "less than SDPA"], rows)


def _cell(cost: float, *baselines: float) -> str:
    if math.isnan(cost):
        return "left out"
    shares = ", ".join("–" if math.isnan(other) else f"{cost / other:.2f}" for other in baselines)
    return f"{cost:,.0f} ({shares})" if cost >= 100 else f"{cost:.3g} ({shares})"


def draw(found: Findings) -> Any:
    """Time and memory of methods over the length, on logarithmic axes, each in a colour and style of its own; None
    where nothing of that was measured.
    """
    records = [record for record in found.records if "both" in record]
    if not records:
        return None
    picture = new_figure(13, 5.6)
    for axis, name in zip(picture.subplots(1, 2), ("both.median", "memory"), strict=True):
        table = costs(records, name)
        for number, (method, row) in enumerate(table.iterrows()):
            style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3]}
            style |= {"linewidth": 1.3}
            if method in _OWN:
                style = {"color": _OWN[str(method)], "linewidth": 2.4}
            axis.plot(row.dropna().index, row.dropna(), marker="o", markersize=3, label=method, **style)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xticks(table.columns, map(str, table.columns))
        axis.minorticks_off()
        axis.set(xlabel="tokens", title=HEADINGS[name])
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return picture
