"""How far attention reaches: the span, of which rows, the command and its mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from finetuning import pretrained
from small import small_data

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.findings import Record
from nystromformer.benchmark.questions.span import mean_distance, spans_of_rows


def test_the_span_is_the_mean_distance_by_weight() -> None:
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.0, -0.5], [0.0, 0.0, 3.0]]])
    assert mean_distance(weights) == pytest.approx((0 + 1 + 0) / 3)
    assert mean_distance(torch.eye(5)[None]) == 0
    assert mean_distance(torch.ones(2, 7, 7)) == pytest.approx((7**2 - 1) / 21)


def attended(name: str, mask: AttentionMask | None, **settings: object) -> list[Record]:
    core = create_attention(name, num_heads=2, head_dim=8, max_length=32, **settings)
    q, k = (torch.randn(2, 2, 32, 8, generator=torch.Generator().manual_seed(i)) for i in range(2))
    return list(spans_of_rows(core, q, q if core.needs.shared_query_key else k, mask, 0))


@pytest.mark.parametrize("settings", [{"name": "softmax"}, {"name": "nystrom", "num_landmarks": 32}])
def test_exact_attention_has_softmaxs_span(settings: dict[str, object]) -> None:
    for row in attended(mask=None, **settings):  # type: ignore[arg-type]
        assert row["span"] == pytest.approx(row["softmax"], rel=1e-5)
        assert row["negative"] == 0


def test_only_valid_tokens_count() -> None:
    keep = torch.arange(32).expand(2, -1) < torch.tensor([[32], [20]])
    full, short = attended("nystrom", AttentionMask(keep), num_landmarks=4)
    assert (full["tokens"], short["tokens"]) == (32, 20)
    core = create_attention("nystrom", num_heads=2, head_dim=8, num_landmarks=4)
    q, k = (torch.randn(2, 2, 32, 8, generator=torch.Generator().manual_seed(i))[1:, :, :20] for i in range(2))
    (alone,) = spans_of_rows(core, q, k, None, 0)
    assert short == alone
    assert short["negative"] > 0


def test_windows_reach_no_further_than_they_are() -> None:
    for row in attended("longformer", None, window=4, num_global_tokens=0):
        assert 0 < row["span"] <= 2
        assert row["softmax"] > 5
    for row in attended("reformer", None, chunk_length=8):
        assert row["span"] > 0


def test_the_command_looks_at_pretrained_models(
    source: Path, dataset_folder: Path, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    run_benchmark("span", "--model", source, "--dataset", dataset_folder, "--rows", 4, "--out", tmp_path)
    (found,) = json.loads((tmp_path / "span.json").read_text())["records"]
    assert 0 < found["span"] < found["tokens"]
    assert len(found["layers"]) == small_data()["model"]["num_layers"]
    assert found["rows"] == 4
    assert "run_benchmark.py span" in (tmp_path / "span.md").read_text()


def test_an_attention_without_weights_is_refused(
    dataset_folder: Path, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    changes = {"model__attn_type": "conv_linformer", "model__num_landmarks": None}
    folder = pretrained(tmp_path / "mixed", dataset_folder, **changes).folder
    place = ("--dataset", dataset_folder, "--out", tmp_path / "out")
    assert "has no attention weights between tokens" in run_benchmark("span", *place, "--model", folder, status=2)
