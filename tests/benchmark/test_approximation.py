"""How far attentions are from softmax: the figures, what is left out, the command and its mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nystromformer.attention import AttentionMask, reference
from nystromformer.benchmark.questions.approximation import Inputs, choose_candidates, output_errors
from nystromformer.config import ATTENTIONS, attention_config
from nystromformer.errors import UserError


def inputs(length: int = 24, masked: int = 3) -> Inputs:
    q, k, v = (torch.randn(2, 2, length, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    keep = torch.arange(length).expand(2, -1) < length - masked
    return Inputs("layer 0", q, k, v, AttentionMask(keep) if masked else None)


def test_errors_are_those_of_the_oracle() -> None:
    seen = inputs(masked=0)
    exact = reference.softmax_attention(seen.q, seen.k, seen.v)
    for rule, landmarks in (("segment_means", reference.segment_means), ("strided", reference.strided_tokens)):
        config = attention_config("nystrom", num_landmarks=6, landmarks=rule)
        out = reference.nystrom_attention(seen.q, seen.k, seen.v, num_landmarks=6, iterations=6, landmarks=landmarks)
        (error,) = output_errors({rule: config}, seen).values()
        assert error == pytest.approx(float((out - exact).norm() / exact.norm()), rel=1e-4)


def test_what_has_learned_parts_cannot_stand_in() -> None:
    found, missing = choose_candidates((), 512)
    assert {config.name for config in found.values()} | set(missing) == set(ATTENTIONS)
    assert {"linformer", "conv_linformer", "synthesizer", "reformer"} <= set(missing)
    assert {"nystrom", "nystrom (num_landmarks N/8)", "local (block_size 64)"} <= set(found)
    assert "tied" in missing["reformer"]
    assert "learned" in missing["linformer"]


FEW = "--repeats 1 --threads 1 --attention nystrom,num_landmarks=4/8 --attention linear"
NAMES = ["softmax", "nystrom (num_landmarks 4)", "nystrom (num_landmarks 8)", "linear"]


def test_tensors_of_a_file(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    seen, masked = inputs(masked=0), inputs()
    assert masked.mask is not None
    save_file({name: getattr(seen, name) for name in "qkv"}, tmp_path / "one.safetensors")
    both = {f"layer {n}.{name}": getattr(each, name) for n, each in enumerate((seen, masked)) for name in "qkv"}
    save_file(both | {"layer 1.mask": masked.mask.keep_BN}, tmp_path / "two.safetensors")
    files = [word for name in ("one", "two") for word in ("--tensors", tmp_path / f"{name}.safetensors")]
    text = run_benchmark("approximation", *files, "--out", tmp_path, *FEW.split())
    assert "**one, 24 tokens**" in text
    every = json.loads((tmp_path / "approximation.json").read_text())["records"]
    one, two = ([each for each in every if each["source"] == name] for name in ("one", "two"))
    assert [each["method"] for each in one] == [each["method"] for each in two] == NAMES
    chosen, _ = choose_candidates(["nystrom,num_landmarks=8"], 24)
    for layer, each in (("layer 0", seen), ("layer 1", masked)):
        expected = output_errors(chosen, each)["nystrom (num_landmarks 8)"]
        assert two[2]["errors"][layer] == pytest.approx(expected, rel=1e-5)
    assert one[2]["errors"]["one"] == two[2]["errors"]["layer 0"]
    assert "run_benchmark.py approximation" in (tmp_path / "approximation.md").read_text()
    assert (tmp_path / "approximation.png").read_bytes().startswith(b"\x89PNG")


ONES = torch.ones(2, 2, 24, 8)
WRONG: dict[str, dict[str, torch.Tensor]] = {
    "no file": {},
    "no k": {"q": ONES, "v": ONES},
    "another shape": {"q": ONES, "k": ONES[:, :, :16], "v": ONES},
    "three dimensions": dict.fromkeys("qkv", ONES[0]),
    "a mask of heads": {"q": ONES, "k": ONES, "v": ONES, "mask": ONES[..., 0]},
}


@pytest.mark.parametrize("tensors", WRONG.values(), ids=WRONG)
def test_files_that_hold_something_else_are_refused(
    tensors: dict[str, torch.Tensor], tmp_path: Path, run_benchmark: Callable[..., str]
) -> None:
    path = tmp_path / "wrong.safetensors"
    if tensors:
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
    told = run_benchmark("approximation", "--tensors", path, "--out", tmp_path / "out", status=2)
    assert f"--tensors {path}: expected" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "length", "words"),
    [
        ("reformer", 64, "it cannot replace softmax without training: its queries and keys are tied"),
        ("nystrom,num_landmarks=100", 64, "num_landmarks: expected fewer landmarks than"),
        ("nystrom", 8, "num_landmarks"),
    ],
)
def test_an_attention_that_does_not_fit_is_refused(text: str, length: int, words: str) -> None:
    with pytest.raises(UserError, match=f"--attention {text} at {length} tokens: {words}"):
        choose_candidates([text], length)
