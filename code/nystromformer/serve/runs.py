"""A finished fine-tuning run that answers texts."""

from collections.abc import Sequence
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.files.writing import sha256_of
from nystromformer.report.explain_run import explain_text
from nystromformer.runs.record import Run
from nystromformer.serve.answers import Answer, Choice, Source
from nystromformer.tasks.documents.answer import Answer as Asked
from nystromformer.tasks.finetuning.encoded import literal
from nystromformer.tasks.prediction.batches import has_rows_apart
from nystromformer.tasks.prediction.loaded import LoadedRun, LoadedWords, Predictions

EXAMPLE = "A fine film, from its first minute to its last."
_SHOWN = 10
"""Classes of an answer, at most."""


class RunModel:
    """What a run predicts; implements Model.

    Raises:
        UserError: it learned from pairs of texts.
    """

    def __init__(self, run: LoadedRun) -> None:
        _check_single(run.folder, run.recipe.is_of_pairs)
        self.name = f"{run.result.experiment}, {run.result.task}"
        self.does = what_is_predicted(run.recipe.answer)
        self.example = EXAMPLE
        self.longest = run.result.length
        self.source = source_of(run.folder, run.result, run.weights, run.result.tokenizer_sha256)
        in_windows = run.recipe.cut.rule == "windows"
        self.window = (run.rows_at_a_time(self.longest), self.longest) if in_windows else None
        self._run = run
        self._tokenizer = literal(run.tokenizer)
        self._tokenizer.no_truncation()
        # Read now, and not when the first one asks.
        self._one_by_one = not has_rows_apart(run.model)

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        if self._one_by_one and len(texts) > 1:
            return [answer for text in texts for answer in self.answer([text])]
        examples = self._run.encode(texts)
        predictions, recipe = self._run.told(self._run.scores(examples)), self._run.recipe
        cleaned = [recipe.cleaned(text) for text in texts]
        whole = [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(cleaned)]
        is_cut = recipe.cut.rule != "windows"
        return [
            Answer(choices, int(tokens), is_cut and length > self.longest, int(rows), predicted)
            for choices, tokens, length, rows, predicted in zip(
                choices_of(predictions), examples.tokens, whole, examples.rows, predicted_of(predictions), strict=True
            )
        ]

    def explain(self, text: str) -> str | None:
        try:
            return explain_text(self._run, text).page
        except UserError as error:
            raise ValueError(str(error)) from None


class WordsModel:
    """What the regression on words beside a run predicts; implements Model.

    Raises:
        UserError: it learned from pairs of texts.
    """

    longest = None
    window = None

    def __init__(self, words: LoadedWords) -> None:
        _check_single(words.folder, words.recipe.is_of_pairs)
        self.name = f"{words.result.experiment}, {words.result.task}: words (tf-idf)"
        self.does = what_is_predicted(words.recipe.answer)
        self.example = EXAMPLE
        self.source = source_of(words.folder, words.result, words.weights, None)
        self._words = words

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        examples = self._words.encode(texts)
        predictions = self._words.told(self._words.scores(examples))
        return [
            Answer(choices, int(words), cut=False, predicted=predicted)
            for choices, words, predicted in zip(
                choices_of(predictions), examples.tokens, predicted_of(predictions), strict=True
            )
        ]

    def explain(self, text: str) -> str | None:
        """None."""
        return None


def _check_single(folder: Path, is_of_pairs: bool) -> None:
    if is_of_pairs:
        raise UserError(
            f"{folder}: it was trained on pairs of texts, and the service accepts only single texts: use run_predict.py"
        )


def choices_of(told: Predictions) -> list[list[Choice]]:
    """What was predicted of each text, the likeliest classes or labels first."""
    if told.probabilities is None:
        return [[Choice("value", value=float(label))] for label in told.labels]
    ranked = [
        sorted(zip(told.names, row, strict=True), key=lambda each: -each[1]) for row in told.probabilities.tolist()
    ]
    return [[Choice(name, chance) for name, chance in row[:_SHOWN]] for row in ranked]


def predicted_of(told: Predictions) -> list[list[str] | None]:
    """The class of each text, or all labels that hold; None of values."""
    if told.probabilities is None:
        return [None] * len(told)
    return [label if told.has_lists else [label] for label in told.labels]


def what_is_predicted(answer: Asked) -> str:
    """A sentence on what a run learned to answer."""
    if answer.kind == "value":
        return "It predicts a value."
    names = ", ".join(answer.names[:_SHOWN]) + (", …" if len(answer.names) > _SHOWN else "")
    return f"It predicts {'which of these hold:' if answer.kind == 'several' else 'one of'} {names}."


def source_of(folder: Path, record: Run, weights: Path, tokenizer_sha256: str | None) -> Source:
    """The files of a finished run.

    Args:
        weights: the file that the model was read from.
        tokenizer_sha256: None for a model without a tokenizer.
    """
    return Source(
        experiment=record.experiment,
        task=record.task,
        folder=folder.resolve().name,
        seed=record.settings.seed,
        checkpoint=weights.name,
        checkpoint_sha256=sha256_of(weights),
        tokenizer_sha256=tokenizer_sha256,
    )
