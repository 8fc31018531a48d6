"""A finished run that answers texts."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from nystromformer.errors import UserError
from nystromformer.report.explanation import explain_text
from nystromformer.tasks.finetuning.encoded import literal
from nystromformer.tasks.prediction.batches import has_rows_apart
from nystromformer.tasks.prediction.loaded import Predictions, load_run

_SHOWN = 10
"""Classes of an answer, at most."""


class Choice(BaseModel):
    """A class or label and its probability; or `value` and what the model predicts."""

    label: str
    probability: float | None = None
    value: float | None = None


class Answer(BaseModel):
    """What a model says of a text: its choices, the likeliest first; what it predicts; and what it read.

    predicted: the class (of ordered classes the median), or all labels that hold; absent for a value. tokens: that were
    read, in so many rows. cut: whether the text was longer than that.
    """

    choices: list[Choice]
    predicted: list[str] | None = None
    tokens: int
    rows: int
    cut: bool


class ServedModel:
    """A finished run on single texts.

    Raises:
        UserError: no finished run there, or one that learned from pairs.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self._run = load_run(folder, device)
        if self._run.recipe.is_of_pairs:
            raise UserError(f"{folder}: it was trained on pairs of texts, and the service takes single texts")
        self.folder = folder
        self.name = f"{self._run.result.experiment}, {self._run.task}"
        names = self._run.recipe.answer.names
        predicted = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        self.does = f"It predicts {predicted or 'a value'}, and reads up to {self._run.length:,} tokens."
        self._tokenizer = literal(self._run.tokenizer)
        self._tokenizer.no_truncation()
        # Its weights are read now, and not when the first one asks.
        self._one_by_one = not has_rows_apart(self._run.model)

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        """Of each text, in their order."""
        if self._one_by_one and len(texts) > 1:
            return [answer for text in texts for answer in self.answer([text])]
        examples = self._run.encode(texts)
        told = self._run.told(self._run.scores(examples))
        whole = [len(self._tokenizer.encode(self._run.recipe.cleaned(text)).ids) for text in texts]
        is_cut = self._run.recipe.cut.rule != "windows"
        return [
            Answer(choices=choices, predicted=predicted, tokens=tokens, rows=rows, cut=is_cut and size > tokens)
            for choices, predicted, tokens, rows, size in zip(
                choices_of(told), predicted_of(told), examples.tokens, examples.rows, whole, strict=True
            )
        ]

    def explain(self, text: str) -> str:
        """A page with the tokens shaded that the answer goes by.

        Raises:
            ValueError: an attention that has no weights.
        """
        return explain_text(self._run, text).page


def choices_of(told: Predictions) -> list[list[Choice]]:
    """What was predicted of each text, the likeliest classes or labels first."""
    if told.probabilities is None:
        return [[Choice(label="value", value=value)] for value in told.labels]
    ranked = [sorted(zip(row, told.names, strict=True), reverse=True) for row in told.probabilities.tolist()]
    return [[Choice(label=name, probability=chance) for chance, name in row[:_SHOWN]] for row in ranked]


def predicted_of(told: Predictions) -> list[list[str] | None]:
    """The class of each text, or all labels that hold; None of values."""
    if told.probabilities is None:
        return [None] * len(told)
    return [label if told.has_lists else [label] for label in told.labels]
