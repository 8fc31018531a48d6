"""A finished fine-tuning run that answers texts."""

from collections.abc import Sequence

from nystromformer.errors import UserError
from nystromformer.report.explain_run import explain_text
from nystromformer.serve.answers import Answer, Choice
from nystromformer.tasks.finetuning.encoded import literal
from nystromformer.tasks.prediction.loaded import LoadedRun

_SHOWN = 10
"""Classes of an answer, at most."""


class RunModel:
    """What a run predicts; implements Model.

    Raises:
        UserError: it learned from pairs of texts.
    """

    def __init__(self, run: LoadedRun) -> None:
        if run.recipe.is_of_pairs:
            raise UserError(
                f"{run.folder}: it was trained on pairs of texts, and the service accepts only single texts: use "
                "run_predict.py"
            )
        self.name = f"{run.result.experiment}, {run.result.task}"
        self.does = f"It predicts {_what(run)}."
        self.longest = run.result.length
        in_windows = run.recipe.cut.rule == "windows"
        self.window = (run.rows_at_a_time(self.longest), self.longest) if in_windows else None
        self._run = run
        self._tokenizer = literal(run.tokenizer)
        self._tokenizer.no_truncation()
        run.model  # noqa: B018  # read now, and not when the first one asks

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        examples = self._run.encode(texts)
        told = self._run.told(self._run.scores(examples))
        whole = [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        answers = []
        for number, label in enumerate(told.labels):
            if told.probabilities is None:
                choices = [Choice("value", None, float(label))]
            else:
                chances = told.probabilities[number].tolist()
                named = zip(told.names, chances, strict=True)
                choices = [Choice(name, chance) for name, chance in sorted(named, key=lambda each: -each[1])[:_SHOWN]]
            read = int(examples.tokens[number])
            is_cut = self._run.recipe.cut.rule != "windows" and whole[number] > self.longest
            answers.append(Answer(choices, read, is_cut, int(examples.rows[number])))
        return answers

    def explain(self, text: str) -> str | None:
        try:
            return explain_text(self._run, text).page
        except UserError as error:
            raise ValueError(str(error)) from None


def _what(run: LoadedRun) -> str:
    answer = run.recipe.answer
    if answer.kind == "value":
        return "a value"
    names = ", ".join(answer.names[:_SHOWN]) + (", …" if len(answer.names) > _SHOWN else "")
    return f"which of these hold: {names}" if answer.kind == "several" else f"one of {names}"
