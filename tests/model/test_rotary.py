"""Rotary positions against complex numbers in float64, transformers' RoFormer, and what follows of them."""

import pytest
import torch
from attention_cases import FIRST, Case
from small import LENGTH, PLAIN, SOFTMAX, VOCABULARY, model_config, tokens
from torch import Tensor
from transformers import RoFormerConfig, RoFormerModel

from nystromformer.config import ModelConfig
from nystromformer.interop.formats.table import BERT
from nystromformer.model import Encoder, PretrainingModel, rotary
from nystromformer.model.rotary import Rotary, rotated

CPU = torch.device("cpu")


def config(**changes: object) -> ModelConfig:
    return model_config(**{"positions": "rotary", "dropout_prob": 0.0, **changes})


def encoder(seed: int = 0, **changes: object) -> Encoder:
    torch.manual_seed(seed)
    return Encoder(config(**changes))


def heads(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def turned(x_BNHD: Tensor) -> Tensor:
    """The oracle: numbers j and j + D/2 of each head as one complex number, times exp(i n θ), in float64."""
    x_BNHD = x_BNHD.double()
    half = x_BNHD.shape[-1] // 2
    speeds = torch.tensor([10000.0 ** (-2 * j / (2 * half)) for j in range(half)], dtype=torch.float64)
    points = torch.complex(x_BNHD[..., :half], x_BNHD[..., half:])
    positions_N11 = torch.arange(x_BNHD.shape[1])[:, None, None]
    out = points * torch.exp(1j * positions_N11 * speeds)
    return torch.cat([out.real, out.imag], -1)


@pytest.mark.parametrize("length", [1, 63, 5000])
def test_queries_and_keys_are_turned_as_complex_numbers_are(length: int) -> None:
    x = heads(2, length, 3, 10).requires_grad_()
    upstream = heads(2, length, 3, 10, seed=1)
    out, expected = rotated(x, Rotary(3, 10, length)(length, CPU)), turned(x)
    # Rounding of the two products and of cosine and sine; angles in float32 would be off by 1e-4 at the last tokens.
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)
    (gradient,), (wanted,) = (torch.autograd.grad(each, x, upstream.to(each.dtype)) for each in (out, expected))
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_only_the_result_is_rounded(dtype: torch.dtype) -> None:
    x = heads(1, 2000, 2, 16).to(dtype)
    out = rotated(x, Rotary(2, 16, 2000)(2000, CPU))
    assert out.dtype == dtype
    expected = turned(x)
    assert ((out.double() - expected).abs() <= torch.finfo(dtype).eps / 2 * expected.abs() + 1e-6).all()


def test_with_softmax_it_is_roformer() -> None:
    """Which turns neighbours: the rows of its projections of queries and keys in another order."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "embedding_size": 16, "num_hidden_layers": 2}
    more = {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": LENGTH, "type_vocab_size": 2}
    peer = RoFormerModel(RoFormerConfig(**sizes, **more, initializer_range=0.5, hidden_act="gelu")).eval()
    mine = encoder(**SOFTMAX, activation="gelu", layer_norm_eps=1e-12).eval()
    halves = torch.arange(16).view(2, 4, 2).transpose(1, 2).flatten()
    theirs = dict(peer.named_parameters())
    names = {name: BERT.named(f"encoder.{name}").removeprefix(BERT.prefix) for name in mine.state_dict()}
    weights = {name: theirs[other] for name, other in names.items()}
    weights |= {name: weights[name][halves] for name in weights if ".query." in name or ".key." in name}
    mine.load_state_dict(weights)
    keep = torch.arange(LENGTH)[None] < torch.tensor([LENGTH, 9])[:, None]
    types = (torch.arange(LENGTH) > 6).long().expand(2, -1)
    expected = peer(tokens(), attention_mask=keep.long(), token_type_ids=types).last_hidden_state
    torch.testing.assert_close(mine(tokens(), keep, types)[keep], expected[keep], rtol=1e-4, atol=1e-4)


SEEING = [case for case in FIRST if case.name != "synthesizer"]


@pytest.mark.parametrize("case", SEEING, ids=lambda case: case.id)
def test_every_attention_trains_and_keeps_padding_out(case: Case) -> None:
    torch.manual_seed(0)
    model = PretrainingModel(config(attn_type={"name": case.name, **case.parameters}, **PLAIN), ["mlm", "sop"]).train()
    short = tokens(length=20)
    padded = torch.cat([short, torch.ones(2, 12, dtype=torch.long)], 1)
    keep = torch.arange(LENGTH).expand(2, -1) < 20
    positions = torch.tensor([[1, 5], [3, 19]])
    out = model(padded, positions, keep)
    assert out.mlm_BKV is not None
    (out.mlm_BKV.square().mean() + out.order_B2.square().mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    with torch.no_grad():
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        if case.build().holds.padding:
            after = model.eval()(padded, positions, keep).mlm_BKV
            torch.testing.assert_close(after, model(short, positions).mlm_BKV, rtol=1e-3, atol=1e-4)
            assert (after - out.mlm_BKV).abs().max() > 0, "the step did something"


def test_one_rotation_serves_all_layers_and_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = rotary._rotation
    monkeypatch.setattr(rotary, "_rotation", lambda n, *rest: (made.append(n), original(n, *rest))[1])
    model = encoder(num_layers=3, max_seq_len=100)
    for length in (20, 30, 7, 33, 100, 64):
        model(tokens(length=length))
    assert made == [32, 64, 100], "with room to grow, and no more than the longest row takes"
    assert not list(model.buffers())
    assert not [name for name in model.state_dict() if "position" in name or "rotary" in name]


def test_a_model_cast_to_16_bits_keeps_its_rotation() -> None:
    model = encoder(max_seq_len=2048).eval()
    model(tokens())
    model.bfloat16()
    assert model.rotary is not None
    assert model.rotary(2048, CPU).cos_NHD.dtype == torch.float32
    assert model(tokens()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast(dtype: torch.dtype) -> None:
    model = encoder()
    expected = model(tokens())
    with torch.autocast("cpu", dtype):
        out = model(tokens())
    out.sum().backward()
    assert (out - expected).norm() < 0.03 * expected.norm()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.slow
def test_compiled_layers_serve_growing_lengths() -> None:
    torch._dynamo.reset()
    plain, compiled = encoder(**SOFTMAX), encoder(**SOFTMAX)
    for layer in compiled.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    for length in (8, LENGTH, 11):
        expected, out = (model(tokens(length=length)) for model in (plain, compiled))
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        gradients = [
            torch.autograd.grad(each.square().sum(), list(model.parameters()))
            for each, model in ((out, compiled), (expected, plain))
        ]
        for gradient, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4)


def test_one_exported_program_serves_every_length() -> None:
    model = encoder(**SOFTMAX, max_seq_len=600).eval()
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("tokens", min=2, max=600)
    shapes = ({0: rows, 1: length},)
    program = torch.export.export(model, (tokens(2, 50),), dynamic_shapes=shapes).module()
    for batch, count in [(1, 2), (3, 7), (2, 64), (1, 600)]:
        x = tokens(batch, count)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)
