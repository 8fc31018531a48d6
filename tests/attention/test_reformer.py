"""Reformer: its hashes, what they approximate, and transformers' LSHSelfAttention beside it."""

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, suffix_mask
from largest import bytes_for_backward
from torch import Tensor
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from nystromformer.attention import create_attention, reference
from nystromformer.attention.reformer import ReformerAttention


def reformer(**parameters: object) -> ReformerAttention:
    torch.manual_seed(1)
    module = create_attention("reformer", num_heads=HEADS, head_dim=DIM, **parameters)
    assert isinstance(module, ReformerAttention)
    return module


def expected(module: ReformerAttention, q: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    sizes = module.config.model_dump(include={"chunk_length", "across_buckets"})
    return reference.reformer_attention(q, v, keep, rotations=module.rotations_RDK, **sizes)


def test_keys_of_their_own_are_refused() -> None:
    q, k, v = qkv(1, 5)
    with pytest.raises(ValueError, match="k must be the same tensor as q"):
        reformer()(q, k, v)
    assert reformer()(q, q, v).shape == q.shape


@pytest.mark.parametrize("across", [False, True])
def test_rows_of_many_chunks_have_two_hashes_in_one(across: bool) -> None:
    """Beyond 64 chunks; each row by its own length, whatever the others'."""
    module = reformer(chunk_length=1, across_buckets=across).double()
    q, _, v = qkv(5, 150, dtype=torch.float64)
    keep = suffix_mask(150, 150, 100, 65, 64, 1)
    out = module(q, q, v, keep)
    torch.testing.assert_close(out, expected(module, q, v, keep), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(module(q, q, v), expected(module, q, v), rtol=1e-10, atol=1e-10)
    short = [x[1:2, :, :100] for x in (q, v)]
    torch.testing.assert_close(module(short[0], short[0], short[1]), out[1:2, :, :100], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk_length", [40, 64])
def test_rows_of_one_chunk_get_exact_attention(chunk_length: int) -> None:
    module = reformer(chunk_length=chunk_length, num_hashes=3).double()
    q, _, v = (x.detach() for x in qkv(2, 40, dtype=torch.float64))
    scores = q @ torch.nn.functional.normalize(q, dim=-1).mT / DIM**0.5
    scores.diagonal(dim1=-2, dim2=-1).fill_(float("-inf"))
    torch.testing.assert_close(module(q, q, v), torch.softmax(scores, -1) @ v)


def test_transformers_module_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    length, size = 48, 8
    module = reformer(num_hashes=1, chunk_length=size, across_buckets=True)
    config = ReformerConfig(
        attention_head_size=DIM,
        num_attention_heads=HEADS,
        hidden_size=HEADS * DIM,
        lsh_attn_chunk_length=size,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=1,
        num_buckets=2 * length // size,
        is_decoder=False,
        max_position_embeddings=length,
    )
    peer = LSHSelfAttention(config, layer_idx=0).eval()
    q, _, v = (x.detach() for x in qkv(2, length))
    flat = [x.transpose(1, 2).flatten(2) for x in (q, v)]
    # It scales no scores by 1/√D, as the paper does.
    monkeypatch.setattr(peer.query_key, "forward", lambda x: flat[0] / DIM**0.5)
    monkeypatch.setattr(peer.value, "forward", lambda x: flat[1])
    rotations = module.rotations_RDK[:, :, : length // size].permute(1, 0, 2).expand(HEADS, -1, -1, -1)
    monkeypatch.setattr(torch, "randn", lambda shape, **options: rotations.reshape(shape))
    theirs = peer(flat[0]).hidden_states
    torch.testing.assert_close(module(q, q, v).transpose(1, 2).flatten(2), theirs, rtol=1e-4, atol=1e-4)


def test_memory_is_linear() -> None:
    """No score is kept for the backward pass, nor are there as many as tokens squared."""

    def saved(length: int) -> int:
        q, _, v = qkv(1, length)
        return sum(bytes_for_backward(lambda: reformer(chunk_length=16)(q, q, v)).values())

    assert saved(2048) < 2.1 * saved(1024)
