"""What a finished run's prediction of a text goes by.

Shapes: N tokens, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nystromformer.errors import UserError
from nystromformer.files.writing import write_json, write_text
from nystromformer.model.explain import Explanation, explain
from nystromformer.report.explained import Explained, page
from nystromformer.tasks.documents.targets import class_scores
from nystromformer.tasks.finetuning.encoded import EncodedTexts, literal
from nystromformer.tasks.prediction.loaded import LoadedRun, Predictions

_BETWEEN = "\n\n"
"""The two texts of a pair, on the page."""


@dataclass(frozen=True)
class ExplainedText:
    """A text, what was predicted of it, and what its tokens counted."""

    explained: Explained
    facts: dict[str, str]
    """What is said above the text."""
    label: str
    """Whose score is explained."""
    tokens: int
    cut: bool

    @property
    def page(self) -> str:
        """The text, shaded, as a page of HTML."""
        return page(f"Explanation: {self.label}", self.facts, self.explained)

    def as_data(self) -> dict[str, Any]:
        """The numbers, as plain data."""
        own = self.explained
        return {
            "facts": self.facts,
            "label": self.label,
            "tokens": [
                {
                    "token": name,
                    "begin": begin,
                    "end": end,
                    "attention": own.attention_LN[:, number].tolist(),
                    "gradient_x_input": float(own.steepness_N[number]),
                }
                for number, (name, (begin, end)) in enumerate(zip(own.names, own.offsets, strict=True))
            ],
        }


def explain_text(run: LoadedRun, text: str, second: str | None = None, label: str | None = None) -> ExplainedText:
    """Explain what a run predicts of a text, or of a pair.

    Args:
        label: whose score is explained; None: that of the predicted class, or of the likeliest of several labels.

    Raises:
        UserError: an empty text, no such label, or a pair where the run learned single texts.
    """
    if not all(each.strip() for each in (text, second) if each is not None):
        raise UserError("--text: expected a text, found an empty one")
    told = run.predict([text], None if second is None else [second])
    encoded = run.encode([text], None if second is None else [second])
    assert isinstance(encoded, EncodedTexts)
    number = _number_of(run, told, label)
    found = _explanation(run, encoded, number)
    cleaned = [run.recipe.cleaned(each) for each in (text, second) if each is not None]
    tokens = encoded.tokens_of(0)
    names = [run.tokenizer.id_to_token(token) or str(token) for token in tokens.tolist()]
    attention_LN = np.zeros((found.attention_BLN.shape[1], len(tokens)), dtype=np.float32)
    steepness_N = np.zeros(len(tokens), dtype=np.float32)
    # A token that stands in several windows has what it counts in all of them.
    for row, places in enumerate(encoded.places_of(0)):
        attention_LN[:, places] += found.attention_BLN[row, :, : len(places)].float().cpu().numpy()
        steepness_N[places] += found.steepness_BN[row, : len(places)].cpu().numpy()
    explained = Explained(_BETWEEN.join(cleaned), _offsets(run, encoded, cleaned), names, attention_LN, steepness_N)
    chosen = str(told.labels[0]) if label is None else label
    facts = {"run": str(run.folder), "predicted": _shown(told.labels[0]), "tokens": f"{len(names):,}"}
    if told.probabilities is not None:
        order = np.argsort(-told.probabilities[0])[:5].tolist()
        facts["probabilities"] = ", ".join(f"{told.names[n]} {100 * told.probabilities[0, n]:.1f} %" for n in order)
    if told.names:
        chosen = told.names[int(found.classes_I[0])]
    facts["explained"] = chosen
    is_cut = bool(encoded.truncated) and run.recipe.cut.rule != "windows"
    if is_cut:
        facts["cut"] = f"the text was longer than the {run.result.length:,} tokens that the model reads"
    if encoded.rows[0] > 1:
        facts["windows"] = f"{encoded.rows[0]:,}, whose pooled vectors' mean is classified; each token's sum over them"
    return ExplainedText(explained, facts, chosen, len(names), is_cut)


def _explanation(run: LoadedRun, encoded: EncodedTexts, number: int | None) -> Explanation:
    made = encoded.batch(np.array([0]), run.pad_to)
    batch = {name: tensor.to(run.device.device) for name, tensor in made.items()}
    with run.device.autocast():
        try:
            return explain(
                run.model,
                batch["tokens_BN"],
                batch["mask_BN"],
                batch.get("types_BN"),
                batch.get("rows_I"),
                None if number is None else torch.tensor([number], device=run.device.device),
                partial(class_scores, run.recipe.answer),
                run.rows_at_a_time(batch["tokens_BN"].shape[1]),
            )
        except ValueError as error:
            raise UserError(f"{run.folder}: {error}") from None


def write_explanation(made: ExplainedText, page: Path, numbers: Path) -> None:
    """Write the page, and the numbers as JSON.

    Raises:
        UserError: a file that cannot be written.
    """
    write_text(page, made.page)
    write_json(numbers, made.as_data())


def _shown(label: object) -> str:
    if isinstance(label, list):
        return ", ".join(map(str, label)) or "none"
    return f"{label:.4g}" if isinstance(label, float) else str(label)


def _number_of(run: LoadedRun, told: Predictions, label: str | None) -> int | None:
    """Of the class to explain; None: the one with the highest score."""
    names = run.recipe.answer.names
    if label is None:
        # Of ordered classes the middle one of the chances is predicted, which need not be the likeliest.
        return names.index(told.labels[0]) if run.recipe.answer.kind == "ordered" else None
    if label not in names:
        raise UserError(f"--label {label}: expected one of {', '.join(names) or 'none: the run predicts values'}")
    return names.index(label)


def _offsets(run: LoadedRun, encoded: EncodedTexts, texts: Sequence[str]) -> list[tuple[int, int]]:
    """Where in the texts, one after the other, the tokens of `<s> A </s>`, or of `<s> A </s> B </s>`, stand."""
    encoder = literal(run.tokenizer)
    encoder.no_padding()
    encoder.no_truncation()
    each = [encoder.encode(text, add_special_tokens=False).offsets for text in texts]
    left = encoded.left_of(len(each[0]), len(each[1]) if len(each) > 1 else 0)
    offsets = [(0, 0)]
    begin = 0
    for text, places, kept in zip(texts, each, left, strict=False):
        offsets += [(begin + places[number][0], begin + places[number][1]) for number in kept.tolist()]
        offsets.append((0, 0))
        begin += len(text) + len(_BETWEEN)
    return offsets
