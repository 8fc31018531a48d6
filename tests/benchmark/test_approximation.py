"""How far attentions are from softmax: the figures, what is left out, the command and its mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small import run_here

from nystromformer.attention import AttentionMask, reference
from nystromformer.benchmark.approximation.candidates import choose_candidates, why_not
from nystromformer.benchmark.approximation.compare import output_errors
from nystromformer.benchmark.checkpoints import Inputs
from nystromformer.config import ATTENTIONS, attention_config
from nystromformer.errors import UserError


def inputs(length: int = 24, masked: int = 3) -> Inputs:
    q, k, v = (torch.randn(2, 2, length, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    keep = torch.arange(length).expand(2, -1) < length - masked
    return Inputs("layer 0", q, k, v, AttentionMask(keep) if masked else None)


def test_an_attention_that_is_exact_has_no_error() -> None:
    found, missing = choose_candidates(["nystrom,num_landmarks=8", "local,block_size=24"], (), 25)
    assert not missing
    nystrom, local = output_errors(found, inputs()).values()
    assert local < 1e-6, "one block of all tokens and its neighbour"
    assert nystrom > 0.05


def test_errors_are_those_of_the_oracle() -> None:
    seen = inputs(masked=0)
    exact = reference.softmax_attention(seen.q, seen.k, seen.v)
    for rule, landmarks in (("segment_means", reference.segment_means), ("strided", reference.strided_tokens)):
        config = attention_config("nystrom", num_landmarks=6, landmarks=rule)
        out = reference.nystrom_attention(
            seen.q, seen.k, seen.v, num_landmarks=6, iterations=6, landmarks=landmarks, ridge=None
        )
        (error,) = output_errors({rule: config}, seen).values()
        assert error == pytest.approx(float((out - exact).norm() / exact.norm()), rel=1e-4)


def test_what_has_learned_parts_cannot_stand_in() -> None:
    found, missing = choose_candidates((), (8, 16), 512)
    names = {config.name for config in found.values()}
    assert names | set(missing) | {"softmax"} == set(ATTENTIONS)
    assert {"linformer", "conv_linformer", "synthesizer", "reformer"} <= set(missing)
    assert {"nystrom 8", "nystrom, strided 16", "mra 4"} <= set(found)
    assert "tied" in missing["reformer"]
    assert "learned" in str(why_not(attention_config("longformer", global_projections=True)))
    with pytest.raises(UserError, match="--attention reformer: it cannot replace softmax"):
        choose_candidates(["reformer"], (8,), 512)
    with pytest.raises(UserError, match="none of the attentions accepts rows of 8 tokens"):
        choose_candidates(["local"], (8,), 8)


@pytest.fixture(scope="module")
def trained(train_for_two_steps: Callable[..., Path]) -> Path:
    return train_for_two_steps("softmax", model__attn_type="softmax", model__num_landmarks=None)


FEW = "--rows 2 --landmarks 4,8 --score_rows 4 --repeats 1 --threads 1"
RULES = ("", ", strided", ", kmeans")
SOME = ("--attention", "nystrom", "--attention", "linear")


@pytest.mark.slow
def test_the_command_computes_and_writes(
    trained: Path, dataset_folder: Path, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    place = ("--model", trained, "--dataset", dataset_folder, "--out", tmp_path)
    words = ("approximation", *place, *FEW.split(), *SOME)
    assert "| nystrom, kmeans 8 |" in run_benchmark(*words)
    data = json.loads((tmp_path / "approximation.json").read_text())
    assert set(data["errors"]) == {"softmax", "linear", *(f"nystrom{r} {n}" for r in RULES for n in (4, 8))}
    assert list(data["errors"]["linear"]) == ["layer 0", "layer 1", "random"]
    assert [each["method"] for each in data["losses"]] == list(data["errors"])
    assert "run_benchmark.py approximation" in (tmp_path / "approximation.md").read_text()


def test_softmax_in_its_own_place_changes_nothing(
    trained: Path,
    dataset_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_benchmark: Callable[..., str],
) -> None:
    place = ("--model", trained, "--dataset", dataset_folder)
    assert run_here(monkeypatch, "code/run_validation.py", *place, "--rows", 4) == 0
    scored = json.loads((trained / "model" / "validation.json").read_text())["scores"][-1]
    flags = (*FEW.split(), "--attention", "linear", "--parts", "loss", "--out", tmp_path)
    run_benchmark("approximation", *place, *flags)
    softmax, linear = json.loads((tmp_path / "approximation.json").read_text())["losses"]
    assert softmax["mlm_loss"] == pytest.approx(scored.get("mlm_loss", scored["loss"]), rel=1e-6)
    assert linear["mlm_loss"] != softmax["mlm_loss"]


@pytest.mark.slow
def test_settings_that_are_asked_for_are_told_apart(
    trained: Path, dataset_folder: Path, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    asked = ("--attention", "nystrom,num_landmarks=4", "--attention", "nystrom,num_landmarks=8")
    place = ("--model", trained, "--dataset", dataset_folder, "--out", tmp_path, *FEW.split())
    run_benchmark("approximation", *place, *asked)
    data = json.loads((tmp_path / "approximation.json").read_text())
    names = {"nystrom (num_landmarks 4)", "nystrom (num_landmarks 8)"}
    assert set(data["errors"]) == {"softmax", *names}
    assert {each["method"] for each in data["losses"]} == {"softmax", *names}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--attention", "reformer"], "it cannot replace softmax without training"),
        (["--parts", "error"], "'--parts': expected one or more of errors,loss, found 'error'"),
        (["--landmarks", "8,x"], "'--landmarks': expected numbers separated by commas"),
        (["--landmarks", "8,100000"], "--landmarks: expected fewer than the"),
        (["--set", "model.attn_type=linear", "--parts", "loss"], "expected softmax in all layers"),
        (["--checkpoint", "7"], "expected --checkpoint last"),
        (["--checkpoint", "all"], "--checkpoint: expected last or an epoch's number"),
    ],
)
def test_mistakes(
    flags: list[str], words: str, trained: Path, dataset_folder: Path, tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    place = ("--model", trained, "--dataset", dataset_folder, "--out", tmp_path / "out")
    small = () if "--landmarks" in flags else ("--landmarks", "4")
    assert words in run_benchmark("approximation", *place, *small, *flags, status=2)
    assert not (tmp_path / "out").exists()
