"""A text with the tokens shaded that a prediction went by, as a page that needs nothing beside it.

Shapes: N tokens, L layers.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nystromformer.report.document import box, document, rows, table

_SHOWN = 20
"""Tokens in the table of the heaviest."""
_QUANTILE = 0.995
"""Of the weights, from which on shading does not get darker: one heavy token shall not make all others white."""
# Radio buttons choose the shading without a script: what they say stands in each token's two numbers.
_STYLE = """
<style>
.shaded { line-height: 1.9; overflow-wrap: anywhere; white-space: pre-wrap; }
.shaded i { font-style: normal; border-radius: 3px; }
.shaded small { opacity: .55; }
#attention:checked ~ .shaded i { background: rgb(76 120 168 / calc(var(--a) * 75%)); }
#steepness:checked ~ .shaded i { background: rgb(84 162 75 / calc(var(--g) * 75%)); }
#steepness:checked ~ .shaded i.against { background: rgb(228 87 86 / calc(var(--g) * 75%)); }
h1, .text td:last-child { overflow-wrap: anywhere; }
</style>
"""


@dataclass(frozen=True)
class Explained:
    """A row's tokens and what each counted."""

    text: str
    offsets: Sequence[tuple[int, int]]
    """Of each token in the text, (begin, end); the same number twice for a token that stands for nothing in it."""
    names: Sequence[str]
    """Of each token."""
    attention_LN: NDArray[np.float32]
    """Weights by layer, see `model/explain.py`."""
    steepness_N: NDArray[np.float32]

    @property
    def attention_N(self) -> NDArray[np.float32]:
        """Mean over the layers."""
        mean: NDArray[np.float32] = self.attention_LN.mean(0)
        return mean


def page(title: str, facts: Mapping[str, str], explained: Explained) -> str:
    """The whole page.

    Args:
        title: of the page.
        facts: what is said above the text, such as the prediction and its probability.
        explained: the row.
    """
    said = [[name, value] for name, value in facts.items()]
    attention = "attention: weight in the pooled vector, mean over heads and layers"
    steepness = "gradient × input: for the prediction (green), against it (red)"
    body = [
        _STYLE,
        f"<h1>{html.escape(title)}</h1>",
        box(f'<table class="text"><tbody>{rows(said)}</tbody></table>'),
        f'<input type="radio" name="by" id="attention" checked><label for="attention">{attention}</label><br>',
        f'<input type="radio" name="by" id="steepness"><label for="steepness">{steepness}</label>',
        f'<div class="shaded">{_shade(explained)}</div>',
        "<h2>Tokens with the most attention</h2>",
        _heaviest(explained),
        "<p>Weights of an approximated softmax may be negative. Neither measure proves why a model predicts what it "
        "predicts: they say where it looked, and where its score would change fastest.</p>",
    ]
    return document(title, body)


def _shade(explained: Explained) -> str:
    dark_N, steep_N = _scale(np.maximum(explained.attention_N, 0)), _scale(np.abs(explained.steepness_N))
    parts: list[str] = []
    at = 0
    for number, (begin, end) in enumerate(explained.offsets):
        numbers = f'style="--a:{dark_N[number]:.2f};--g:{steep_N[number]:.2f}"'
        against = ' class="against"' if explained.steepness_N[number] < 0 else ""
        if begin == end:
            parts.append(f"<i{against} {numbers}><small>{html.escape(explained.names[number])}</small></i>")
            continue
        # What no token stands for: blanks, or what was cut out. Of tokens that overlap each has what is left.
        begin = max(begin, at)
        between = explained.text[at:begin]
        parts.append(_cut_off(between) if between.strip() else html.escape(between))
        parts.append(f"<i{against} {numbers}>{html.escape(explained.text[begin:end])}</i>")
        at = max(at, end)
    if explained.text[at:]:
        parts.append(_cut_off(explained.text[at:]))
    return "".join(parts)


def _cut_off(text: str) -> str:
    return f"<small>{html.escape(text)} (cut off, not read)</small>"


def _scale(values_N: NDArray[np.float32]) -> NDArray[np.float32]:
    """From 0 to 1."""
    highest = float(np.quantile(values_N, _QUANTILE)) or float(values_N.max(initial=0.0))
    return np.clip(values_N / highest, 0, 1) if highest > 0 else np.zeros_like(values_N)


def _heaviest(explained: Explained) -> str:
    order = np.argsort(-explained.attention_N, kind="stable")[:_SHOWN]
    layers = len(explained.attention_LN)
    header = [
        "token",
        "at",
        "attention, %",
        *(f"layer {number + 1}, %" for number in range(layers)),
        "gradient × input",
    ]
    rows = [
        [
            explained.text[slice(*explained.offsets[number])].strip() or explained.names[number],
            str(number),
            f"{100 * explained.attention_N[number]:.2f}",
            *(f"{100 * weight:.2f}" for weight in explained.attention_LN[:, number]),
            f"{explained.steepness_N[number]:+.4f}",
        ]
        for number in order.tolist()
    ]
    return table(header, rows)
