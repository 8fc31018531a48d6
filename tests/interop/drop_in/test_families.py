"""Families of transformers' models, as experiments/studies/home_families.py tries them: those that compute their own
attention keep it, padding and all, and say so.
"""

import importlib.util
import json
import logging
from types import ModuleType
from typing import Any

import pytest
import torch
from small import ROOT
from theirs import build

from nystromformer.interop.drop_in import register

HOME = ROOT / "results" / "home"
RECORDED: list[dict[str, Any]] = json.loads((HOME / "families.json").read_text())["rows"]


@pytest.fixture(scope="module")
def families() -> ModuleType:
    spec = importlib.util.spec_from_file_location("families", ROOT / "experiments" / "studies" / "home_families.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    ["megatron-bert", "rembert", "mpnet", "nystromformer", "deberta-v2", "timesformer", "wavlm", "electra", "wav2vec2"],
)
def test_a_family_does_what_the_table_says(families: ModuleType, name: str) -> None:
    register(num_landmarks=families.LANDMARKS)
    (row,) = [row for row in RECORDED if row["family"] == name]
    with torch.no_grad():
        for rows in (1, 2):
            assert families.attempt(name, rows)["state"] == row["state"] != "wrong"


def test_the_table_is_the_record_and_the_page(families: ModuleType) -> None:
    assert [row["family"] for row in RECORDED] == list(families.FAMILIES)
    assert "wrong" not in {row["state"] for row in RECORDED}
    table = families.table(RECORDED)
    assert (HOME / "families.md").read_text() == table + "\n"
    assert table in (ROOT / "docs" / "at-home.md").read_text()


def test_a_model_says_it_once_and_one_that_calls_says_nothing(
    families: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    register(num_landmarks=16)
    inputs, model = families.batch("rembert", 2), families.build("rembert", None)
    with caplog.at_level(logging.WARNING, logger="nystromformer"), torch.no_grad():
        for name in (None, "nystrom", "nystrom"):
            each = model if name is None else families.build("rembert", name)
            each(**inputs)
            each(**inputs)
        build("bert", "nystrom")(inputs["input_ids"])
    assert [record.getMessage() for record in caplog.records] == [
        'RemBertModel accepted attn_implementation="nystrom" and never calls it: its code computes the attention by '
        "itself (not through transformers' AttentionInterface), and nothing is swapped"
    ] * 2
