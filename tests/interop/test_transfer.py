"""Weights of one model in another: what stays the same function, what may differ, and what is refused."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import VOCABULARY
from small import model_config as config
from torch import Tensor

from nystromformer.config import ModelConfig, Positions, Resize
from nystromformer.interop.transfer import DoesNotFit, Transfer, fit_positions, transfer_weights
from nystromformer.model import PretrainingModel

SKIP = "encoder.layers.0-1.attention.core.skip.weight"


def build(of: ModelConfig, seed: int, objectives: Iterable[str] = ("mlm", "sop")) -> PretrainingModel:
    """A model whose weights are random, the biases and norms too, which begin as zeros and ones."""
    torch.manual_seed(seed)
    model = PretrainingModel(of, list(objectives)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def plain(of: ModelConfig) -> dict[str, Any]:
    return of.model_dump(mode="json", by_alias=True)


def transfer(
    source: PretrainingModel,
    before: ModelConfig,
    target: PretrainingModel,
    now: ModelConfig,
    resize: Resize = "lossless",
    way: Positions = "repeat",
) -> Transfer:
    """Moves the weights over; returns what was done."""
    result = transfer_weights(target.state_dict(), plain(now), source.state_dict(), plain(before), resize, way)
    target.load_state_dict(result.weights)
    return result


def outputs(model: PretrainingModel, batch: int, length: int, types: bool = True) -> list[Tensor]:
    """Logits at all positions and of the order, of rows with padding; what is at masked positions left out."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(5, VOCABULARY, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    mask = torch.arange(length) < lengths[:, None]
    types_BN = (torch.arange(length) > lengths[:, None] // 2).long() if types else None
    with torch.no_grad():
        out = model(tokens, torch.arange(length).expand(batch, -1), mask, types_BN)
    return [out.mlm_BKV[mask], out.order_B2]


def same(model: PretrainingModel, other: PretrainingModel, length: int, types: bool = True) -> None:
    for mine, theirs in zip(*(outputs(m, 3, length, types) for m in (model, other)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", ["nystrom", "softmax"])
@pytest.mark.parametrize("offset", [0, 2])
def test_512_to_4096_is_the_same_function_up_to_512(attention: str, offset: int) -> None:
    landmarks = {"num_landmarks": 64 if attention == "nystrom" else None}
    shared: dict[str, object] = {"attn_type": attention, "position_offset": offset, **landmarks}
    before = config(max_seq_len=512, conv_kernel_size=33, **shared)
    now = config(max_seq_len=4096, conv_kernel_size=65, **shared)
    source, target = build(before, 0), build(now, 1)
    result = transfer(source, before, target, now)
    assert result.notes == [
        "encoder.embeddings.position.weight: positions: 512 repeated to 4096",
        f"{SKIP}: 33 taps amid 65, zeros around them",
    ]
    for length in (1, 63, 64, 65, 500, 512):
        same(target, source, length)
    mine, theirs = (dict(model.named_parameters())["encoder.embeddings.position.weight"] for model in (target, source))
    assert torch.equal(mine[:offset], theirs[:offset])
    assert torch.equal(mine[offset:].view(8, 512, -1), theirs[offset:].expand(8, -1, -1))


@pytest.mark.parametrize(
    ("before", "now", "notes"),
    [
        ({}, {}, []),
        ({}, {"max_seq_len": 20}, ["positions: the first 20 of 32"]),
        ({"embedding_dim": 8}, {"max_seq_len": 20}, ["positions: the first 20 of 32"]),
        ({"positions": "rotary"}, {"max_seq_len": 100}, []),
    ],
    ids=["nothing", "shorter", "shorter, narrow", "rotary"],
)
def test_input_that_both_take_gets_the_same_output(
    before: dict[str, object], now: dict[str, object], notes: list[str]
) -> None:
    first, second = config(**before), config(**before | now)
    source, target = build(first, 0), build(second, 1)
    result = transfer(source, first, target, second)
    assert result.notes == [f"encoder.embeddings.position.weight: {note}" for note in notes]
    for length in (1, 20, min(first.max_seq_len, second.max_seq_len)):
        same(target, source, length)


def test_interpolated_positions_are_asked_for_as_a_loss() -> None:
    before, now = config(max_seq_len=32), config(max_seq_len=48)
    source, target = build(before, 0), build(now, 1)
    with pytest.raises(DoesNotFit) as refused:
        transfer(source, before, target, now, way="interpolate")
    assert 'from_cp_resize "lossless" refuses positions: 32 interpolated to 48, "lossy" takes it' in str(refused.value)
    result = transfer(source, before, target, now, "lossy", way="interpolate")
    assert result.notes == ["encoder.embeddings.position.weight: positions: 32 interpolated to 48"]


def test_what_computes_an_attention_is_not_mentioned() -> None:
    of = config(attn_type={"name": "nystrom", "implementation": "torch"})
    model, before = build(of, 0), plain(config(attn_type={"name": "nystrom"}))
    assert transfer_weights(model.state_dict(), plain(of), model.state_dict(), before).notes == []
    ignoring = config(attn_type={"name": "nystrom", "segments": "padded", "ignore_mask": True})
    (note,) = transfer_weights(model.state_dict(), plain(ignoring), model.state_dict(), before).notes
    assert note.startswith("model.attn_type: ")


@pytest.mark.parametrize(("before", "now"), [(2, 0), (0, 2)])
@pytest.mark.parametrize("length", [30, 32, 50])
def test_positions_that_start_at_another_row(before: int, now: int, length: int) -> None:
    first, second = config(position_offset=before), config(position_offset=now, max_seq_len=length)
    source, target = build(first, 0), build(second, 1)
    result = transfer(source, first, target, second)
    assert f", from row {now} of the table" in result.notes[0]
    assert f"model.position_offset: {before} in the checkpoint, {now} now" in result.notes
    same(target, source, min(32, length))


def test_another_sentence_type_begins_as_the_first() -> None:
    before, now = config(num_sen_type=1), config(num_sen_type=2)
    source, target = build(before, 0), build(now, 1)
    result = transfer(source, before, target, now)
    assert result.notes == ["encoder.embeddings.sentence_type.weight: sentence types: 1 repeated to 2"]
    for mine, theirs in zip(outputs(target, 3, 32), outputs(source, 3, 32, types=False), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    back = build(before, 2)
    assert "sentence types: the first 1 of 2" in transfer(target, now, back, before).notes[0]
    same(back, source, 32, types=False)


def refused(before: ModelConfig, now: ModelConfig, resize: Resize = "lossless") -> list[str]:
    target = build(now, 1)
    kept = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(DoesNotFit) as caught:
        transfer(build(before, 0), before, target, now, resize)
    assert all(torch.equal(value, kept[name]) for name, value in target.state_dict().items())
    return list(caught.value.args)


POSITIONS, SENTENCE_TYPES = (f"encoder.embeddings.{name}.weight" for name in ("position", "sentence_type"))


def test_weights_that_differ_are_named_at_once() -> None:
    before, now = config(), config(conv_kernel_size=3)
    source = build(before, 0).state_dict()
    source["encoder.layers.1.attention_norm.bias"] = torch.zeros(5)
    del source["encoder.layers.0.feed_forward.up.bias"]
    with pytest.raises(DoesNotFit) as caught:
        transfer_weights(build(now, 1).state_dict(), plain(now), source, plain(before))
    assert set(caught.value.args) == {
        f"{SKIP}: the model has (2, 1, 3, 1), the checkpoint (2, 1, 5, 1): taps would be lost; from_cp_resize "
        '"lossy" keeps the middle ones',
        "encoder.layers.1.attention_norm.bias: the model has (16,), the checkpoint (5,)",
        "encoder.layers.0.feed_forward.up.bias: missing from the checkpoint",
    }


SIZES: dict[str, object] = {"transformer_hidden_dim": 64, "num_layers": 3}
HEADS: dict[str, object] = {"num_head": 4, "head_dim": 4}
"""Shapes that fit, weights that would mean something else."""


@pytest.mark.parametrize("changes", [SIZES, HEADS, {"positions": "rotary"}], ids=["sizes", "heads", "positions"])
def test_what_must_not_differ(changes: dict[str, object]) -> None:
    before, now = config(conv_kernel_size=None), config(conv_kernel_size=None, **changes)
    assert refused(before, now) == [
        f"model.{key}: {json.dumps(value)} in config.json, {json.dumps(getattr(before, key))} in the checkpoint"
        for key, value in changes.items()
    ]


def test_kernels_that_would_lose_taps() -> None:
    before, now = config(conv_kernel_size=9), config(conv_kernel_size=5)
    source, target = build(before, 0), build(now, 1)
    assert transfer(source, before, target, now, "lossy").notes == [f"{SKIP}: the middle 5 of 9 taps"]
    for mine, theirs in zip(target.encoder.layers, source.encoder.layers, strict=True):
        assert torch.equal(mine.attention.core.skip.weight, theirs.attention.core.skip.weight[:, :, 2:7])


@given(st.integers(1, 40), st.integers(0, 4), st.integers(1, 40), st.integers(0, 4))
def test_positions_interpolate(before: int, source_offset: int, now: int, offset: int) -> None:
    source, initial = torch.rand(source_offset + before, 3), torch.rand(offset + now, 3)
    table = fit_positions(source, source_offset, initial, offset, "interpolate")[offset:]
    if now <= before:
        assert torch.equal(table, source[source_offset : source_offset + now])
    else:
        places = torch.linspace(0, before - 1, now, dtype=torch.float64)
        below, share = places.floor().long(), (places - places.floor())[:, None]
        learned = source[source_offset:].double()
        expected = (1 - share) * learned[below] + share * learned[(below + 1).clamp(max=before - 1)]
        torch.testing.assert_close(table, expected.float(), rtol=0, atol=1e-6)
        assert torch.equal(table[0], source[source_offset])
