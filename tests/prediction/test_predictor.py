"""Predictor: the run's own predictions again, however the rows are divided into calls."""

import csv
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from finetuning import copy_of, made_rows

import nystromformer
from nystromformer.attention import Attention
from nystromformer.errors import UserError
from nystromformer.prediction import predictor
from nystromformer.prediction.explain import explain_text

TEXTS = [text for text, _ in made_rows(24, most=60)]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """To the bit."""
    return list(one) == list(other) and all(
        np.asarray(one[name]).tolist() == np.asarray(other[name]).tolist() for name in one
    )


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


@pytest.mark.parametrize(("kind", "split"), [("SST-2", "dev.tsv"), ("STS-B", "dev.tsv"), ("imdb", "test.tsv")])
def test_a_run_on_a_data_set_predicts_as_it_did(
    folders: Callable[[str], Path], top: Path, kind: str, split: str
) -> None:
    """By the tokenizer beside its weights; of pairs as a table; breaks of reviews are taken out."""
    folder, texts = folders(kind), {}
    if kind == "imdb":
        files = [next((top / "aclImdb/test" / label).glob(f"{n}_*.txt")) for label in ("neg", "pos") for n in range(10)]
        texts["text"] = [file.read_text() for file in files]
    else:
        with (top / "glue" / kind / split).open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        names = ("sentence",) if kind == "SST-2" else ("sentence1", "sentence2")
        texts = {name: [row[name] for row in rows] for name in names}
    predict = nystromformer.Predictor(folder, "cpu")
    found = predict(texts)
    with (folder / "predictions" / split).open() as file:
        expected = list(csv.DictReader(file, delimiter="\t"))
    for name in expected[0]:
        if name.startswith("p_") or (name == "prediction" and kind == "STS-B"):
            assert found[name] == pytest.approx([float(row[name]) for row in expected], abs=2e-5)
    if kind == "imdb":
        assert same(predict(["a token<br /><br />of a row"]), predict(["a token of a row"]))
    with pytest.raises(UserError, match=r"expected (pairs|single texts), as in the run's training data, found"):
        predict.network.encode(*[["a text"]] * (1 if kind == "STS-B" else 2))


@pytest.mark.parametrize("kind", ["several", "value"])
def test_batches_of_near_lengths_say_the_same(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Few tokens at a time; many windows of one text in pieces."""
    predict = nystromformer.Predictor(folders(kind), "cpu")
    expected = predict([*TEXTS, TEXTS[0] * 40])
    run = predict.network
    examples = run.encode([*TEXTS, TEXTS[0] * 40])
    assert examples.rows[-1] > 8
    monkeypatch.setattr(predictor, "TOKENS_AT_A_TIME", {"cpu": 100})
    shapes: list[tuple[int, ...]] = []
    hook = run.model.encoder.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    found = predict.results(run.scores(examples))
    hook.remove()
    assert kind == "value" or found["prediction"].tolist() == expected["prediction"].tolist()
    for name in predict.columns if kind == "value" else predict.columns[1:]:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    assert max(rows * width for rows, width in shapes) <= 100


@pytest.mark.parametrize(("kind", "embed"), [("classes", True), ("several", False)])
def test_any_division_says_the_same(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, kind: str, embed: bool
) -> None:
    """But for the last digits; an attention that mixes the rows of a batch gets them one by one."""
    predict = nystromformer.Predictor(folders(kind), "cpu", embed=embed)
    whole = predict(TEXTS)
    numbers = [name for name in whole if name != "prediction"]

    def check() -> None:
        for size in (1, 7):
            parts = joined([predict(TEXTS[start : start + size]) for start in range(0, len(TEXTS), size)])
            for name in numbers:
                np.testing.assert_allclose(parts[name], whole[name], atol=1e-5)

    check()
    attention = next(module for module in predict.network.model.modules() if isinstance(module, Attention))
    held = type(attention).holds.fget(attention)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(attention), "holds", property(lambda self: type(held)(batch=False)))
    del predict.network.has_rows_apart
    rows: list[int] = []
    hook = predict.network.model.encoder.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    check()
    hook.remove()
    assert len(rows) == 2 * len(TEXTS)


def test_tables(folders: Callable[[str], Path]) -> None:
    """Columns as lists or arrays; the id is passed through as it is."""
    folder = folders("classes")
    whole = nystromformer.Predictor(folder, "cpu")(TEXTS)
    keys = np.arange(len(TEXTS))
    table = {"id": keys, "body": np.asarray(TEXTS, dtype=object), "other": TEXTS}
    found = nystromformer.Predictor(folder, "cpu")(table)
    assert found["id"] is keys
    assert same(found, {"id": keys, **whole})
    frame = nystromformer.Predictor(folder, "cpu")(pd.DataFrame({"id": keys, "body": TEXTS}))
    assert same({name: np.asarray(cells) for name, cells in frame.items()}, {"id": keys, **whole})
    with pytest.raises(UserError, match="expected the text columns body, found no body; the table has review"):
        nystromformer.Predictor(folder, "cpu")({"review": TEXTS})
    with pytest.raises(ValueError, match="expected columns of one length, found 2 and 1 cells"):
        nystromformer.Predictor(folder, "cpu")({"body": TEXTS[:2], "id": [1]})


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_an_experiment_embeds(source: Path, tmp_path: Path, pooling: str) -> None:
    """Its encoder's pooled vectors of the whole texts, up to the model's length."""
    folder = copy_of(source, tmp_path / "experiment", f"model.pooling={pooling}").folder
    config = json.loads((folder / "config.json").read_text())
    config["model"]["pooling"] = pooling
    (folder / "config.json").write_text(json.dumps(config))
    predict = nystromformer.Predictor(folder, "cpu", embed=True)
    found = predict({"id": list(range(len(TEXTS))), "text": TEXTS})
    assert list(found) == ["id", "vector", "cut", "unknown_share"]
    alone = joined([predict([text]) for text in TEXTS])
    np.testing.assert_allclose(found["vector"], alone["vector"], atol=1e-5)
    model, tokenizer = nystromformer.from_pretrained(folder)
    assert tokenizer is not None
    for text, vector in zip(TEXTS, found["vector"], strict=True):
        ids = tokenizer.encode(text).ids
        most = config["model"]["max_seq_len"]
        tokens_BN = torch.tensor([ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]])
        with torch.inference_mode():
            hidden_BNE = model.encoder(tokens_BN)
        expected = hidden_BNE[0].mean(0) if pooling == "mean" else hidden_BNE[0, 0]
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_an_experiment_predicts_nothing_and_may_have_no_checkpoint(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the folder of a finished fine-tuning run"):
        nystromformer.Predictor(source, "cpu")(TEXTS)
    experiment = copy_of(source, tmp_path / "experiment")
    (experiment.checkpoints / "cp-0001.model").unlink()
    with pytest.raises(UserError, match="no checkpoint"):
        nystromformer.Predictor(experiment.folder, "cpu", embed=True)(TEXTS)


@pytest.mark.parametrize(("kind", "embed"), [("classes", True), ("several", False), ("value", False)])
def test_no_texts(folders: Callable[[str], Path], kind: str, embed: bool) -> None:
    predict = nystromformer.Predictor(folders(kind), "cpu", embed=embed)
    found = predict([])
    assert tuple(found) == predict.columns
    assert all(len(cells) == 0 for cells in found.values())
    assert not embed or (found["vector"].shape, found["vector"].dtype) == ((0, 16), np.float32)


def test_it_pickles_before_and_after_it_is_opened(folders: Callable[[str], Path]) -> None:
    """The model stays behind; what is unpickled is opened once in a process."""
    predict = nystromformer.Predictor(folders("classes"), "cpu")
    before = pickle.dumps(predict)
    expected = predict(TEXTS)
    after = pickle.dumps(predict)
    assert after == before
    assert len(before) < 1000
    first, second = pickle.loads(before), pickle.loads(after)  # noqa: S301  # its own
    assert same(first(TEXTS), expected)
    assert second.network is first.network


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("one text", "expected a sequence of texts, found one text: put it into a list"),
        ([None], r"texts\[0\]: expected a text, found None"),
        (["a", b"b"], r"texts\[1\]: expected a text, found b'b'"),
        (["a", ""], r"texts\[1\]: expected a text, found an empty one"),
        (["a", "\ud800"], r"texts\[1\]: expected a text, found half of a surrogate pair at 0"),
    ],
)
def test_what_is_no_sequence_of_texts_or_says_nothing(folders: Callable[[str], Path], texts: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        nystromformer.Predictor(folders("classes"), "cpu")(texts)


def test_explaining_ordered_classes(folders: Callable[[str], Path]) -> None:
    """Each class has an explanation, the predicted one by default; their chances' slopes sum to nothing."""
    predict = nystromformer.Predictor(folders("ordered"), "cpu")
    answer = predict.network.recipe.answer
    assert answer.outputs == len(answer.names) - 1
    made = explain_text(predict, TEXTS[2])
    assert made.facts["explained"] == predict(TEXTS[2:3])["prediction"][0] == made.facts["predicted"]
    steep = [explain_text(predict, TEXTS[2], name).steepness_N for name in answer.names]
    np.testing.assert_allclose(sum(steep), 0.0, atol=1e-6)
    assert all(np.abs(each).max() > 1e-5 for each in steep)
