"""What a model cannot read of a text is told: what was cut, and tokens that its tokenizer does not know."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from finetuning import write_table
from pyarrow import parquet
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import nystromformer
from nystromformer.data.tokenizer import SPECIAL_TOKENS, added_tokens, row_form
from nystromformer.prediction import predictor
from nystromformer.prediction.serve import ServedModel

PLAIN, LONG, HALF, THAI = "softmax row", "softmax " * 300, "softmax \u0e01\u0e02", "\u0e01 \u0e02 \u0e03"
TEXTS = {
    "none": [PLAIN] * 3,
    "cut": [PLAIN, LONG],
    "unknown": [" ".join([PLAIN] * 10)] * 2 + [HALF],
    "both": [PLAIN, LONG, HALF, THAI],
}
SHARES = {PLAIN: 0.0, LONG: 0.0, HALF: 0.5, THAI: 1.0}


@pytest.fixture
def knows_latin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers are of a few words, as one that was trained on another script."""
    names = [*SPECIAL_TOKENS.values(), "softmax", "row"]
    tokenizer = Tokenizer(WordLevel({name: at for at, name in enumerate(names)}, "<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(added_tokens())
    tokenizer.post_processor = row_form(tokenizer)
    monkeypatch.setattr(predictor, "load_tokenizer", lambda folder: tokenizer)
    monkeypatch.setattr(predictor, "find_tokenizer", lambda *given: tokenizer)


def told_by(texts: list[str]) -> dict[str, list[object]]:
    """The columns that an output has of them."""
    cut, shares = [text is LONG for text in texts], [SHARES.get(text, 0.0) for text in texts]
    return {name: cells for name, cells in (("cut", cut), ("unknown_share", shares)) if any(cells)}


@pytest.mark.usefixtures("knows_latin")
@pytest.mark.parametrize(
    ("kind", "ending"),
    [*((kind, "csv") for kind in TEXTS), *(("both", ending) for ending in ("parquet", "--embed"))],
)
def test_a_table_gets_the_columns_that_it_has_need_of(
    kind: str,
    ending: str,
    finished: Path,
    source: Path,
    tmp_path: Path,
    predict: Callable[..., int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = write_table(tmp_path / "in.csv", ("sentence",), [(text,) for text in TEXTS[kind]])
    flags, out = (("--embed",), "out.parquet") if ending == "--embed" else ((), f"out.{ending}")
    with caplog.at_level("INFO"):
        assert predict(finished, table, *flags, out=out) == 0
    if ending == "csv":
        with (tmp_path / out).open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = parquet.read_table(tmp_path / out).to_pylist()
    found = {name: [row[name] for row in rows] for name in predictor.UNREAD if name in rows[0]}
    if ending == "csv":
        found = {name: [json.loads(cell) for cell in cells] for name, cells in found.items()}
    assert found == told_by(TEXTS[kind]), "and no others"
    assert ("1 of" in caplog.text and "cut: longer than what is read" in caplog.text) == ("cut" in found)
    assert ("% of the tokens are unknown to the tokenizer" in caplog.text) == ("unknown_share" in found)
    assert any(record.levelname == "WARNING" for record in caplog.records) == (kind == "both"), "above 10 %"


@pytest.mark.usefixtures("knows_latin")
def test_a_program_a_folder_and_the_service_are_told(
    finished: Path, tmp_path: Path, predict: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    """Always, as calls and files must have the same columns; above 10 % as a warning."""
    expected = told_by(TEXTS["both"])
    for embed in (False, True):
        found = nystromformer.Predictor(finished, "cpu", embed=embed)(TEXTS["both"])
        assert {name: found[name].tolist() for name in predictor.UNREAD} == expected
        plain = nystromformer.Predictor(finished, "cpu", embed=embed)([PLAIN])
        assert list(plain) == list(found)
    caplog.clear()
    nystromformer.Predictor(finished, "cpu")([HALF, THAI])
    assert caplog.text.count("80.0 % of the tokens are unknown to the tokenizer, and all alike to the model") == 1
    (tmp_path / "in").mkdir()
    for kind in ("none", "both"):
        parquet.write_table(pa.table({"sentence": TEXTS[kind]}), tmp_path / "in" / f"{kind}.parquet")
    assert predict(finished, tmp_path / "in", out="out") == 0
    rows = parquet.read_table(tmp_path / "out")
    assert rows["cut"].to_pylist() == [*expected["cut"], *[False] * 3]
    np.testing.assert_array_equal(rows["unknown_share"], [*expected["unknown_share"], *[0.0] * 3])
    answers = ServedModel(finished, "cpu").answer(TEXTS["both"])
    assert [(each.cut, each.unknown_share) for each in answers] == list(zip(*expected.values(), strict=True))
