"""Which tokens of a text a finished run's prediction goes by: numbers, and a page that needs nothing beside it.

Shapes: N tokens, L layers.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.files.writing import write_text
from nystromformer.model.explain import explain
from nystromformer.prediction.predictor import TOKENS_AT_A_TIME, Predictor, check_texts
from nystromformer.tasks.documents.recipe import as_text
from nystromformer.tasks.finetuning.encoded import literal

_PAGE = Path(__file__).with_name("explain.html")
"""With {{}} where facts, attention and gradient x input go."""
_BLUE, _GREEN, _RED = "76 120 168", "84 162 75", "228 87 86"
_SHOWN = 20
"""Tokens on the terminal."""


@dataclass(frozen=True)
class ExplainedText:
    """A text, and what its tokens counted for a prediction."""

    text: str
    facts: dict[str, str]
    """What was predicted, and whose score is explained."""
    names: Sequence[str]
    """Of each token."""
    offsets: Sequence[tuple[int, int]]
    """Of each token in the text, (begin, end); the same number twice for a token that stands for nothing in it."""
    attention_LN: NDArray[np.float32]
    """Weights by layer, see `model/explain.py`; those of an approximated softmax may be negative."""
    steepness_N: NDArray[np.float32]

    @property
    def page(self) -> str:
        """The text, shaded, as a page of HTML."""
        facts = html.escape("\n".join(f"{name}: {value}" for name, value in self.facts.items()))
        attention_N = np.maximum(self.attention_LN.mean(0), 0)
        steepness = self._shaded(self.steepness_N, _GREEN, _RED)
        before, above, between, after = _PAGE.read_text(encoding="utf-8").split("{{}}")
        return f"{before}{facts}{above}{self._shaded(attention_N, _BLUE, _BLUE)}{between}{steepness}{after}"

    def _shaded(self, values_N: NDArray[np.float32], positive: str, negative: str) -> str:
        # One heavy token shall not make all others white.
        highest = float(np.quantile(np.abs(values_N), 0.995)) or 1.0
        parts, at = [], 0
        for (begin, end), name, value in zip(self.offsets, self.names, values_N.tolist(), strict=True):
            color, strength = negative if value < 0 else positive, min(75 * abs(value) / highest, 75)
            shown = (
                html.escape(self.text[max(begin, at) : end]) if end > begin else f"<small>{html.escape(name)}</small>"
            )
            # Tokens may overlap, such as the bytes of one character.
            parts.append(_between(self.text[at:begin]))
            parts.append(f'<span style="background: rgb({color} / {strength:.0f}%)">{shown}</span>')
            at = max(at, end)
        return "".join([*parts, _between(self.text[at:])])


def _between(text: str) -> str:
    """What no token stands for: blanks, or what was cut out."""
    return f"<small>{html.escape(text)} (cut off, not read)</small>" if text.strip() else html.escape(text)


def explain_text(predictor: Predictor, text: str, label: str | None = None) -> ExplainedText:
    """Explain what a run on single texts predicts of one.

    Args:
        label: whose score is explained; None: that of the predicted class, or of the likeliest of several labels.

    Raises:
        ValueError: an empty text, or an attention without weights.
    """
    run = predictor.network
    answer = run.recipe.answer
    if label is not None and label not in answer.names:
        raise UserError(
            f"--label {label}: expected one of {', '.join(answer.names) or 'none: the run predicts values'}"
        )
    check_texts([text])
    encoded = run.encode([text])
    told, chances = predictor.told(predictor.results(run.scores(encoded)), 0)
    # Of ordered classes the middle one of the chances is predicted, which need not be the likeliest.
    wanted = told if label is None and answer.kind == "ordered" else label
    classes_I = None if wanted is None else torch.tensor([answer.names.index(wanted)], device=run.device.device)
    batch = {name: each.to(run.device.device) for name, each in encoded.batch(np.array([0]), run.pad_to).items()}
    rows = max(TOKENS_AT_A_TIME[run.device.device.type] // batch["tokens_BN"].shape[1], 1)
    with run.device.autocast():
        scores = answer.class_scores
        found = explain(run.model, **batch, classes_I=classes_I, class_scores=scores, rows_at_a_time=rows)
    names = [run.tokenizer.id_to_token(token) or str(token) for token in encoded.tokens_of(0).tolist()]
    attention_LN = np.zeros((found.attention_BLN.shape[1], len(names)), dtype=np.float32)
    steepness_N = np.zeros(len(names), dtype=np.float32)
    # A token that stands in several windows has what it counts in all of them.
    for row, at in enumerate(encoded.places_of(0)):
        attention_LN[:, at] += found.attention_BLN[row, :, : len(at)].float().cpu().numpy()
        steepness_N[at] += found.steepness_BN[row, : len(at)].cpu().numpy()
    facts = {"predicted": as_text(told, ", ") or "none"}
    if chances:
        likeliest = sorted(chances.items(), key=lambda each: -each[1])[:5]
        facts["probabilities"] = ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in likeliest)
        facts["explained"] = answer.names[int(found.classes_I[0])]
    if encoded.rows[0] > 1:
        facts["windows"] = f"{encoded.rows[0]:,}, whose pooled vectors' mean is classified; each token's sum over them"
    # Where each token of `<s> A </s>` stands in the text.
    encoder = literal(run.tokenizer)
    encoder.no_padding()
    encoder.enable_truncation(run.length if run.recipe.cut.rule == "head" else MOST)
    text = run.recipe.cleaned(text)
    _, *offsets, _ = encoder.encode(text).offsets
    offsets = [(0, 0), *offsets, (len(text), len(text))]
    return ExplainedText(text, facts, names, offsets, attention_LN, steepness_N)


def run_explain(run: Path, text: str, label: str | None, out: Path, device: str, show: Callable[[str], None]) -> None:
    """Write the page of a text, and show the tokens that have the most attention."""
    try:
        found = explain_text(Predictor(run, device), text, label)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from None
    write_text(out, found.page)
    for name, value in found.facts.items():
        show(f"{name}: {value}")
    attention_N = found.attention_LN.mean(0)
    show("\nattention, %   gradient x input   token")
    for number in (-attention_N).argsort()[:_SHOWN].tolist():
        name = found.text[slice(*found.offsets[number])].strip() or found.names[number]
        show(f"{100 * attention_N[number]:12.2f} {found.steepness_N[number]:+18.4f}   {name}")
    show(f"\npage: {out}")
