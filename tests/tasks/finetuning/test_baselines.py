"""What guessers without a network reach."""

import logging
import random
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from records import a_run
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from small import small_config, write_experiment
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.data.tokenizer import train_tokenizer
from nystromformer.runs.figures import Spread
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.metrics import score
from nystromformer.tasks.documents.targets import Ordered, Several
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning import sweep as sweep_module
from nystromformer.tasks.finetuning.bag_of_words import (
    STRENGTHS,
    Regression,
    Sample,
    features_of,
    samples,
)
from nystromformer.tasks.finetuning.baselines import text_baselines
from nystromformer.tasks.finetuning.definition import Definition, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts, literal
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.sweep import Finetuned
from nystromformer.tasks.finetuning.target import Candidates, Classes, Target, Value, accuracy
from nystromformer.tasks.finetuning.words import features, vectorizers_of

WORDS = ["landmark", "segment", "token", "matrix", "inverse", "softmax", "query", "key", "value", "row"]
TOKENIZER: Tokenizer = train_tokenizer([" ".join(WORDS)] * 20, 400)


def encoded(first: list[str], labels: Any, second: list[str] | None = None, name: str = "made-up") -> EncodedTexts:
    values: Labels | None = None if labels is None else np.asarray(labels)
    return EncodedTexts(Texts(name, first, second, values), TOKENIZER, 200, True)


def sentences(count: int, seed: int = 0) -> list[str]:
    randomness = random.Random(seed)
    return [" ".join(randomness.choices(WORDS, k=randomness.randint(1, 12))) for _ in range(count)]


def planted(count: int, seed: int) -> EncodedTexts:
    texts = sentences(count, seed)
    return encoded(texts, [int("softmax" in text) for text in texts])


def accuracy_of(scores: Tensor, labels: Tensor) -> dict[str, float]:
    return {"accuracy": accuracy(scores, labels)}


def error_of(scores: Tensor, labels: Tensor) -> dict[str, float]:
    return {"error": float((scores[:, 0] - labels).double().square().mean())}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.lists(st.integers(0, 2), min_size=1, max_size=9))
@settings(max_examples=30)
def test_the_majority_class_is_counted_in_train(train: list[int], validation: list[int]) -> None:
    counts = sorted(map(train.count, range(3)))
    assume(counts[1] < counts[2])
    data = [encoded(["row"] * len(labels), labels) for labels in (train, validation)]
    measured = text_baselines(data[0], {"": data[1]}, Classes(3), accuracy_of, [0])
    most = max(range(3), key=train.count)
    assert measured["majority class"]["accuracy"].mean == pytest.approx(validation.count(most) / len(validation))
    # Rows of one and the same token say nothing beyond their classes.
    assert measured["bag of words"] == measured["tf-idf"] == measured["majority class"]


def test_the_mean_value_is_that_of_train() -> None:
    train, validation = [1.0, 2.0, 4.5], [0.0, 5.0]
    data = [encoded(["row"] * len(labels), np.float32(labels)) for labels in (train, validation)]
    measured = text_baselines(data[0], {"": data[1]}, Value(), error_of, [0])
    assert list(measured) == ["mean value", "bag of words", "tf-idf"]
    assert measured["mean value"]["error"].mean == pytest.approx((2.5**2 + 2.5**2) / 2)


def test_a_planted_word_is_found() -> None:
    measured = text_baselines(
        planted(200, 0), {"": planted(100, 1), "_other": planted(50, 2)}, Classes(2), accuracy_of, [0]
    )
    assert measured["bag of words"]["accuracy"].mean == 1.0
    assert measured["bag of words"]["accuracy_other"].mean == 1.0
    assert measured["majority class"]["accuracy"].mean < 0.8


def test_words_in_common_are_found() -> None:
    def pairs(count: int, seed: int) -> EncodedTexts:
        randomness = random.Random(seed)
        first = randomness.choices(WORDS, k=count)
        second = [word if randomness.random() < 0.5 else randomness.choice(WORDS) for word in first]
        return encoded(first, [int(a == b) for a, b in zip(first, second, strict=True)], second)

    measured = text_baselines(pairs(300, 0), {"": pairs(100, 1)}, Classes(2), accuracy_of, [0])
    assert measured["bag of words"]["accuracy"].mean == 1.0


def test_which_sentence_has_a_word_is_seen() -> None:
    def pairs(count: int, seed: int) -> EncodedTexts:
        labels = random.Random(seed).choices([0, 1], k=count)
        order = [("query", "key"), ("key", "query")]
        return encoded([order[k][0] for k in labels], labels, [order[k][1] for k in labels])

    measured = text_baselines(pairs(100, 0), {"": pairs(50, 1)}, Classes(2), accuracy_of, [0])
    assert measured["bag of words"]["accuracy"].mean == 1.0


def test_questions_have_a_regression_each() -> None:
    """Of labels that words tell all are right; the constant has what is more frequent of each, of ordered classes the
    median of those to train on.
    """

    def labels_of(texts: list[str]) -> np.ndarray:
        return np.array([["softmax" in text, "matrix" in text, False] for text in texts], dtype=np.float32)

    texts, others = sentences(300), sentences(100, 1)
    data = [encoded(texts, labels_of(texts)), encoded(others, labels_of(others))]

    def shares(scores: Tensor, labels: Tensor) -> dict[str, float]:
        assert scores.shape == labels.shape
        assert scores.isfinite().all()
        return {f"right_{at}": float(((scores > 0) == (labels > 0)).double().mean(0)[at]) for at in range(3)}

    measured = text_baselines(data[0], {"": data[1]}, Several(3), shares, [0, 1])
    assert list(measured) == ["each label's majority", "bag of words", "tf-idf"]
    assert [measured["bag of words"][f"right_{at}"].mean for at in range(3)] == [1.0, 1.0, 1.0]
    for at in range(3):
        most = labels_of(texts)[:, at].mean() > 0.5
        right = float((labels_of(others)[:, at] == most).mean())
        assert measured["each label's majority"][f"right_{at}"].mean == pytest.approx(right)

    grades = [np.array([min(len(text.split()) // 3, 3) for text in each]) for each in (texts, others)]
    answer = Answer("ordered", ("0", "1", "2", "3"))
    data = [encoded(each, grade) for each, grade in zip((texts, others), grades, strict=True)]
    found = text_baselines(data[0], {"": data[1]}, Ordered(4), partial(score, answer), [0])
    assert list(found) == ["median class", "majority class", "bag of words", "tf-idf"]
    commonest = int(np.bincount(grades[0]).argmax())
    assert commonest != int(np.sort(grades[0])[len(texts) // 2]), "else they are one"
    assert found["majority class"]["accuracy"].mean == pytest.approx(float((grades[1] == commonest).mean()))
    median = int(np.sort(grades[0])[len(texts) // 2])
    assert found["median class"]["accuracy"].mean == pytest.approx(float((grades[1] == median).mean()))
    assert found["median class"]["kappa"].mean == 0.0
    assert found["bag of words"]["kappa"].mean > 0.5


def test_tfidf_sees_pairs_of_words_and_what_a_row_has_no_room_for() -> None:
    """Which of two words comes first, behind more tokens than a row takes; a bag of the row's tokens knows neither."""

    def late(count: int, seed: int) -> EncodedTexts:
        labels = random.Random(seed).choices([0, 1], k=count)
        ends = ("query key value", "key query value")
        texts = Texts("late", [f"{' '.join(['row'] * 60)} {ends[k]}" for k in labels], None, np.asarray(labels))
        return EncodedTexts(texts, TOKENIZER, 50, True)

    measured = text_baselines(late(100, 0), {"": late(60, 1)}, Classes(2), accuracy_of, [0])
    assert measured["tf-idf"]["accuracy"].mean == 1.0
    assert measured["bag of words"] == measured["majority class"]


def test_tfidf_is_scikit_learns_of_each_text_of_a_pair() -> None:
    first, second = sentences(20), sentences(20, 1)
    train, other = Texts("train", first, second), Texts("other", second, first)
    vectorizers = vectorizers_of(train)
    parts = [TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts) for texts in (first, second)]
    for rows, texts in ((train, (first, second)), (other, (second, first))):
        expected = np.hstack([part.transform(each).toarray() for part, each in zip(parts, texts, strict=True)])
        assert features(vectorizers, rows).toarray() == pytest.approx(10 * expected)


@pytest.mark.parametrize("second", [None, ["!"] * 20])
def test_tfidf_of_no_words_is_the_majority(second: list[str] | None) -> None:
    train = encoded(["?"] * 20, [0] * 15 + [1] * 5, second)
    measured = text_baselines(train, {"": train}, Classes(2), accuracy_of, [0])
    assert measured["tf-idf"]["accuracy"].mean == 0.75


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=6), st.booleans())
def test_bags_are_sets_of_tokens(rows: list[tuple[str, str]], pair: bool) -> None:
    examples = encoded([a for a, _ in rows], [0] * len(rows), [b for _, b in rows] if pair else None)

    def words(text: str) -> set[int]:
        return set(literal(TOKENIZER).encode(text, add_special_tokens=False).ids)

    start = examples.tokens_of(0)[0]
    for number, (first, second) in enumerate(rows):
        a, b = words(first), words(second) if pair else set()
        expected = {3 * token + block for block, bag in enumerate((a | {start}, b, a & b)) for token in bag}
        found = features_of(examples.tokens_of(number))
        assert sorted(found) == sorted(expected)
    sample, (again,) = samples(examples, [examples], examples.labels, 1)
    assert (sample.x_nF.toarray() == again.toarray()).all()
    assert set(np.unique(sample.x_nF.data)) == {1.0}
    assert sample.x_nF.getnnz(1)[-1] == len(found), "each once"


def sample_of(classes: int | None) -> Sample:
    labels_n = np.random.default_rng(0).integers(classes or 3, size=40)
    texts = encoded(sentences(40, 3), labels_n if classes else labels_n.astype(np.float32))
    return samples(texts, [], texts.labels, classes)[0]


def weights_of(regression: Regression, classes: int | None) -> tuple[Tensor, Tensor]:
    """(F, C) and (C,). Of two classes, for which there is one vector of weights, half of it and its opposite."""
    weights_FC = torch.tensor(regression.model.coef_).reshape(-1, regression.model.n_features_in_).T
    bias_C = torch.tensor(regression.model.intercept_).reshape(-1)
    if classes == 2:
        weights_FC, bias_C = (torch.cat([-x / 2, x / 2], -1) for x in (weights_FC, bias_C))
    return weights_FC, bias_C


@pytest.mark.parametrize("strength", [100.0, 0.3])
@pytest.mark.parametrize("classes", [3, 2, None], ids=["classes", "two", "values"])
def test_the_fit_is_the_optimum(classes: int | None, strength: float) -> None:
    data = sample_of(classes)
    weights_FC, bias_C = (x.requires_grad_() for x in weights_of(data.fit(strength), classes))
    # An oracle without sparse matrices or hand-made gradients.
    scores_nC = torch.tensor(data.x_nF.toarray()) @ weights_FC + bias_C
    labels_n = torch.tensor(data.labels_n)
    if classes:
        loss = F.cross_entropy(scores_nC, labels_n, reduction="sum")
    else:
        loss = (scores_nC[:, 0] - labels_n).square().sum() / 2
    loss = loss + strength / 2 * weights_FC.square().sum()
    for gradient in torch.autograd.grad(loss, [weights_FC, bias_C]):
        assert gradient.abs().max() < 1e-4


def test_scores_are_of_the_fit() -> None:
    for classes in (3, 2, None):
        data = sample_of(classes)
        regression = data.fit(3.0)
        weights_FC, bias_C = weights_of(regression, classes)
        scores_nC = torch.tensor(data.x_nF.toarray()) @ weights_FC + bias_C
        expected_nC = scores_nC.softmax(1) if classes else scores_nC
        torch.testing.assert_close(torch.tensor(regression.scores(data.x_nF)), expected_nC)
        labels_n = torch.tensor(data.labels_n)
        loss = F.cross_entropy(scores_nC, labels_n) if classes else F.mse_loss(scores_nC[:, 0], labels_n.double())
        assert regression.loss(data) == pytest.approx(float(loss))


def test_classes_that_no_row_is_of_have_no_chance() -> None:
    data = sample_of(2)
    for labels_n in (3 * data.labels_n, np.full(40, 1)):
        scores_nC = Sample(data.x_nF, labels_n, 5).fit(1.0).scores(data.x_nF)
        assert scores_nC.shape == (40, 5)
        assert set(np.flatnonzero(scores_nC.sum(0))) == set(labels_n)
        np.testing.assert_allclose(scores_nC.sum(1), 1)


def test_ridge_regression_solves_the_normal_equations() -> None:
    data = sample_of(None)
    x_nF = torch.cat([torch.tensor(data.x_nF.toarray()), torch.ones(40, 1, dtype=torch.float64)], 1)
    penalty_FF = 3.0 * torch.eye(x_nF.shape[1], dtype=torch.float64)
    penalty_FF[-1, -1] = 0
    solved = torch.linalg.solve(x_nF.T @ x_nF + penalty_FF, x_nF.T @ torch.tensor(data.labels_n)[:, None].double())
    weights_FC, bias_C = weights_of(data.fit(3.0), None)
    torch.testing.assert_close(torch.cat([weights_FC, bias_C[None]]), solved, atol=1e-3, rtol=0)


def test_the_penalty_is_chosen_on_rows_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # Labels by chance: whatever is learned from them is wrong of other rows, so that the strongest penalty is best.
    texts = sentences(300)
    chance = encoded(texts, random.Random(7).choices([0, 1], k=300))
    used: list[float] = []
    fit = Sample.fit

    def noted(self: Sample, strength: float) -> Regression:
        if len(self) == 300:
            used.append(strength)
        else:
            assert len(self) == 270
        return fit(self, strength)

    monkeypatch.setattr(Sample, "fit", noted)
    text_baselines(chance, {"": chance}, Classes(2), accuracy_of, [0])
    assert used[0] >= 300
    used.clear()
    text_baselines(planted(300, 0), {"": planted(10, 1)}, Classes(2), accuracy_of, [0, 1])
    assert set(used) == {STRENGTHS[-1]}


def test_seeds_give_a_deviation_and_the_same_again() -> None:
    texts = sentences(60)
    train = encoded(texts, random.Random(3).choices([0, 1], k=60))
    several = text_baselines(train, {"": planted(30, 1)}, Classes(2), accuracy_of, [0, 1, 2])
    assert several["bag of words"]["accuracy"].deviation is not None
    assert several["majority class"]["accuracy"].deviation is None
    assert several == text_baselines(train, {"": planted(30, 1)}, Classes(2), accuracy_of, [0, 1, 2])
    assert (
        text_baselines(train, {"": train}, Classes(2), accuracy_of, [5])["bag of words"]["accuracy"].deviation is None
    )


def test_the_deviation_is_that_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, chance = sentences(60), random.Random(3)
    noisy = [int("softmax" in text) ^ int(chance.random() < 0.2) for text in texts]
    train, validation = encoded(texts, noisy), planted(200, 1)
    fitted: list[dict[int, int]] = []
    fit = Sample.fit

    def noted(self: Sample, strength: float) -> Regression:
        if len(self) == 60 and set(self.x_nF.data) == {1.0}:
            # Which rows it is of, by their features and label; how often each.
            parts = np.column_stack([self.x_nF.toarray(), self.labels_n]).tolist()
            fitted.append(Counter(map(hash, map(tuple, parts))))
        return fit(self, strength)

    monkeypatch.setattr(Sample, "fit", noted)
    accuracy_spread = text_baselines(train, {"": validation}, Classes(2), accuracy_of, [0, 1, 2])["bag of words"][
        "accuracy"
    ]
    (whole,) = {tuple(sorted(rows.items())) for rows in fitted if set(rows.values()) == {1}} or {()}
    resamples = [rows for rows in fitted if len(rows) < 50]
    assert len(resamples) == 3
    assert len({tuple(sorted(rows.items())) for rows in resamples}) == 3
    known = {row for row, _ in whole}
    assert all(set(rows) <= known and sum(rows.values()) == 60 for rows in resamples)
    assert accuracy_spread.deviation is not None
    assert accuracy_spread.deviation > 0
    monkeypatch.undo()
    single = text_baselines(train, {"": validation}, Classes(2), accuracy_of, [1])["bag of words"]["accuracy"]
    assert accuracy_spread.mean == single.mean, "of all rows, which the resamples are not"


@given(st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=6), st.data())
def test_rows_are_taken_in_any_order_and_repeatedly(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    whole = Sample(csr_matrix(np.array(rows, dtype=np.float64)), np.arange(len(rows)), None)
    taken = whole.take(np.array(chosen, dtype=np.int64))
    assert len(taken) == len(chosen)
    assert taken.x_nF.toarray().tolist() == [rows[number] for number in chosen]
    assert taken.labels_n.tolist() == chosen


def test_tokens_that_train_has_not_are_left_out() -> None:
    train, usual = planted(100, 0), planted(30, 1)
    strange = encoded([f"{text} zq" for text in usual.texts.first], usual.labels)
    found = [{f for n in range(len(x)) for f in features_of(x.tokens_of(n))} for x in (strange, train)]
    assert not found[0] <= found[1]
    bag = text_baselines(train, {"": usual, "_strange": strange}, Classes(2), accuracy_of, [0])["bag of words"]
    assert bag["accuracy"] == bag["accuracy_strange"]


def test_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    text_baselines(planted(20, 0), {"": planted(5, 1)}, Classes(2), accuracy_of, [0])
    assert not recwarn.list


class Other:
    """Examples that are no texts."""


def shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: Target, train: Any, wanted: bool
) -> tuple[int | str | None, str]:
    """What the command prints after a sweep of two finished runs."""
    result = a_run(values=(0.25,), rows={"train": 100, "validation": 40}, batch_size=8, learning_rate=1e-3)
    splits = Splits(train, {"": train})
    monkeypatch.setattr(sweep_module, "run_sweep", lambda _: Finetuned([result], splits=splits))
    metrics = accuracy_of if isinstance(target, Classes) else error_of
    named = {"name": "made-up", "target": target, "metrics": metrics, "check": lambda: None, "keeps_words": False}
    definition = cast(Definition, SimpleNamespace(**named, rules=lambda *_: {}))
    lines: list[str] = []
    sweep = Sweep((8,), (1e-3,), (0, 1), 1, baselines=wanted)
    setup = SimpleNamespace(experiment=Experiment(folder, small_config()), definition=definition, sweep=sweep)
    monkeypatch.setattr(sweep_module, "open_sweeps", lambda *_: [setup])
    with pytest.raises(SystemExit) as exit_info:
        sweep_module.run_sweeps(write_experiment(folder), [definition], sweep, "cpu", lines.append)
    return exit_info.value.code, "\n".join(lines)


def test_the_table_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, text = shown(tmp_path, monkeypatch, Classes(2), planted(100, 0), wanted=True)
    assert not status
    bag = next(line for line in text.splitlines() if line.startswith("bag of words"))
    assert bag.split()[3:5] == ["100.0", "±"]
    row = next(line for line in text.splitlines() if line.split()[:2] == ["8", "0.001"])
    assert row.split()[-2:] == ["25.0", "<"], "further below than 40 rows explain"
    assert "majority class" in text
    assert "≈ within noise of a baseline" in text
    assert max(map(len, text.splitlines())) <= 100
    status, text = shown(tmp_path, monkeypatch, Classes(2), planted(100, 0), wanted=False)
    assert "25.0" in text
    assert "bag of words" not in text


def test_values_have_a_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = encoded(sentences(20), np.arange(20, dtype=np.float32))
    assert "mean value" in shown(tmp_path, monkeypatch, Value(), train, wanted=True)[1]


def test_other_examples_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        status, text = shown(tmp_path, monkeypatch, Candidates(), Other(), wanted=True)
    assert not status
    assert "25.0" in text
    assert caplog.messages.count("made-up: there are no baselines for this task") == 1


def test_a_single_seed_prints_without_a_deviation() -> None:
    measured = text_baselines(planted(30, 0), {"": planted(10, 1)}, Classes(2), accuracy_of, [0])
    assert measured["bag of words"]["accuracy"] == Spread(1.0, None)
