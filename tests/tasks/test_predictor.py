"""Predictor: one object for other programs; the same bits for any division of the rows into calls."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from finetuning import copy_of, finetune, made_rows, sweep, write_stsb, write_table
from small import CPU

import nystromformer
from nystromformer.attention import Attention
from nystromformer.errors import UserError
from nystromformer.runs.record import Run
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.documents.divide import Division
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.prediction import predictor as opening
from nystromformer.tasks.prediction.loaded import LoadedRun, load_run

KINDS = ("classes", "several", "value", "ordered")
TEXTS = [text for text, _ in made_rows(24, most=60)]


@pytest.fixture(scope="module")
def folders(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a finished run of a kind, trained once for all tests; its texts are in windows."""
    top = tmp_path_factory.mktemp("runs")
    experiment = copy_of(source, top / "experiment")
    done: dict[str, Run] = {}

    def task(kind: Any) -> Definition:
        if kind == "pairs":
            return Glue(find_tasks("STS-B")[0], write_stsb(top / "glue"))
        rows = [
            (text, label, f"{len(text.split()) % 4 + 1}", "a;b" if number % 3 else "b")
            for number, (text, label) in enumerate(made_rows(40, most=60))
        ]
        path = write_table(top / f"{kind}.csv", ("body", "label", "count", "sets"), rows)
        label = {"classes": "label", "several": "sets"}.get(kind, "count")
        asked = None if kind == "classes" else kind
        cut, division = Cut("windows", 4), Division(share=0.25)
        return Documents(
            Question(kind, str(path), "body", label, None, separator=";", kind=asked, cut=cut, division=division)
        )

    def folder(kind: str) -> Path:
        if kind not in done:
            (done[kind],) = finetune(experiment, task(kind), sweep(epochs=1), CPU).results
        return Path(done[kind].folder)

    return folder


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """To the bit."""
    return list(one) == list(other) and all(
        np.asarray(one[name]).tolist() == np.asarray(other[name]).tolist() for name in one
    )


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_what_the_run_says(folders: Callable[[str], Path], kind: str) -> None:
    run = load_run(folders(kind), "cpu")
    expected = run.predict(TEXTS)
    found = nystromformer.Predictor(folders(kind), "cpu")(TEXTS)
    assert list(found) == ["prediction", *(f"p_{name}" for name in expected.names)]
    if kind == "value":
        assert found["prediction"].dtype == np.float64
        np.testing.assert_allclose(found["prediction"], expected.labels, atol=1e-5)
        return
    assert found["prediction"].tolist() == expected.labels
    for name, chances in zip(expected.names, expected.probabilities.T, strict=True):  # type: ignore[union-attr]
        assert found[f"p_{name}"].dtype == np.float32
        np.testing.assert_allclose(found[f"p_{name}"], chances, atol=1e-6)


@pytest.mark.parametrize("embed", [False, True], ids=["predictions", "vectors"])
@pytest.mark.parametrize("kind", ["classes", "several"])
def test_any_division_gives_the_same_bits(folders: Callable[[str], Path], kind: str, embed: bool) -> None:
    predict = nystromformer.Predictor(folders(kind), "cpu", embed=embed)
    whole = predict(TEXTS)
    for size in (1, 3, 7, 23):
        parts = [predict(TEXTS[start : start + size]) for start in range(0, len(TEXTS), size)]
        assert same(joined(parts), whole), size
    backwards = predict(TEXTS[::-1])
    assert same({name: cells[::-1] for name, cells in backwards.items()}, whole)


def test_every_batch_has_one_of_a_few_shapes(folders: Callable[[str], Path]) -> None:
    """By which the bits are the same; that of a text in several windows is its own."""
    predict = nystromformer.Predictor(folders("classes"), "cpu")
    shapes: list[tuple[int, ...]] = []
    assert isinstance(predict.finished, LoadedRun)
    predict.finished.model.encoder.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    short = [text for text in TEXTS if len(text.split()) < 10]
    for texts in (short[:1], short, short * 9):
        predict(texts)
    assert len(short) > 1
    assert set(shapes) == {(16, 32)}
    assert len(shapes) > 3


def test_an_attention_that_mixes_rows_gets_them_one_by_one(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = nystromformer.Predictor(folders("classes"), "cpu")
    assert isinstance(predict.finished, LoadedRun)
    model = predict.finished.model
    attention = next(module for module in model.modules() if isinstance(module, Attention))
    held = type(attention).holds.fget(attention)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(attention), "holds", property(lambda self: type(held)(batch=False)))
    rows: list[int] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    short = [text for text in TEXTS if len(text.split()) < 10]
    predict(short)
    assert rows == [1] * len(short)


def test_tables(folders: Callable[[str], Path]) -> None:
    """Columns as lists or arrays; the id is passed through as it is."""
    folder = folders("classes")
    whole = nystromformer.Predictor(folder, "cpu")(TEXTS)
    keys = np.arange(len(TEXTS))
    table = {"id": keys, "body": np.asarray(TEXTS, dtype=object), "other": TEXTS}
    found = nystromformer.Predictor(folder, "cpu")(table)
    assert found["id"] is keys
    assert same(found, {"id": keys, **whole})
    named = nystromformer.Predictor(folder, "cpu", text=["review"], id="key")
    assert same(named({"key": TEXTS, "review": np.asarray(TEXTS)}), {"key": TEXTS, **whole})
    assert "id" not in named({"id": keys, "review": TEXTS})
    frame = nystromformer.Predictor(folder, "cpu")(pd.DataFrame({"id": keys, "body": TEXTS}))
    assert same({name: np.asarray(cells) for name, cells in frame.items()}, {"id": keys, **whole})
    assert opening.is_empty(pd.NA)
    with pytest.raises(UserError, match="expected the text columns review, found no review; the table has body"):
        named({"body": TEXTS})
    with pytest.raises(ValueError, match="expected columns of one length, found 2 and 1 cells"):
        named({"review": TEXTS[:2], "key": [1]})


def test_pairs_come_as_tables(folders: Callable[[str], Path]) -> None:
    predict = nystromformer.Predictor(folders("pairs"), "cpu")
    expected = load_run(folders("pairs"), "cpu").predict(TEXTS[:5], TEXTS[5:10])
    found = predict({"sentence1": TEXTS[:5], "sentence2": TEXTS[5:10]})
    np.testing.assert_allclose(found["prediction"], expected.labels, atol=1e-5)
    with pytest.raises(UserError, match="expected pairs"):
        predict(TEXTS[:5])


@pytest.mark.parametrize("kind", ["classes", "several", "value"])
def test_texts_that_are_empty(folders: Callable[[str], Path], kind: str) -> None:
    texts = [TEXTS[0], "", None, float("nan"), " ", TEXTS[1]]
    folder = folders(kind)
    found = nystromformer.Predictor(folder, "cpu", skip_empty=True)({"body": texts})
    some = nystromformer.Predictor(folder, "cpu")([TEXTS[0], TEXTS[1]])
    assert same({name: cells[[0, 5]] for name, cells in found.items()}, some)
    for name, cells in found.items():
        assert all(cell is None or math.isnan(cell) for cell in cells[1:5]), name
    with pytest.raises(ValueError, match=r"texts\[1\]: expected a text, found an empty one"):
        nystromformer.Predictor(folder, "cpu")(["a", ""])
    with pytest.raises(TypeError, match=r"texts\[2\]: expected a text, found 7"):
        nystromformer.Predictor(folder, "cpu", skip_empty=True)(["", "a", 7])  # type: ignore[list-item]


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_an_experiment_embeds(source: Path, tmp_path: Path, pooling: str) -> None:
    """Its encoder's pooled vectors of the whole texts, up to the model's length."""
    folder = copy_of(source, tmp_path / "experiment", f"model.pooling={pooling}").folder
    config = json.loads((folder / "config.json").read_text())
    config["model"]["pooling"] = pooling
    (folder / "config.json").write_text(json.dumps(config))
    predict = nystromformer.Predictor(folder, "cpu", embed=True)
    found = predict({"id": list(range(len(TEXTS))), "text": TEXTS})
    assert list(found) == ["id", "vector"]
    assert same(found, joined([predict({"id": [number], "text": [text]}) for number, text in enumerate(TEXTS)]))
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


@pytest.mark.parametrize("kind", ["classes", "several", "value"])
@pytest.mark.parametrize("embed", [False, True], ids=["predictions", "vectors"])
def test_no_texts(folders: Callable[[str], Path], kind: str, embed: bool) -> None:
    predict = nystromformer.Predictor(folders(kind), "cpu", embed=embed)
    found = predict([])
    assert tuple(found) == predict.columns
    assert all(len(cells) == 0 for cells in found.values())


def test_it_pickles_before_and_after_it_is_opened(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model stays behind; what is unpickled is opened once in a process."""
    opening._open.cache_clear()
    opened: list[Path] = []
    load = opening.load_finished
    monkeypatch.setattr(opening, "load_finished", lambda *args: (opened.append(args[0]), load(*args))[1])
    predict = nystromformer.Predictor(folders("classes"), "cpu")
    before = pickle.dumps(predict)
    assert not opened
    expected = predict(TEXTS)
    after = pickle.dumps(predict)
    assert after == before
    assert len(before) < 1000
    assert same(pickle.loads(after)(TEXTS), expected)  # noqa: S301  # its own
    assert len(opened) == 1


def test_vectors(folders: Callable[[str], Path]) -> None:
    found = nystromformer.Predictor(folders("classes"), "cpu", embed=True)({"id": range(len(TEXTS)), "body": TEXTS})
    assert list(found) == ["id", "vector"]
    assert found["vector"].shape == (len(TEXTS), 16)
    assert found["vector"].dtype == np.float32


def test_the_regression_on_words(folders: Callable[[str], Path]) -> None:
    predict = nystromformer.Predictor(folders("classes"), baseline=True)
    whole = predict(TEXTS)
    assert tuple(whole) == predict.columns == nystromformer.Predictor(folders("classes"), "cpu").columns
    assert same(joined([predict([text]) for text in TEXTS]), whole)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"baseline": True, "embed": True}, "baseline=True: expected no embed=True with it"),
        ({"text": ("a", "b", "c")}, "text: expected one column or two, found 3"),
    ],
)
def test_arguments_that_say_nothing(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        nystromformer.Predictor("nowhere", **arguments)


def test_what_is_no_run(tmp_path: Path) -> None:
    predict = nystromformer.Predictor(tmp_path, "cpu")
    with pytest.raises(UserError, match="expected the folder of a finished fine-tuning run"):
        predict(["a text"])
    with pytest.raises(TypeError, match="found one text: put it into a list"):
        predict("a text")
