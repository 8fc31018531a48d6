"""Pictures: errors over time, landmarks and iterations; true and approximated maps; the three factors."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import NystromAttention, create_attention
from nystromformer.benchmark.approximation.candidates import RULES, label
from nystromformer.benchmark.approximation.errors import EXACT, exact_weights
from nystromformer.benchmark.approximation.report import (
    PAPERS_ITERATIONS,
    Findings,
    find_frontier,
    inverse_label,
    mean_errors,
    mean_figures,
)
from nystromformer.benchmark.checkpoints import RANDOM, Inputs, factors_product
from nystromformer.benchmark.results import new_figure
from nystromformer.files.writing import write_figure

_MOST_LAYERS = 4
"""That are shown beside each other."""
_MOST_TOKENS = 160
"""Of a map, so that each weight is seen."""
_COLOURS = 1e3
"""The largest weight that has a colour of its own over the smallest."""


def draw_methods(found: Findings, path: Path, header: str) -> None:
    """Errors over the time of a forward pass, on the checkpoint's input and on random input."""
    figure = new_figure(13, 5)
    axes = figure.subplots(1, 2)
    for axis, is_random in zip(axes, (False, True), strict=True):
        means = mean_errors(found.output_errors, is_random)
        for method in dict.fromkeys(method for method, _ in means):
            widths = sorted((width for name, width in means if name == method), key=lambda width: width or 0)
            points = [(found.forward_ms[label(method, width)].median, means[method, width]) for width in widths]
            style: dict[str, Any] = {"linewidth": 2.4} if method == "nystrom" else {"linewidth": 1.2}
            axis.plot(*zip(*points, strict=True), "o-", markersize=4, label=method, **style)
        axis.axvline(
            found.forward_ms["softmax"].median, color="black", linestyle="--", linewidth=1, label="softmax's time"
        )
        axis.set(xscale="log", yscale="log", xlabel="forward, ms")
        axis.set_title("random input" if is_random else "the checkpoint's input, mean over layers")
    axes[0].set_ylabel("‖out − softmax's‖ / ‖softmax's‖")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    figure.suptitle(header, fontsize=8)
    write_figure(path, figure, dpi=110)


def draw_nystrom(found: Findings, path: Path, header: str) -> None:
    """The output's error over the number of landmarks, over the iterations, and over the time."""
    figure = new_figure(18, 5)
    left, middle, right = figure.subplots(1, 3)
    errors = {setting: each["output_error"] for setting, each in mean_figures(found.nystrom_errors).items()}
    counts = sorted({landmarks for _, landmarks, _ in errors})
    for rule in RULES:
        for inverse, line in ((PAPERS_ITERATIONS, "o-"), (EXACT, "x:")):
            heights = [errors.get((rule, count, inverse), math.nan) for count in counts]
            left.plot(counts, heights, line, label=f"{rule}, {inverse_label(inverse)}", color=f"C{RULES.index(rule)}")
    left.set(xscale="log", yscale="log", xlabel="landmarks", ylabel="‖out − softmax's‖ / ‖softmax's‖")
    left.set_xticks(counts, [str(count) for count in counts])
    left.minorticks_off()
    left.legend(fontsize=8, frameon=False)
    numbers = sorted({inverse for _, _, inverse in errors if isinstance(inverse, int)})
    for place, count in enumerate(counts):
        heights = [errors[RULES[0], count, number] for number in numbers]
        middle.plot(numbers, heights, "o-", color=f"C{place}", label=f"{count} landmarks")
        middle.axhline(errors[RULES[0], count, EXACT], color=f"C{place}", linestyle=":", linewidth=1)
    middle.set(yscale="log", xlabel=f"iterations of eq. 14, {RULES[0]} (dotted: the exact pseudo-inverse)")
    middle.legend(fontsize=8, frameon=False)
    for place, rule in enumerate(RULES):
        for kind, marker in ((int, "o"), (str, "^")):
            mine = [one for one in found.nystrom_ms if one.rule == rule and isinstance(one.inverse, kind)]
            times = [one.ms.median for one in mine]
            heights = [errors[one.setting] for one in mine]
            name = f"{rule}, {'iterations' if kind is int else 'ridges'}"
            right.plot(times, heights, marker, color=f"C{place}", markersize=4, alpha=0.6, label=name)
    best = find_frontier(found)
    right.plot([one.ms.median for one, _ in best], [error for _, error in best], "k-", linewidth=1, label="the best")
    right.set(xscale="log", yscale="log", xlabel="forward, ms")
    right.legend(fontsize=8, frameon=False)
    figure.suptitle(header, fontsize=8)
    write_figure(path, figure, dpi=110)


def draw_maps(layers: Sequence[Inputs], landmarks: int, path: Path, header: str) -> None:
    """True and approximated attention of the first head of some layers, over one row (the paper's Figure 3), with the
    paper's landmarks and with strided ones.
    """
    chosen = [inputs for inputs in layers if inputs.name != RANDOM][:_MOST_LAYERS]
    rules = RULES[:2]
    figure = new_figure(3.3 * len(chosen), 3.4 * (1 + len(rules)))
    axes = figure.subplots(1 + len(rules), len(chosen), squeeze=False)
    for column, inputs in enumerate(chosen):
        row = inputs.rows()[0]
        true = exact_weights(row)[0, 0]
        most = _most(true)
        approximated = (_approximated(row, landmarks, rule)[0, 0] for rule in rules)
        for axis, weights in zip(axes[:, column], (true, *approximated), strict=True):
            _show(axis, weights[:_MOST_TOKENS, :_MOST_TOKENS], most)
        axes[0, column].set_title(f"{inputs.name}, head 0")
    rows = ("softmax, eq. 2", *(f"{landmarks} landmarks, {rule}" for rule in rules))
    for axis, name in zip(axes[:, 0], rows, strict=True):
        axis.set_ylabel(name)
    length = chosen[0].q.shape[2]
    figure.suptitle(
        f"Weights between the first {min(length, _MOST_TOKENS)} of {length} tokens; colours are logarithmic, black is "
        f"a thousandth of the largest, and less\n{header}",
        fontsize=8,
    )
    write_figure(path, figure, dpi=110)


def draw_factors(inputs: Inputs, landmarks: int, path: Path, header: str) -> None:
    """A map and the three matrices whose product approximates it (the paper's Figure 2)."""
    row = inputs.rows()[0]
    queries, inverse, keys = _core(row, landmarks).factors(row.q, row.k, row.mask)
    length = row.q.shape[2]
    figure = new_figure(15, 6.4)
    axes = figure.subplots(1, 4, width_ratios=(length, landmarks, landmarks, length))
    titles = ("S = softmax(QKᵀ/√D)", "≈  softmax(QK̃ᵀ/√D)", "·  Z*", "·  softmax(Q̃Kᵀ/√D)")
    for axis, title, matrix in zip(axes, titles, (exact_weights(row), queries, inverse, keys), strict=True):
        if "Z*" in title:
            most = float(matrix[0, 0].abs().max())
            axis.imshow(matrix[0, 0].cpu().numpy(), cmap="coolwarm", vmin=-most, vmax=most)
            axis.set(xticks=[], yticks=[])
        else:
            _show(axis, matrix[0, 0], _most(matrix[0, 0]))
        axis.set_anchor("N")
        rows, columns = matrix.shape[2:]
        if rows > columns:  # beside it: above it is less room than the words take
            axis.set_ylabel(f"{title}, {rows} x {columns}", fontsize=8)
        else:
            axis.set_title(f"{title}\n{rows} x {columns}", fontsize=8, loc="left")
    figure.suptitle(f"{inputs.name}, head 0; {header}", fontsize=8)
    write_figure(path, figure, dpi=110)


def _core(inputs: Inputs, landmarks: int, rule: str = RULES[0]) -> NystromAttention:
    _, H, _, D = inputs.q.shape
    core = create_attention("nystrom", num_heads=H, head_dim=D, num_landmarks=landmarks, landmarks=rule)
    assert isinstance(core, NystromAttention)
    return core


@torch.no_grad()
def _approximated(inputs: Inputs, landmarks: int, rule: str) -> Tensor:
    return factors_product(_core(inputs, landmarks, rule).factors(inputs.q, inputs.k, inputs.mask))


def _most(weights: Tensor) -> float:
    """The weight with the brightest colour: of the largest thousandth the smallest."""
    return float(weights.flatten().topk(max(1, weights.numel() // 1000)).values[-1])


def _show(axis: Any, weights: Tensor, most: float) -> None:
    from matplotlib.colors import LogNorm

    norm = LogNorm(most / _COLOURS, most, clip=True)
    axis.imshow(weights.clamp(min=most / _COLOURS).cpu().numpy(), norm=norm, cmap="magma", interpolation="nearest")
    axis.set(xticks=[], yticks=[])
