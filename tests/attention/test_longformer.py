"""Longformer's attention: transformers' own module beside it, marked tokens, what it costs, and what is refused."""

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, random_mask
from small import PLAIN, model_config
from torch import Tensor
from torch.func import functional_call

from nystromformer.attention import AttentionMask, create_attention, reference
from nystromformer.attention.longformer import LongformerAttention
from nystromformer.model.finetuning import CandidateModel

WIDTH = HEADS * DIM


def longformer(dtype: torch.dtype = torch.float32, **parameters: object) -> LongformerAttention:
    module = create_attention("longformer", num_heads=HEADS, head_dim=DIM, **parameters).to(dtype)
    assert isinstance(module, LongformerAttention)
    return module


def peer_of(window: int) -> torch.nn.Module:
    modeling = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_window": [window]}
    torch.manual_seed(2)
    peer: torch.nn.Module = modeling.LongformerSelfAttention(modeling.LongformerConfig(**sizes), 0)
    for weight in peer.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return peer.eval()


@pytest.mark.parametrize("marks", [(), (0,), (0, 1, 40), (37,)], ids=str)
@pytest.mark.parametrize(
    ("length", "window", "padded_to"), [(64, 16, 64), (63, 8, 64), (500, 50, 500), (500, 64, 512), (1024, 512, 1024)]
)
def test_transformers_module_agrees(length: int, window: int, padded_to: int, marks: tuple[int, ...]) -> None:
    """On rows of which one is padded; it wants lengths that its window divides. Its global tokens get the projections
    of all others.
    """
    peer = peer_of(window)
    module = longformer(window=window, num_global_tokens=0)
    x = torch.randn(2, padded_to, WIDTH, generator=torch.Generator().manual_seed(3), requires_grad=True)
    keep = torch.arange(padded_to) < torch.tensor([[length], [length - 11]])
    is_global = torch.zeros_like(keep)
    is_global[:, list(marks)] = True
    is_global[1, 5] = bool(marks)
    codes = torch.where(keep, torch.where(is_global, 1e4, 0.0), -1e4)
    arguments = (x, codes, ~keep, is_global, bool(marks))
    projections = ("query", "key", "value")
    shared = {f"{name}_global.{key}": x for name in projections for key, x in getattr(peer, name).named_parameters()}
    expected = functional_call(peer, shared, arguments)[0][:, :length]
    q, k, v = (
        layer(x[:, :length]).unflatten(2, (HEADS, DIM)).transpose(1, 2) for layer in (peer.query, peer.key, peer.value)
    )
    out = module(q, k, v, AttentionMask(keep[:, :length], is_global[:, :length])).transpose(1, 2).flatten(2)
    there = keep[:, :length, None]
    torch.testing.assert_close(out, expected.where(there, 0.0), rtol=1e-4, atol=1e-4)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)) * there
    inputs = [x, peer.query.weight, peer.key.weight, peer.value.weight, peer.value.bias]
    gradients = torch.autograd.grad(out, inputs, upstream, materialize_grads=True)
    wanted = torch.autograd.grad(expected, inputs, upstream, materialize_grads=True)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * b.abs().max().item() + 1e-6)


@pytest.mark.parametrize("length", [1, 9, 63, 150])
def test_marked_tokens_are_the_oracles(length: int) -> None:
    module = longformer(torch.float64, window=6, num_global_tokens=2)
    x = qkv(3, length, seed=length, dtype=torch.float64)
    keep, marks = random_mask(3, length), random_mask(3, length, seed=5, share=0.15)
    keep[2] = length < 5
    out = module(*x, AttentionMask(keep, marks))
    expected = reference.longformer_attention(*x, keep, window=6, num_first=2, marked_BN=marks)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-11)
    gradients = torch.autograd.grad(out.square().sum(), x, materialize_grads=True)
    wanted = torch.autograd.grad(expected.square().sum(), x, materialize_grads=True)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_marks_count_where_the_mask_is_ignored() -> None:
    module = longformer(window=4, ignore_mask=True, num_global_tokens=0)
    x = qkv(2, 30)
    keep, marks = random_mask(2, 30), random_mask(2, 30, seed=5, share=0.2)
    all_kept = longformer(window=4, num_global_tokens=0)(*x, AttentionMask(torch.ones_like(keep), marks))
    assert torch.equal(module(*x, AttentionMask(keep, marks)), all_kept)
    assert not torch.allclose(module(*x, AttentionMask(keep)), all_kept)


@pytest.mark.slow
def test_marks_in_compiled_and_exported_programs() -> None:
    class Marked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = longformer(window=4, global_capacity=24)

        def forward(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, marks: Tensor) -> Tensor:
            out: Tensor = self.attention(q, k, v, AttentionMask(keep, marks))
            return out

    def inputs(batch: int, length: int) -> tuple[Tensor, ...]:
        marks = random_mask(batch, length, seed=5, share=0.2 if length < 90 else 0.02)
        return *(a.detach() for a in qkv(batch, length)), random_mask(batch, length), marks

    module = Marked().eval()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    rows, tokens = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("tokens", min=2, max=8192)
    shape, mask = {0: rows, 2: tokens}, {0: rows, 1: tokens}
    shapes = (shape, shape, shape, mask, mask)
    program = torch.export.export(module, inputs(2, 50), dynamic_shapes=shapes).module()
    for batch, length in [(2, 33), (2, 50), (1, 2), (3, 9), (1, 501)]:
        x = inputs(batch, length)
        expected = module(*x)
        torch.testing.assert_close(program(*x), expected, rtol=1e-4, atol=1e-5)
        if batch == 2:
            torch.testing.assert_close(compiled(*x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="global_capacity = 24"):
        compiled(*inputs(2, 50)[:4], torch.ones(2, 50, dtype=torch.bool))


@pytest.mark.parametrize("marked", [False, True], ids=["unmarked", "marked"])
def test_a_candidate_sees_a_token_beyond_its_window_if_it_is_marked(marked: bool) -> None:
    attention = {"name": "longformer", "window": 4, "num_global_tokens": 0}
    torch.manual_seed(0)
    model = CandidateModel(model_config(attn_type=attention, num_layers=1, **PLAIN)).eval()
    tokens = torch.randint(5, 300, (1, 32), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[0, 25] = 5 + (int(tokens[0, 25]) - 4) % 295
    marks = torch.zeros(1, 32, dtype=torch.bool)
    marks[0, 25] = marked
    candidates = {
        "positions_BC": torch.tensor([[3, 9]]),
        "candidates_BC": torch.tensor([[0, 1]]),
        "instance_B": torch.tensor([0]),
        "present_IA": torch.ones(1, 2, dtype=torch.bool),
    }
    with torch.no_grad():
        first, second = (model(x, torch.ones_like(marks), marks, **candidates) for x in (tokens, other))
    assert torch.equal(first, second) is not marked
