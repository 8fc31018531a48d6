"""What a finished run's prediction of a text goes by.

Shapes: N tokens, L layers.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nystromformer.errors import UserError
from nystromformer.files import write_json, write_text
from nystromformer.model.explain import explain
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
        return page(f"What a prediction goes by: {self.label}", self.facts, self.explained)

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
        UserError: a run that reads several rows of a text, no such label, or a pair where it learned single texts.
    """
    if run.known.cut.rule != "head":
        raise UserError(
            f"{run.folder}: its texts are cut by {run.known.cut.rule}: what is explained is one row, of texts cut by "
            "head"
        )
    told = run.predict([text], None if second is None else [second])
    encoded = run.encode([text], None if second is None else [second])
    assert isinstance(encoded, EncodedTexts)
    batch = {name: tensor.to(run.device.device) for name, tensor in encoded.batch(np.array([0])).items()}
    number = _number_of(run, told, label)
    classes_B = None if number is None else torch.tensor([number], device=run.device.device)
    with run.device.autocast():
        try:
            found = explain(
                run.model,
                batch["tokens_BN"],
                batch["mask_BN"],
                batch.get("types_BN"),
                classes_B,
                partial(class_scores, run.known.answer),
            )
        except ValueError as error:
            raise UserError(f"{run.folder}: {error}") from None
    whole, offsets = _offsets(run, text, second, len(encoded.tokens_of(0)))
    names = [run.tokenizer.id_to_token(token) or str(token) for token in encoded.tokens_of(0).tolist()]
    explained = Explained(
        whole,
        offsets,
        names,
        found.attention_BLN[0].cpu().numpy().astype(np.float32),
        found.steepness_BN[0].cpu().numpy().astype(np.float32),
    )
    chosen = str(told.labels[0]) if label is None else label
    facts = {"run": str(run.folder), "predicted": _shown(told.labels[0]), "tokens": f"{len(names):,}"}
    if told.probabilities is not None:
        order = np.argsort(-told.probabilities[0])[:5].tolist()
        facts["probabilities"] = ", ".join(f"{told.names[n]} {100 * told.probabilities[0, n]:.1f} %" for n in order)
    if told.names:
        chosen = told.names[int(found.classes_B[0])]
    facts["explained"] = chosen
    if encoded.truncated:
        facts["cut"] = f"the text was longer than the {run.result.length:,} tokens that the model reads"
    return ExplainedText(explained, facts, chosen, len(names), bool(encoded.truncated))


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
    names = run.known.answer.names
    if label is None:
        # Of ordered classes the middle one of the chances is predicted, which need not be the likeliest.
        return names.index(told.labels[0]) if run.known.answer.kind == "ordered" else None
    if label not in names:
        raise UserError(f"--label {label}: expected one of {', '.join(names) or 'none: the run predicts values'}")
    return names.index(label)


def _offsets(run: LoadedRun, text: str, second: str | None, count: int) -> tuple[str, list[tuple[int, int]]]:
    """What is shown, and where in it tokens of `<s> A </s>`, or of `<s> A </s> B </s>`, stand, cut as the row was."""
    encoder = literal(run.tokenizer)
    encoder.no_padding()
    encoder.enable_truncation(count, strategy="longest_first")
    cleaned = [run.known.cleaned(each) for each in (text, second) if each is not None]
    encoding = encoder.encode(cleaned[0], cleaned[1] if len(cleaned) > 1 else None)
    starts = [0, len(cleaned[0]) + len(_BETWEEN)]
    offsets = [
        (begin + starts[part or 0], end + starts[part or 0]) if part is not None else (0, 0)
        for (begin, end), part in zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ]
    return _BETWEEN.join(cleaned), offsets
