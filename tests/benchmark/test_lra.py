"""A step on ListOps beside the same model with the authors' attention."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import ROOT

from nystromformer.benchmark.lra import AUTHORS, BY_LENGTH, PADDED, PARTS, measure_lra
from nystromformer.benchmark.questions.lra import ListOps
from nystromformer.errors import UserError
from nystromformer.tasks.lra.listops import Expressions
from nystromformer.tasks.lra.listops_data import draw_listops


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> ListOps:
    """A narrow model on short expressions."""
    folder = tmp_path_factory.mktemp("lra")
    wanted = Expressions(longer_than=4, shorter_than=40, depth=5, most_values=4)
    draw_listops(folder / "data", wanted, {"train": 40, "validation": 1, "test": 1}, 0, 1)
    config = json.loads((ROOT / "experiments" / "lra" / "listops" / "config.json").read_text())
    config["model"] |= {"max_seq_len": 45, "attn_type": {"name": "nystrom", "num_landmarks": 8, "conv_kernel_size": 3}}
    config["pretraining_setting"]["batch_size"] = config["gpu_setting"]["inst_per_gpu"] = 8
    (folder / "config.json").write_text(json.dumps(config))
    return ListOps(folder / "data", batches=2, repeats=1, threads=1, config=folder / "config.json")


@pytest.mark.parametrize(("value", "precision"), [("false", "float32"), ('"bf16"', "bf16")])
def test_all_ways_are_measured_and_written(recipe: ListOps, tmp_path: Path, value: str, precision: str) -> None:
    threads = torch.get_num_threads()
    try:
        text = measure_lra(replace(recipe, overrides=[f"model.mixed_precision={value}"]), tmp_path)
    finally:
        torch.set_num_threads(threads)
    found = json.loads((tmp_path / "lra.json").read_text())
    assert found["settings"]["precision"] == precision
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == [BY_LENGTH, PADDED, AUTHORS]
    assert rows[PADDED]["tokens"] == rows[AUTHORS]["tokens"] == 48, "a multiple of the landmarks"
    assert rows[BY_LENGTH]["tokens"] < 48
    for row in rows.values():
        assert set(row["parts"]) == set(PARTS)
        assert all(value > 0 for value in row["parts"].values())
        assert row["time"]["median"] > 0
    assert AUTHORS in text
    assert str(recipe.data) not in (tmp_path / "lra.json").read_text()


def test_another_attention_is_refused(recipe: ListOps, tmp_path: Path) -> None:
    config = json.loads(recipe.config.read_text())
    config["model"]["attn_type"] = "softmax"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="expected Nyström attention, found softmax"):
        measure_lra(ListOps(recipe.data, config=tmp_path / "config.json"), tmp_path / "out")
