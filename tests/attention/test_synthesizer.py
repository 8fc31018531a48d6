"""Synthesizer: what its kinds go by, what they learn, and what cannot be asked of them."""

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, suffix_mask
from largest import bytes_for_backward
from small import small_config

from nystromformer.attention import create_attention, reference
from nystromformer.attention.synthesizer import SynthesizerAttention
from nystromformer.interop.transfer import transfer_weights
from nystromformer.model.encoder import Encoder

ALONE = {"model__num_landmarks": None, "model__conv_kernel_size": None}


def synthesizer(length: int = 64, **parameters: object) -> SynthesizerAttention:
    torch.manual_seed(1)
    module = create_attention("synthesizer", num_heads=HEADS, head_dim=DIM, max_length=length, **parameters)
    assert isinstance(module, SynthesizerAttention)
    return module


def test_longer_input_than_was_learned_is_refused() -> None:
    for kind in ("dense", "random"):
        module = synthesizer(64, kind=kind)
        assert module(*qkv(1, 64)).shape == (1, HEADS, 64, DIM)
        with pytest.raises(ValueError, match=r"learned scores for 64 positions .*, found 65"):
            module(*qkv(1, 65))
    with pytest.raises(ValueError, match="synthesizer learns weights for each position: expected max_length"):
        create_attention("synthesizer", num_heads=HEADS, head_dim=DIM)


def test_dense_is_softmax_attention_to_learned_keys() -> None:
    module = synthesizer()
    q, k, v = qkv(2, 40)
    keys = module.weight_HLD[:, :40].expand(2, -1, -1, -1) * DIM**0.5
    expected = reference.softmax_attention(q.relu(), keys, v)
    torch.testing.assert_close(module(q, k, v).double(), expected, rtol=1e-4, atol=1e-5)


def test_random_is_a_mean_where_nothing_was_learned_and_a_choice_where_much_was() -> None:
    module = synthesizer(kind="random")
    q, k, v = (x.detach() for x in qkv(2, 40))
    keep = suffix_mask(40, 40, 13)
    valid = keep[:, None, :, None]
    with torch.no_grad():
        module.scores_HLL.zero_()
        means = torch.stack([v[0].mean(1, keepdim=True), v[1, :, :13].mean(1, keepdim=True)])
        torch.testing.assert_close(module(q, k, v, keep), means * valid)
        module.scores_HLL.copy_(36 * torch.eye(64))
        torch.testing.assert_close(module(q, k, v, keep), v * valid)


def test_a_row_of_scores_may_reach_over_many_magnitudes() -> None:
    """Places that a row does not have weigh most; what lies 80 below them is still told apart."""
    module = synthesizer(kind="random").double()
    with torch.no_grad():
        module.scores_HLL[:, :, 30:] += 80
    q, k, v = (x.detach() for x in qkv(2, 60))
    keep = suffix_mask(60, 60, 20)
    scores = module.scores_HLL.detach()
    expected = reference.synthesizer_attention(
        *(q, k, v, keep), scores=lambda qs, head: scores[head, : len(qs), : len(qs)]
    )
    torch.testing.assert_close(module.float()(q, k, v, keep).double(), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        module.scores_HLL[:, :, 30:] += 1000
    assert torch.isfinite(module(q, k, v, keep)).all()


def test_a_batch_shares_the_exponentials() -> None:
    """What is held for the backward grows by a batch's tokens, not by its pairs of tokens."""
    module, length = synthesizer(512, kind="random"), 512
    sizes = []
    for rows in (1, 8):
        x, keep = qkv(rows, length), suffix_mask(length, *[length] * rows)
        sizes.append(sum(bytes_for_backward(lambda x=x, keep=keep: module(*x, keep)).values()))
    assert sizes[1] < 1.5 * sizes[0]


@pytest.mark.parametrize(("kind", "without"), [("dense", ["key"]), ("random", ["query", "key"])])
def test_no_projection_is_built_for_what_is_not_looked_at(kind: str, without: list[str]) -> None:
    config = small_config(model__attn_type={"name": "synthesizer", "kind": kind}, **ALONE).model
    plain = small_config(model__attn_type="softmax", **ALONE).model
    encoder, other = Encoder(config), Encoder(plain)
    missing = {f"layers.{n}.attention.{part}.{each}" for n in (0, 1) for part in without for each in ("weight", "bias")}
    assert {name for name in other.state_dict() if name not in encoder.state_dict()} == missing
    tokens = torch.randint(5, config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    encoder(tokens).square().sum().backward()
    assert all(parameter.grad is not None for layer in encoder.layers for parameter in layer.parameters())
    # Weights go from one to the other, but for those that one of them lacks.
    states = [{f"encoder.{name}": x for name, x in each.state_dict().items()} for each in (encoder, other)]
    done = transfer_weights(states[0], config.model_dump(), states[1], plain.model_dump())
    assert [f"attention.{part}." in " ".join(done.left_out) for part in ("query", "key")] == ["query" in without, True]
    back = transfer_weights(states[1], plain.model_dump(), states[0], config.model_dump())
    assert [f"attention.{part}." in " ".join(back.initial) for part in ("query", "key")] == ["query" in without, True]
