"""One linear layer over an encoder's pooled vectors and the scores of a regression on words: what the stage `combined`
of tables.py starts.
"""

from pathlib import Path

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from nystromformer import studies
from nystromformer.runs.record import find_runs
from nystromformer.tasks.documents.answer import Answer, numbers_of
from nystromformer.tasks.documents.metrics import MAIN, score
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.source import Rows, open_place, read_rows
from nystromformer.tasks.documents.targets import target_of
from nystromformer.tasks.finetuning.baselines import learned_by
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.frozen import choose_head
from nystromformer.tasks.finetuning.words import fit_words
from nystromformer.tasks.prediction.loaded import Embedding, load_run, load_words

FOLDS = 5


def main(experiment: Path, train: Path, test: Path, out: Path) -> None:
    """Write what the combination reaches on the test rows, beside what each part does."""
    (record,) = find_runs(experiment / "model", "classify")
    run, words = load_run(record.folder, "cpu"), load_words(record.folder)
    answer = run.recipe.answer
    texts, labels = _read(train, run.recipe.text[0], run.recipe.label[0], answer)
    asked, right = _read(test, run.recipe.text[0], run.recipe.label[0], answer)
    encoder, target = Embedding(run.folder, run.task, run), target_of(answer)
    vectors, of_asked = (encoder.scores(encoder.encode(each)).numpy() for each in (texts, asked))
    known, told = _unseen(texts, labels, answer), words.scores(words.encode(asked)).numpy()
    held = np.arange(len(texts)) % 10 == 0

    def reached(features: NDArray[np.float32], others: NDArray[np.float32]) -> dict[str, float]:
        rows = ((torch.from_numpy(features[part]), labels[part]) for part in (~held, held))
        head = choose_head(target, answer.outputs, *rows)
        scores = torch.from_numpy(others).double() @ head.weight_CE.T + head.bias_C
        return score(answer, scores.float(), torch.from_numpy(right))

    studies.write_figures(
        out,
        main_metric=MAIN[answer.kind],
        metrics=reached(np.hstack([vectors, known]), np.hstack([of_asked, told])),
        vectors=reached(vectors, of_asked),
        words=score(answer, torch.from_numpy(told), torch.from_numpy(right)),
    )


def _read(path: Path, text: str, label: str, answer: Answer) -> tuple[list[str], Labels]:
    table = open_place(str(path), None, Path(), "rows")
    rows: Rows = read_rows(table, Question("rows", str(path), text, label, None), labelled=True)
    assert rows.labels is not None
    return [each[0] for each in rows.texts], numbers_of(answer, rows.labels)


def _unseen(texts: list[str], labels: Labels, answer: Answer) -> NDArray[np.float32]:
    """Scores of words of each row, by a regression of rows of other folds."""
    found = np.zeros((len(texts), answer.outputs), dtype=np.float32)
    fold = np.arange(len(texts)) % FOLDS
    for number in range(FOLDS):
        inner, outer = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        own = Texts("rows", [texts[at] for at in inner], None, labels[inner])
        learned = learned_by(own, target_of(answer))  # type: ignore[arg-type]  # texts have labels, as examples do
        found[outer] = fit_words(own, *learned).scores(Texts("rows", [texts[at] for at in outer]))
    return found


if __name__ == "__main__":
    typer.run(main)
