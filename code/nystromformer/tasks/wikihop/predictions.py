"""Predictions in the form that QAngaroo's evaluation reads."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from nystromformer.files import write_json
from nystromformer.tasks.wikihop.examples import WikiHopExamples
from nystromformer.wording import number_of


def write_predictions(examples: WikiHopExamples, scores_IA: Tensor, path: Path) -> None:
    """Write `{id: text of the best candidate}`, whole or not at all.

    Args:
        scores_IA: of all instances' candidates in the examples' order; -inf where an instance has no such candidate.

    Raises:
        ValueError: the scores are not these instances'.
        UserError: the file cannot be written.
    """
    if len(scores_IA) != len(examples):
        raise ValueError(f"expected scores of {number_of(len(examples), 'instance')}, found {len(scores_IA)}")
    answers = {}
    for number, best in enumerate(scores_IA.argmax(-1).tolist()):
        texts = examples.candidate_texts(number)
        if best >= len(texts):
            raise ValueError(
                f"{examples.ids[number]}: expected -inf from candidate {len(texts)} on, found its best score at {best}"
            )
        answers[examples.ids[number]] = texts[best]
    write_json(path, answers)
