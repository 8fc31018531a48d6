"""Other attentions in torch's own modules.

Shapes: B batch, H heads, N tokens, E width.
"""

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from nystromformer.attention import Attention
from nystromformer.config import ATTENTIONS
from nystromformer.config.attention.methods import NearFarConfig
from nystromformer.nn import MultiheadAttention, NystromAttention, replace_attention

B, H, N, E, M = 3, 4, 10, 32, 16
KEEP_BN = torch.arange(N) < torch.tensor([[N], [6], [1]])


def spread(module: nn.Module) -> Any:
    """Weights so large that no softmax is all but uniform, and biases that are none of them zero."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3 + ("norm" in name)
    return module.eval()


def multihead(**options: Any) -> nn.MultiheadAttention:
    return spread(nn.MultiheadAttention(E, H, **{"batch_first": True, **options}))


def encoder(**options: Any) -> nn.TransformerEncoder:
    settings = {"dropout": 0.0, "batch_first": True, **options}
    layer = nn.TransformerEncoderLayer(E, H, 48, **settings)
    nested = settings["batch_first"] and not settings.get("norm_first", False)
    return spread(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))


def tokens(batch_first: bool = True) -> Tensor:
    x_BNE = torch.randn(B, N, E, generator=torch.Generator().manual_seed(1))
    return x_BNE if batch_first else x_BNE.transpose(0, 1)


def as_rows(out: Tensor, batch_first: bool) -> Tensor:
    """Of tokens that count, whatever the order of the dimensions."""
    return (out if batch_first else out.transpose(0, 1))[KEEP_BN]


def float_mask() -> Tensor:
    return torch.zeros(B, N).masked_fill(~KEEP_BN, -torch.inf)


@pytest.mark.parametrize("mask", [~KEEP_BN, float_mask()], ids=["bool", "float"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_few_tokens_get_multihead_attention_itself(batch_first: bool, bias: bool, mask: Tensor) -> None:
    theirs = multihead(batch_first=batch_first, bias=bias)
    ours = replace_attention(copy.deepcopy(theirs), "nystrom", num_landmarks=M)
    x, value = tokens(batch_first), tokens(batch_first).flip(-1)
    for v in (x, value):
        expected, _ = theirs(x, x, v, key_padding_mask=mask, need_weights=False)
        out, weights = ours(x, x, v, key_padding_mask=mask, need_weights=False)
        assert weights is None
        torch.testing.assert_close(as_rows(out, batch_first), as_rows(expected, batch_first), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        ours(x, x, x, need_weights=False)[0], theirs(x, x, x, need_weights=False)[0], rtol=1e-5, atol=1e-5
    )
    row_NE = tokens()[1]  # without a batch
    one, other = (each(row_NE, row_NE, row_NE, key_padding_mask=~KEEP_BN[1])[0][:6] for each in (ours, theirs))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mode", ["training", "evaluation", "no gradients"])
def test_few_tokens_get_the_encoder_itself(mode: str, batch_first: bool, norm_first: bool) -> None:
    theirs = encoder(batch_first=batch_first, norm_first=norm_first)
    ours = replace_attention(copy.deepcopy(theirs), "nystrom", num_landmarks=M)
    assert isinstance(ours, nn.TransformerEncoder)
    for model in (theirs, ours):
        model.train(mode == "training")
    x = tokens(batch_first)
    with torch.set_grad_enabled(mode != "no gradients"):
        for mask in (None, ~KEEP_BN, float_mask()):
            expected, out = (model(x, src_key_padding_mask=mask) for model in (theirs, ours))
            torch.testing.assert_close(as_rows(out, batch_first), as_rows(expected, batch_first), rtol=1e-5, atol=1e-5)


def test_gradients_of_few_tokens_are_torchs() -> None:
    theirs = encoder()
    ours = replace_attention(copy.deepcopy(theirs), "nystrom", num_landmarks=M)
    for model in (theirs, ours):
        out = model(tokens(), src_key_padding_mask=~KEEP_BN)[KEEP_BN]
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    for (name, their), our in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert their.grad is not None
        assert our.grad is not None
        error = float((our.grad - their.grad).abs().max())
        assert error <= 1e-5 * max(1.0, float(their.grad.abs().max())), name


def calls(model: nn.Module, run: Callable[[], object]) -> int:
    """How often an attention of this project was called; hooks would keep torch off its fast path."""
    seen = 0

    def counting(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def count(*args: Any) -> Tensor:
            nonlocal seen
            seen += 1
            return forward(*args)

        return count

    for module in model.modules():
        if isinstance(module, Attention):
            module.forward = counting(module.forward)  # type: ignore[method-assign]
    run()
    return seen


@pytest.mark.parametrize("mask", [None, ~KEEP_BN], ids=["no mask", "padding"])
def test_torchs_fast_path_does_not_bypass_it(mask: Tensor | None) -> None:
    assert torch.backends.mha.get_fastpath_enabled()
    ours = replace_attention(encoder(), "nystrom", num_landmarks=4)
    exact = encoder()
    with torch.no_grad():
        assert calls(ours, lambda: ours(tokens(), src_key_padding_mask=mask)) == 2
        (first, second) = (model(tokens(), src_key_padding_mask=mask)[KEEP_BN] for model in (ours, exact))
        assert not torch.allclose(first, second, rtol=1e-3, atol=1e-3)
        again = nn.TransformerEncoder(replace_attention(encoder()).layers[0], 3, enable_nested_tensor=False).eval()
        assert calls(again, lambda: again(tokens(), src_key_padding_mask=mask)) == 3
        alone = replace_attention(encoder().layers[1])
        assert calls(alone, lambda: alone(tokens(), src_key_padding_mask=mask)) == 1


@pytest.mark.parametrize("batch_first", [True, False])
def test_many_tokens_are_approximated_and_padding_changes_nothing(batch_first: bool) -> None:
    ours = replace_attention(encoder(batch_first=batch_first), "nystrom", num_landmarks=4)
    x_1NE = tokens()[:1]
    padded = nn.functional.pad(x_1NE, (0, 0, 0, 5), value=9.0)
    mask = torch.arange(15)[None] >= N
    turn = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    with_padding = turn(ours(turn(padded), src_key_padding_mask=mask))[:, :N]
    torch.testing.assert_close(with_padding, turn(ours(turn(x_1NE))), rtol=1e-5, atol=1e-5)


def test_parameters_are_the_same_ones_under_the_same_names() -> None:
    model = nn.ModuleDict({"encoder": encoder(), "head": nn.Linear(E, 2)})
    before = dict(model.named_parameters())
    assert replace_attention(model) is model
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is parameter for name, parameter in before.items())
    assert list(model.state_dict()) == list(before)


def test_what_is_asked_for_is_put_there() -> None:
    assert replace_attention(multihead()).core.config.num_selected == NearFarConfig().num_selected
    twice = replace_attention(replace_attention(multihead(), "nystrom", num_landmarks=3), "nystrom", num_landmarks=9)
    assert twice.core.config.num_landmarks == 9
    learned = replace_attention(multihead().double(), "linformer", max_length=40, projected_length=4)
    x = tokens().double()
    assert learned(x, x, x, need_weights=False)[0].dtype == torch.float64
    trained = replace_attention(multihead().train(), conv_kernel_size=3)
    assert trained.core.training
    assert "core.skip.weight" in trained.state_dict()


@pytest.mark.parametrize("attention", [name for name in ATTENTIONS if name not in ("reformer", "synthesizer")])
def test_every_attention_with_keys_of_its_own(attention: str) -> None:
    options = {"max_length": N} if attention == "linformer" else {}
    model = replace_attention(encoder(), attention, **options)
    assert model(tokens(), src_key_padding_mask=~KEEP_BN)[KEEP_BN].isfinite().all()
    # Sizes alone, as where a model is planned; it has neither autocast nor numbers.
    long = torch.empty(B, 100, E, device="meta")
    with torch.device("meta"):
        planned = replace_attention(encoder(), attention, **dict.fromkeys(options, 100))
        for mask in (None, torch.zeros(B, 100, dtype=torch.bool)):
            assert planned(long, src_key_padding_mask=mask).shape == long.shape


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("attention", ["nystrom", "near_far", "softmax"])
def test_equal_tensors_need_not_be_one(attention: str, batch_first: bool) -> None:
    """As casts of FSDP, DataParallel and traces make of them; and keys and values may be others of the same tokens."""
    ours = replace_attention(multihead(batch_first=batch_first), attention)
    x, y = tokens(batch_first), tokens(batch_first).flip(0)
    one, _ = ours(x, x, x, key_padding_mask=~KEEP_BN, need_weights=False)
    other, _ = ours(x, x.clone(), x.clone(), key_padding_mask=~KEEP_BN, need_weights=False)
    torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    if attention == "softmax":
        theirs, _ = multihead(batch_first=batch_first)(x, y, x)
        torch.testing.assert_close(ours(x, y, x, need_weights=False)[0], theirs, rtol=1e-5, atol=1e-5)


def test_hooks_attributes_and_buffers_go_along() -> None:
    old, seen = multihead(), []
    old.register_forward_pre_hook(lambda *call: seen.append("before"))
    old.register_forward_hook(lambda *call, **_: seen.append("after"), with_kwargs=True)
    old.register_full_backward_hook(lambda *call: seen.append("backward"))
    old.register_state_dict_post_hook(lambda *call: seen.append("state"))
    old.register_buffer("steps", torch.tensor(3))
    old.mine = "kept"
    ours = replace_attention(old, "nystrom", num_landmarks=4)
    x = tokens().requires_grad_()
    ours(x, x, x, need_weights=False)[0].sum().backward()
    assert list(ours.state_dict()) == list(old.state_dict())
    assert seen == ["before", "after", "backward", "state", "state"]
    assert (ours.mine, int(ours.steps)) == ("kept", 3)
    assert "core" not in dict(old.named_modules())


COPIES: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),  # noqa: S301  # our own
    "compile": lambda model: torch.compile(model, backend="aot_eager", fullgraph=True),
    "trace": lambda model: torch.jit.trace(model, tokens(), check_trace=False),
    "half": lambda model: lambda x: copy.deepcopy(model).bfloat16()(x.bfloat16()).float(),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("attention", ["nystrom", "near_far"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_copy_computes_the_same(attention: str, way: str) -> None:
    model = replace_attention(encoder(), attention)
    with torch.no_grad():
        error = 0.1 if way == "half" else 1e-5
        torch.testing.assert_close(COPIES[way](model)(tokens()), model(tokens()), rtol=error, atol=error)


def test_one_module_in_two_places_stays_one() -> None:
    shared = multihead()
    model = replace_attention(nn.ModuleList([nn.ModuleDict({"a": shared}), nn.ModuleDict({"b": shared})]))
    assert model[0]["a"] is model[1]["b"]
    assert isinstance(model[0]["a"], MultiheadAttention)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attn_mask": torch.zeros(N, N)}, "attn_mask and is_causal are refused"),
        ({"value": tokens()[:, :5]}, "must have query's shape"),
        ({"key_padding_mask": KEEP_BN.long()}, "mask must be a torch.Tensor of bool"),
        ({"key_padding_mask": torch.full((B, N), 0.5)}, "biases of the scores cannot be added"),
        ({"key_padding_mask": float_mask()[0]}, "mask must have the shape (batch, tokens)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_calls_that_are_refused(options: dict[str, Any], words: str) -> None:
    ours = replace_attention(multihead())
    x = tokens()
    given = {"key": x, "value": x, "need_weights": False, **options}
    with pytest.raises(ValueError, match=re.escape(words)):
        ours(x, **given)


def test_nested_input_is_refused() -> None:
    ours = replace_attention(multihead())
    q = torch.randn(2, H, 5, E // H)
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.as_nested_tensor([tokens()[0], tokens()[1, :6]], layout=layout)
        heads = torch.nested.as_nested_tensor([q[0], q[1]], layout=layout)
        calls: list[Callable[[], object]] = [
            lambda x=nested: ours(x, x, x, need_weights=False),
            lambda x=nested: NystromAttention(E, H)(x),
            lambda x=heads: ours.core(x, x, x),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="nested tensors are refused"):
                call()


def test_dropout_of_weights_is_refused_in_training_or_left_out() -> None:
    ours = replace_attention(encoder(dropout=0.1), "nystrom", num_landmarks=M)
    assert ours(tokens()).isfinite().all()
    with pytest.raises(ValueError, match=r"dropout=0.1 drops weights of pairs of tokens"):
        ours.train()(tokens())
    ours = replace_attention(encoder(dropout=0.1), "nystrom", num_landmarks=M, attention_dropout="leave_out").train()
    assert not torch.equal(ours(tokens()), ours(tokens())), "the layers' own dropout stays"
    for module in ours.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.testing.assert_close(ours(tokens()), encoder()(tokens()), rtol=1e-5, atol=1e-5)


class OwnKind(nn.MultiheadAttention):
    pass


def computed(make: Callable[..., object], *arguments: object) -> nn.MultiheadAttention:
    module = multihead()
    make(module, *arguments)
    return module


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        (nn.Linear(2, 2), {}, "there is no nn.MultiheadAttention in Linear"),
        (nn.Transformer(E, H, 1, 1, 8, batch_first=True), {}, "has a TransformerDecoder at decoder"),
        (nn.MultiheadAttention(E, H, kdim=5), {}, "its keys and values have the widths 5 and 32"),
        (nn.MultiheadAttention(E, H, add_bias_kv=True), {}, "add_bias_kv and add_zero_attn"),
        (OwnKind(E, H), {}, "OwnKind is a class of its own"),
        (computed(prune.l1_unstructured, "in_proj_weight", 0.3), {}, "parametrised or pruned"),
        (computed(parametrizations.weight_norm, "in_proj_weight"), {}, "parametrised or pruned"),
        (multihead(), {"attention": "reformer"}, "it makes its keys of the queries"),
        (multihead(), {"attention": "synthesizer", "max_length": 9}, "it does not look at the keys"),
        (multihead(), {"num_landmark": 3}, "num_landmark"),
        (multihead(), {"attention_dropout": "all"}, "attention_dropout must be one of refuse, leave_out"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_what_cannot_be_replaced(module: nn.Module, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        replace_attention(module, **options)


def test_nothing_is_changed_where_something_is_refused() -> None:
    model = nn.ModuleList([multihead(), OwnKind(E, H)])
    with pytest.raises(ValueError, match="OwnKind is a class of its own"):
        replace_attention(model)
    assert type(model[0]) is nn.MultiheadAttention
