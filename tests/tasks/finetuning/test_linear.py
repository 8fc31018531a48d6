"""Linear models: optima of their losses; on words kept, told and served; on the vectors of a frozen encoder."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning import copy_of, finetune, made_rows, write_table
from small import run_here

from nystromformer.model import ClassificationModel
from nystromformer.prediction.predictor import Predictor
from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning.baselines import constants
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.linear import choose, fit, fit_words, put_head
from nystromformer.tasks.finetuning.target import Classes, Ordered, Pooled, Several, Value, vectors_of
from nystromformer.training.checkpoint import read_checkpoint

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.standard_normal((60, 5))
CLASSES, STRENGTH = RANDOM.integers(0, 3, 60), 2.0
SETS = RANDOM.integers(0, 2, (60, 3)).astype(np.float32)
LEARNED: dict[str, tuple[Pooled, Labels]] = {
    "classes": (Classes(3), CLASSES),
    "weighted": (Classes(3, weights=(1.0, 5.0, 2.0)), CLASSES),
    "two": (Classes(2), CLASSES % 2),
    "value": (Value(), VECTORS[:, 0].astype(np.float32)),
    "several": (Several(3), SETS),
    "weighted labels": (Several(3, weights=(1.0, 4.0, 0.5)), SETS),
    "ordered": (Ordered(3), CLASSES),
    "weighted order": (Ordered(3, weights=(1.0, 5.0, 2.0)), CLASSES),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_fit_is_the_optimum_of_the_tasks_loss(name: str) -> None:
    """An oracle by gradients: those of the loss with its penalty are zero there."""
    target, labels = LEARNED[name]
    found = fit(target, (VECTORS, labels), STRENGTH)
    weight_CF, bias_C = (torch.from_numpy(x).requires_grad_() for x in found)
    scores_nC = torch.from_numpy(VECTORS) @ weight_CF.T + bias_C
    given_ = torch.from_numpy(labels)
    loss = target.losses(scores_nC, given_.double() if given_.is_floating_point() else given_).sum()
    # Values have half of it; of one score in the place of two, the square of half of it and its opposite counts.
    share = {"value": 1.0, "classes": 0.5, "weighted": 0.5}.get(name, 0.25)
    loss = loss + share * STRENGTH * weight_CF.square().sum()
    gradients = torch.autograd.grad(loss, [weight_CF, bias_C])
    kept = slice(1, None) if name == "two" else slice(None)  # its first class has no weights
    for gradient in gradients:
        assert gradient[kept].abs().max() < 1e-2


def test_classes_that_no_row_is_of_have_no_chance() -> None:
    for labels in (3 * (CLASSES % 2), np.full(60, 1)):
        weight_CF, bias_C = fit(Classes(5), (VECTORS, labels), 1.0)
        chances = torch.from_numpy(VECTORS @ weight_CF.T + bias_C).softmax(1)
        assert {number for number in range(5) if chances[:, number].max() > 1e-6} == set(labels.tolist())


def test_the_penalty_is_chosen_on_rows_held_out() -> None:
    # Labels by chance: whatever is learned from them is wrong of other rows, so that the strongest penalty is best.
    chance, planted = RANDOM.integers(0, 2, (2, 60)), (VECTORS[:, 0] > 0).astype(np.int64)
    strengths = (1e4, 1.0, 1e-3, 1e-6)
    assert choose(Classes(2), (VECTORS, chance[0]), (VECTORS, 1 - chance[0]), strengths)[0] == 1e4
    strength, (weight_CF, bias_C) = choose(Classes(2), (VECTORS, planted), (VECTORS, planted), strengths)
    assert strength == 1e-6
    assert ((VECTORS @ weight_CF.T + bias_C).argmax(1) == planted).all()


def test_words_see_pairs_of_words() -> None:
    """Which of two words comes first, behind many others."""

    def late(count: int, seed: int) -> Texts:
        labels = np.array(random.Random(seed).choices([0, 1], k=count))
        ends = ("query key value", "key query value")
        return Texts("late", [f"{' '.join(['row'] * 60)} {ends[k]}" for k in labels], None, labels)

    other = late(60, 1)
    assert (fit_words(Classes(2), late(100, 0)).scores(other).argmax(1) == other.labels).all()


@pytest.mark.parametrize("second", [None, ["!"] * 20])
def test_without_words_it_is_the_majority(second: list[str] | None, recwarn: pytest.WarningsRecorder) -> None:
    train = Texts("none", ["?"] * 20, second, np.array([0] * 15 + [1] * 5))
    assert not fit_words(Classes(2), train).scores(train).argmax(1).any()
    assert not recwarn.list


def test_constants() -> None:
    """The mean of values; of questions what is more frequent of each, of ordered classes the median, too."""
    assert constants(np.float32([1, 2, 4.5]), Value()) == {"mean value": 2.5}
    (several,) = constants(np.float32([[1, 0], [1, 0], [0, 0]]), Several(2)).values()
    assert (several > 0).tolist() == [True, False]
    ordered = constants(np.array([0, 0, 0, 1, 1, 2, 2]), Ordered(3))
    assert {name: int((scores > 0).sum()) for name, scores in ordered.items()} == {
        "median class": 1,
        "majority class": 0,
    }
    (classes,) = constants(np.array([0, 2, 2, 1]), Classes(4)).values()
    assert classes.tolist() == [0.25, 0.25, 0.5, 0]


def documents(folder: Path) -> Documents:
    train = write_table(folder / "rows.csv", ("body", "label"), made_rows(60))
    test = write_table(folder / "later.csv", ("body", "label"), made_rows(30, seed=1))
    return Documents(Question(str(train), "body", "label", str(test), validation="0.25"))


def test_words_are_told_before_the_first_epoch_and_predict_without_the_encoder(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    experiment = copy_of(source, tmp_path / "experiment")
    documents(tmp_path)
    place = ("--model", experiment.folder, "--train", tmp_path / "rows.csv", "--test", tmp_path / "later.csv")
    flags = ("--text", "body", "--label", "label", "--validation", 0.25, "--epoch", 1, "--device", "cpu")
    said, shown = [], []
    for length in (16, 32):
        caplog.clear()
        assert run_here(monkeypatch, "code/run_classify.py", *place, *flags, "--length", length) == 0
        lines, out = caplog.messages, capsys.readouterr().out
        (bar,) = [number for number, line in enumerate(lines) if "baseline: tf-idf" in line]
        (first,) = [number for number, line in enumerate(lines) if "parameters, cpu" in line]
        assert bar < first
        said.append(lines[bar])
        shown.append([line.split() for line in out.splitlines() if line.startswith(("tf-idf", "majority class"))])
    assert said[0] == said[1], "the same for every encoder"
    assert shown[0] == shown[1]
    assert len(shown[0]) == 2


def frozen(experiment: Experiment, task: Documents) -> Run:
    (run,) = finetune(experiment, task, freeze=True, length=32).results
    return run


def test_a_frozen_run_keeps_the_encoder_and_predicts_by_the_head(
    experiment: Experiment, source: Path, tmp_path: Path
) -> None:
    task = documents(tmp_path)
    run = frozen(experiment, task)
    weights = read_checkpoint(run.folder / "cp-0000.model")["model"]
    before = read_checkpoint(source / "model" / "cp-0001.model")["model"]
    encoder = [name for name in weights if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(weights[name], before[name]) for name in encoder)
    assert frozen(experiment, task).epochs == run.epochs, "done already"
    assert read_run(run.folder) == run
    # The loaded run says what the head says of the vectors, whose tanh leaves them as they are.
    loaded = Predictor(run.folder, "cpu").network
    head = loaded.model.head
    examples = loaded.encode([text for text, _ in made_rows(6, seed=2)])
    with torch.no_grad():
        vectors = vectors_of(loaded.model, examples.batch(np.arange(6)))
        own = vectors @ (head.classifier.weight @ head.dense.weight).T + head.classifier.bias
    torch.testing.assert_close(torch.from_numpy(loaded.scores(examples).scores), own, rtol=1e-2, atol=1e-3)
    assert run.test_metrics.keys() >= {"accuracy"}
    (other,) = finetune(experiment, task, epoch=1).results
    assert other.folder != run.folder
    assert other.family != run.family


def test_the_head_is_of_vectors_as_they_are(experiment: Experiment) -> None:
    """Far from the origin and of different scales, it says what it says of scaled ones."""
    width = experiment.config.model.transformer_dim
    spread = RANDOM.standard_normal((60, width)) * np.logspace(-2, 0, width)
    vectors, labels = 2 + spread, (spread[:, 0] > 0).astype(np.int64)
    model = ClassificationModel(experiment.config.model, 2).eval()
    put_head(model, Classes(2), (vectors, labels), (vectors, labels))
    with torch.no_grad():
        logits = model.logits(torch.from_numpy(vectors).float())
    assert (logits.argmax(1).numpy() == labels).all(), "the first number tells them apart"


@pytest.mark.parametrize("flags", ["--lr 1e-4", "--seed 0,1", "--objective auroc", "--from_scratch"])
def test_what_freeze_does_not_stand_beside(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: str
) -> None:
    place = ("--model", experiment.folder, "--train", "t.csv", "--text", "body", "--label", "label", "--freeze")
    assert run_here(monkeypatch, "code/run_classify.py", *place, *flags.split()) == 2
    assert "expected no --" in capsys.readouterr().err
