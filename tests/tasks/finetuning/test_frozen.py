"""Heads on encoders that keep their pretrained weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning import copy_of, made_rows, sweep, write_table
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from small import CPU, run_here

from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.documents.divide import Division
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.targets import Ordered, Several, WeightedClasses
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning import frozen
from nystromformer.tasks.finetuning.frozen import choose_head, optimum
from nystromformer.tasks.finetuning.sweep import finetune
from nystromformer.tasks.finetuning.target import Classes, Target, Value
from nystromformer.tasks.prediction.loaded import load_run
from nystromformer.training.archive import read_checkpoint

RANDOM = np.random.default_rng(0)
ROWS, WIDTH, STRENGTH = 60, 5, 0.03
VECTORS = RANDOM.standard_normal((ROWS, WIDTH))
CLASSES, VALUES = RANDOM.integers(0, 3, ROWS), RANDOM.standard_normal(ROWS)


def found(target: Target, outputs: int, labels: torch.Tensor) -> NDArray[np.float64]:
    """Scores of the rows by the optimum."""
    start = torch.zeros(outputs, 1 + WIDTH, dtype=torch.float64)
    both = optimum(target, torch.from_numpy(VECTORS), labels, STRENGTH, start)
    scores: NDArray[np.float64] = VECTORS @ both[:, 1:].numpy().T + both[:, 0].numpy()
    return scores


def test_of_classes_it_is_the_optimum_of_scikit_learn() -> None:
    ours = found(Classes(3), 3, torch.from_numpy(CLASSES))
    theirs = LogisticRegression(C=1 / (ROWS * STRENGTH), tol=1e-10, max_iter=5000).fit(VECTORS, CLASSES)
    np.testing.assert_allclose(torch.from_numpy(ours).softmax(1), theirs.predict_proba(VECTORS), atol=1e-5)


def test_of_weighted_classes_too() -> None:
    weights = (1.0, 5.0, 2.0)
    ours = found(WeightedClasses(3, weights), 3, torch.from_numpy(CLASSES))
    of_rows = dict(enumerate(weights))
    model = LogisticRegression(C=1 / (ROWS * STRENGTH), tol=1e-10, max_iter=5000, class_weight=of_rows)
    theirs = model.fit(VECTORS, CLASSES).predict_proba(VECTORS)
    np.testing.assert_allclose(torch.from_numpy(ours).softmax(1), theirs, atol=1e-5)


def test_of_values_too() -> None:
    ours = found(Value(), 1, torch.from_numpy(VALUES))
    theirs = Ridge(alpha=STRENGTH * ROWS / 2).fit(VECTORS, VALUES).predict(VECTORS)
    np.testing.assert_allclose(ours[:, 0], theirs, atol=1e-5)


@pytest.mark.parametrize("target", [Ordered(3), Several(3)], ids=["ordered", "several"])
def test_of_questions_it_is_one_regression_for_each(target: Ordered | Several) -> None:
    several = torch.from_numpy(RANDOM.integers(0, 2, (ROWS, 3))).double()
    labels = several if isinstance(target, Several) else torch.from_numpy(CLASSES)
    ours = found(target, target.outputs, labels)
    for number, answers in enumerate(target.answers(labels).numpy().T):
        theirs = LogisticRegression(C=1 / (ROWS * STRENGTH), tol=1e-10, max_iter=5000).fit(VECTORS, answers)
        np.testing.assert_allclose(ours[:, number], theirs.decision_function(VECTORS), atol=1e-4)


def test_the_head_is_of_vectors_as_they_are() -> None:
    """Far from the origin and of different scales, it says what it says of scaled ones."""
    vectors = torch.from_numpy(100 + VECTORS * np.array([1e-3, 1, 10, 100, 0]))
    rows = (vectors, (VECTORS[:, 0] > 0).astype(np.int64))
    head = choose_head(Classes(2), 2, rows, rows)
    told = (vectors @ head.weight_CE.T + head.bias_C).argmax(1).numpy()
    assert (told == rows[1]).all(), "the first number tells the classes apart"


def documents(folder: Path, name: str = "rows", label: str = "label") -> Documents:
    table = write_table(folder / f"{name}.csv", ("body", "label"), made_rows(40))
    test = write_table(folder / "later.csv", ("body", "label"), made_rows(12, seed=1))
    return Documents(Question(name, str(table), "body", label, str(test), division=Division(share=0.25)))


def trained(experiment: Experiment, task: Documents) -> Run:
    (run,) = finetune(experiment, task, sweep(freeze=True, length=32), CPU).results
    return run


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts were computed each time, in pieces of eight."""
    counts: list[int] = []
    compute = frozen.vectors_of

    def counted(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        counts.append(len(batch["tokens_BN"]))
        return compute(model, batch)

    monkeypatch.setattr(frozen, "_PIECE", 8)
    monkeypatch.setattr(frozen, "vectors_of", counted)
    return counts


def test_a_run_keeps_the_encoder_and_predicts_by_the_head(
    experiment: Experiment, source: Path, tmp_path: Path, known: list[int]
) -> None:
    run = trained(experiment, documents(tmp_path))
    assert sum(known) == 40, "each text once"
    weights = read_checkpoint(run.folder / "cp-0000.model")["model"]
    before = read_checkpoint(source / "model" / "cp-0001.model")["model"]
    encoder = [name for name in weights if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(weights[name], before[name]) for name in encoder)
    assert trained(experiment, documents(tmp_path)).epochs == run.epochs, "done already"
    assert sum(known) == 40
    # The loaded run says what the head says of the vectors, whose tanh leaves them as they are.
    loaded = load_run(run.folder, "cpu")
    head = loaded.model.head
    examples = loaded.encode([text for text, _ in made_rows(6, seed=2)])
    with torch.no_grad():
        vectors = frozen.vectors_of(loaded.model, examples.batch(np.arange(6)))
        own = vectors @ (head.classifier.weight @ head.dense.weight).T + head.classifier.bias
    torch.testing.assert_close(loaded.scores(examples), own, rtol=1e-2, atol=1e-3)
    assert run.test_metrics.keys() >= {"accuracy"}
    assert read_run(run.folder) == run
    assert [path.name for path in (run.folder.parent / "cache").iterdir()] == [], "the vectors are removed"
    (run.folder / "result.json").unlink()
    assert trained(experiment, documents(tmp_path)).epochs == run.epochs, "by its weights alone"


def test_vectors_that_an_interrupted_command_has_computed_stay(
    experiment: Experiment, tmp_path: Path, known: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = frozen.vectors_of

    def interrupted(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if sum(known) >= 16:
            raise KeyboardInterrupt
        return compute(model, batch)

    with monkeypatch.context() as patched:
        patched.setattr(frozen, "vectors_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(experiment, documents(tmp_path))
    assert not list(experiment.checkpoints.rglob("result.json"))
    run = trained(experiment, documents(tmp_path))
    assert sum(known) == 40
    whole = trained(copy_of(experiment.folder, tmp_path / "another"), documents(tmp_path))
    assert whole.epochs == run.epochs, "the same as at once"


def test_a_frozen_run_is_not_a_trained_one(experiment: Experiment, tmp_path: Path) -> None:
    task = documents(tmp_path)
    frozen_run = trained(experiment, task)
    (run,) = finetune(experiment, task, sweep(epochs=1), CPU).results
    assert run.folder != frozen_run.folder
    assert run.family != frozen_run.family
    assert "frozen" in frozen_run.folder.name


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--lr", "1e-4"), "expected no --lr with it"),
        (("--seed", "0,1"), "expected no --seed with it"),
        (("--patience", 2), "expected no --patience with it"),
        (("--from_scratch",), "expected no --freeze with it"),
    ],
)
def test_what_freeze_does_not_stand_beside(
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[object, ...],
    expected: str,
) -> None:
    table = write_table(tmp_path / "rows.csv", ("body", "label"), made_rows(40))
    place = ("--model", experiment.folder, "--train", table, "--text", "body", "--label", "label")
    assert run_here(monkeypatch, "code/run_classify.py", *place, "--freeze", *flags) == 2
    assert expected in capsys.readouterr().err
    assert not (experiment.checkpoints / "documents").exists()
