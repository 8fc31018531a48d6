"""What every attention keeps, tested by one suite over all of them."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_cases import CASES, DIM, FIRST, HEADS, LONGEST, Case, qkv, random_mask, suffix_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from largest import Largest
from torch import Tensor, nn

from nystromformer.attention import Attention, AttentionMask, attention_class, create_attention
from nystromformer.attention.skip import add_convolution
from nystromformer.config import ATTENTIONS

LENGTHS = [1, 2, 7, 8, 9, 24, 63, 100]
HUGE = 1e30

FIRST_IDS = {case.id for case in FIRST}
TRACED = {"nystrom+conv", "softmax+conv"}
QUICK = FIRST_IDS | TRACED | {"nystrom-3-iterations", "softmax+conv-unmasked"}
"""Each attention's first case, and all of the paper's two; the others run in `make test-all`."""
LIKE_ANOTHER = {
    *(f"{name}+conv" for name in ("linear", "performer", "linformer", "conv_linformer", "local", "longformer")),
    *(f"{name}+conv" for name in ("reformer", "sinkhorn", "sparse", "synthesizer", "mra")),
    *("softmax", "nystrom", "softmax+conv-unmasked", "local-alone", "sinkhorn-sharp"),
    *("nystrom-3-iterations", "near_far-blocks"),
}
"""Their graphs differ from another case's in numbers, or in the convolution, alone, or are a part of it."""


def parameter(case: Case) -> Any:
    return pytest.param(case, id=case.id, marks=[] if case.id in QUICK else pytest.mark.slow)


of_the_package = pytest.mark.skipif("NYSTROM_ATTENTION" in os.environ, reason="of the package's attentions")
every_case = pytest.mark.parametrize("case", [parameter(case) for case in CASES])


def holding(name: str, *without: str) -> pytest.MarkDecorator:
    cases = [case for case in CASES if getattr(case.build().holds, name) and case.id not in without]
    return pytest.mark.parametrize("case", [parameter(case) for case in cases])


def tracing(name: str) -> pytest.MarkDecorator:
    """Each graph with a mask, and those of the paper's two attentions without one. Tracing takes long: all are slow but
    one of these two each.
    """
    cases = [case for case in CASES if getattr(case.build().holds, name) and case.id not in LIKE_ANOTHER]
    return pytest.mark.parametrize(
        ("case", "masked"),
        [
            pytest.param(
                *(case, masked),
                id=f"{'masked' if masked else 'unmasked'}-{case.id}",
                marks=[] if masked and case.id in TRACED else pytest.mark.slow,
            )
            for case in cases
            for masked in (False, True)
            if masked or case.id in TRACED
        ],
    )


def masks(batch: int, length: int) -> dict[str, Tensor | None]:
    lengths = [max(0, length - 3 * row) for row in range(batch)]
    holes = random_mask(batch, length, seed=length)
    holes[-1] = False
    return {"none": None, "suffix": suffix_mask(length, *lengths), "holes": holes}


def gradients_of(out: Tensor, inputs: Sequence[Tensor], upstream: Tensor | None = None) -> tuple[Tensor, ...]:
    """Zero for what is not looked at."""
    return torch.autograd.grad(out, inputs, upstream, materialize_grads=True)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


@every_case
@pytest.mark.parametrize(
    ("length", "dtype"),
    [
        *((length, torch.float32) for length in LENGTHS),
        *((length, torch.float64) for length in (7, 64)),
        pytest.param(260, torch.float64, marks=pytest.mark.slow),
    ],
)
def test_outputs_and_gradients_are_the_oracles(case: Case, length: int, dtype: torch.dtype) -> None:
    # float32: 6 iterations of eq. 14 in float32 lose up to 1e-5 on these inputs in the oracle's formulation too.
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    module = case.build(dtype)
    q, k, v = qkv(3, length, seed=length, dtype=dtype)
    inputs = [q, k, v, *module.parameters()]
    for kind, keep in masks(3, length).items():
        out = module(q, k, v, keep)
        expected = case.expected(module, q, k, v, keep)
        assert relative_error(out, expected) < tolerance, kind
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
        gradients = gradients_of(out, inputs, upstream)
        wanted = gradients_of(expected, inputs, upstream.double())
        # One scale for all: with a single token the gradients of q and k are differences that cancel to zero.
        scale = max(b.abs().max().item() for b in wanted)
        for a, b in zip(gradients, wanted, strict=True):
            assert (a.double() - b.double()).abs().max().item() < tolerance * scale, kind


@every_case
def test_it_looks_at_what_it_asks_for(case: Case) -> None:
    module = case.build()
    x = qkv(2, 40)
    unused = [gradient is None for gradient in torch.autograd.grad(module(*x).sum(), x, allow_unused=True)]
    assert unused == [False, module.needs.no_key, False]


@holding("padding")
@pytest.mark.parametrize("extra", [1, 7, 100])
@pytest.mark.parametrize("length", [1, 6, 8, 9, 40])
def test_padding_changes_nothing(case: Case, extra: int, length: int) -> None:
    module = case.build()
    short = qkv(2, length, seed=3)
    long = [torch.cat([x.detach(), torch.full((2, HEADS, extra, DIM), HUGE)], 2).requires_grad_() for x in short]
    out = module(*long, suffix_mask(length + extra, length, length))
    assert torch.equal(out[:, :, length:], torch.zeros(2, HEADS, extra, DIM))
    torch.testing.assert_close(out[:, :, :length], module(*short), rtol=1e-4, atol=1e-5)
    gradients = gradients_of(out.square().sum(), long)
    for gradient in gradients:
        assert torch.isfinite(gradient).all()
        assert torch.equal(gradient[:, :, length:], torch.zeros(2, HEADS, extra, DIM))


AUTHORS = Case("authors", "nystrom", CASES[0].oracle, {"num_landmarks": 5, "segments": "padded", "pinv_start": "batch"})
"""Without an oracle: test_authors.py has one."""


@pytest.mark.parametrize(
    "case",
    [
        *(parameter(case) for case in CASES if case.build().holds.masking),
        pytest.param(AUTHORS, id="nystrom-like-the-authors"),
    ],
)
def test_masked_content_never_matters(case: Case) -> None:
    module = case.build()
    keep = random_mask(3, 50)
    x = qkv(3, 50)
    kept_B1N1 = keep[:, None, :, None]
    out = module(*x, keep)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    gradients = gradients_of(out, [*x, *module.parameters()], upstream)
    for value in (0.0, HUGE, -HUGE, float("nan"), float("inf"), -float("inf")):
        filled = [torch.where(kept_B1N1, a.detach(), value).requires_grad_() for a in x]
        again = module(*filled, keep)
        assert torch.equal(again, out), value
        # What follows may have made NaN of masked tokens' outputs, too.
        spoilt = torch.where(kept_B1N1, upstream, value)
        found = gradients_of(again, [*filled, *module.parameters()], spoilt)
        for number, (one, other) in enumerate(zip(found, gradients, strict=True)):
            assert torch.equal(one, other), (value, number)
            assert number > 2 or not one.masked_select(~kept_B1N1).any(), value
        if module.holds.weights:
            rows = [module.weights(q, k, keep, queries=[3, 5]) for q, k, _ in (filled, x)]
            assert torch.equal(*rows), value


@holding("zeros")
@pytest.mark.parametrize("length", [1, 5, 30])
def test_a_fully_masked_row_is_zero_with_finite_gradients(case: Case, length: int) -> None:
    module = case.build()
    x = qkv(2, length)
    out = module(*x, suffix_mask(length, 0, length))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert out[1].abs().sum() > 0
    for gradient in gradients_of(out.sum(), [*x, *module.parameters()]):
        assert torch.isfinite(gradient).all()


@holding("batch")
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_a_row_does_not_depend_on_its_neighbours(case: Case, masked: bool) -> None:
    module = case.build()
    x = qkv(4, 37)
    keep = suffix_mask(37, 37, 20, 8, 3) if masked else None
    together = module(*x, keep)
    for row in range(4):
        alone = module(*(a[row : row + 1] for a in x), None if keep is None else keep[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)


@every_case
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_a_batch_without_rows_is_taken(case: Case, masked: bool) -> None:
    q, k, v = (x[:0].detach().requires_grad_() for x in qkv(1, 20))
    k = q if case.build().needs.shared_query_key else k
    out = case.build()(q, k, v, torch.ones(0, 20, dtype=torch.bool) if masked else None)
    assert out.shape == v.shape
    assert gradients_of(out.sum(), [v])[0].shape == v.shape
    if case.build().holds.weights:
        assert case.build().weights(q, k, queries=[3, 4]).shape == (0, HEADS, 2, 20)
        assert case.build().mean_weights(q, k).shape == (0, HEADS, 20)


@every_case
def test_second_derivatives_are_right_or_refused(case: Case) -> None:
    """Also where the first derivative begins at a tensor that needs none."""
    module = case.build().double()
    q, k, v = (x.detach().double().requires_grad_() for x in qkv(1, 150))
    k = q if module.needs.shared_query_key else k
    step = torch.randn(v.shape, dtype=v.dtype, generator=torch.Generator().manual_seed(0))

    def first(v: Tensor, graph: bool) -> Tensor:
        (gradient,) = torch.autograd.grad(module(q, k, v).sum(), q, create_graph=graph, allow_unused=True)
        return (torch.zeros_like(q) if gradient is None else gradient).square().sum()

    try:
        (second,) = torch.autograd.grad(first(v, graph=True), v)
    except RuntimeError:
        return
    sides = [first(v.detach() + sign * 1e-5 * step, graph=False) for sign in (1, -1)]
    expected = (sides[0] - sides[1]) / 2e-5
    torch.testing.assert_close((second * step).sum(), expected, rtol=1e-3, atol=1e-5)


@every_case
def test_no_gradient_is_added_up_in_an_order_of_its_own(case: Case) -> None:
    """That of an index by tensors is, on several threads of a CPU; that of index_select is not."""
    waiting = [case.build()(*qkv(2, 60), random_mask(2, 60)).grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    assert "IndexBackward0" not in {node.name() for node in seen}


def test_a_mask_of_inference_mode_is_good_for_training() -> None:
    module, mask = create_attention("nystrom", num_heads=HEADS, head_dim=DIM, num_landmarks=8), random_mask(2, 40)
    shared, x = AttentionMask(mask), qkv(2, 40)
    with torch.inference_mode():
        module(*x, shared)
    for a, b in zip(gradients_of(module(*x, shared).sum(), x), gradients_of(module(*x, mask).sum(), x), strict=True):
        assert torch.equal(a, b)


@every_case
def test_the_outputs_precision_does_not_depend_on_the_mask(case: Case) -> None:
    module = case.build()
    q, k, v = qkv(2, 40)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(q, k, v).dtype == module(q, k, v, suffix_mask(40, 40, 20)).dtype


VIEWS = {
    "plain": (lambda x: x.contiguous(), lambda leaf: leaf),
    "of projections": (lambda x: x.transpose(1, 2).contiguous(), lambda leaf: leaf.transpose(1, 2)),
    "with gaps": (lambda x: x.repeat_interleave(2, 3), lambda leaf: leaf[..., ::2]),
}


@every_case
@pytest.mark.parametrize("batch", [1, 2])
def test_memory_layout_does_not_matter(case: Case, batch: int) -> None:
    module, made = case.build(), [x.detach() for x in qkv(batch, 33)]
    for keep in (None, random_mask(batch, 33)):
        found = []
        for make, view in VIEWS.values():
            leaves = [make(x).requires_grad_() for x in made]
            out = module(*map(view, leaves), keep)
            found.append([out, *map(view, gradients_of(out.square().sum(), leaves))])
        for other in found[1:]:
            for value, expected in zip(other, found[0], strict=True):
                torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_low_precision_stays_finite_and_close(case: Case, dtype: torch.dtype, masked: bool) -> None:
    module = case.build()
    x = qkv(2, 60, scale=1.0)
    keep = random_mask(2, 60) if masked else None
    expected = module(*x, keep)
    with torch.autocast("cpu", dtype=dtype):
        out = module(*(a.to(dtype) for a in x), keep)
    assert out.dtype == dtype
    # The budget: rounding only the inputs and the output to 16 bits already costs this much.
    budget = (module(*(a.to(dtype).float() for a in x), keep).to(dtype).float() - expected).abs().max().item()
    assert (out.float() - expected).abs().max().item() < 8 * budget
    for gradient in gradients_of(out.float().square().sum(), [*x, *module.parameters()]):
        assert torch.isfinite(gradient).all()


@every_case
def test_backward_under_autocast(case: Case) -> None:
    module = case.build()
    x = qkv(2, 60, scale=1.0)
    expected = gradients_of(module(*x).sum(), x)
    out = module(*x).sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = gradients_of(out, x)
    for a, b in zip(gradients, expected, strict=True):
        # PyTorch's own products run in bfloat16 there, that with Z among them, whose entries are large; the point is
        # that the iterations and the convolution, which stay in float32, do not fail for the mixture.
        assert relative_error(a, b.double()) < 0.15


def matrix_of(case: Case, module: Attention, q: Tensor, k: Tensor, keep: Tensor | None) -> Tensor:
    """The oracle's attention matrix, (B, H, N, N): its outputs for values that are one at a single token, without what
    learned values add.
    """
    N = q.shape[2]
    padded = torch.eye(N, -(-N // DIM) * DIM, dtype=torch.float64).expand(*q.shape[:2], -1, -1)
    of_none = case.oracle(module, q, k, torch.zeros(*q.shape[:3], DIM, dtype=torch.float64), keep)
    parts = [case.oracle(module, q, k, part, keep) - of_none for part in padded.split(DIM, dim=3)]
    return torch.cat(parts, dim=3)[..., :N]


@holding("weights")
@pytest.mark.parametrize("kind", ["none", "holes"])
def test_weights_of_chosen_tokens_are_the_matrix(case: Case, kind: str) -> None:
    module = case.build(torch.float64)
    length = 27
    q, k, _ = qkv(2, length, dtype=torch.float64)
    keep = masks(2, length)[kind]
    expected = matrix_of(case, module, q, k, None if module.config.ignore_mask else keep)
    # More than a head has channels, in no order, one of them twice.
    tokens = [26, 0, 7, 7, *range(8, 20)]
    rows = module.weights(q, k, keep, queries=tokens)
    assert not rows.requires_grad
    with torch.inference_mode():
        theirs = q * 1, k * 1, None if keep is None else keep & True
        assert torch.equal(module.weights(*theirs, queries=tokens), rows)
        assert torch.equal(module.mean_weights(*theirs), module.mean_weights(q, k, keep))
    torch.testing.assert_close(rows, expected[:, :, tokens], rtol=1e-9, atol=1e-11)
    counts = torch.ones(2, length, dtype=torch.bool) if keep is None or module.config.ignore_mask else keep
    mean = torch.einsum("bq,bhqk->bhk", counts / counts.sum(1, keepdim=True).clamp(min=1).double(), expected)
    torch.testing.assert_close(module.mean_weights(q, k, keep), mean, rtol=1e-9, atol=1e-11)


@holding("weights")
def test_weights_of_a_token_form_no_more_than_the_method_does(case: Case) -> None:
    module = case.build()
    q, k, v = qkv(1, 2048)
    with Largest() as own:
        gradients_of(module(q, k, v).sum(), [q, k, v])
    with Largest() as seen:
        module.weights(q, k, queries=[0])
    assert seen.elements <= own.elements


@of_the_package
def test_a_method_that_mixes_channels_apart_has_no_weights() -> None:
    without = [module for module in (case.build() for case in CASES) if not module.holds.weights]
    assert {type(module).__name__ for module in without} == {"ConvLinformerAttention"}
    for module in without:
        q, k, _ = qkv(2, 10)
        with pytest.raises(ValueError, match="mixes each channel"):
            module.weights(q, k, queries=[0])


class _Layers(nn.Module):
    """Attentions that share one mask, as an encoder's layers do."""

    def __init__(self, case: Case, count: int) -> None:
        super().__init__()
        if case.name == "nystrom":
            # All iterations are alike, and tracing them takes most of the time.
            case = replace(case, parameters={**case.parameters, "pinv_iterations": 1})
        self.layers = nn.ModuleList(case.build() for _ in range(count))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        mask = None if keep is None else AttentionMask(keep)
        for layer in self.layers:
            v = layer(q, k, v, mask)
        return v


@tracing("compile")
def test_compiles_as_one_graph(case: Case, masked: bool) -> None:
    torch._dynamo.reset()
    module = _Layers(case, 2 if case.id in TRACED else 1)
    # Of settings the forward alone; the paper's two for one length first, as users' calls do.
    whole = case.id in FIRST_IDS | TRACED
    way: dict[str, Any] = {"backend": "aot_eager" if whole else "eager", "dynamic": None if case.id in TRACED else True}
    compiled = torch.compile(module, fullgraph=True, **way)
    for length in (33, 50):
        x = qkv(2, length)
        keep = random_mask(2, length) if masked else None
        out, expected = compiled(*x, keep), module(*x, keep)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        gradients, wanted = gradients_of(out.sum(), x), gradients_of(expected.sum(), x)
        for a, b in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("way", ["eager", "aot_eager"])
def test_the_convolutions_gradient_is_right_at_lengths_where_conv2ds_is_not(way: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    v, upstream = (torch.randn(1, 4096, 4, 64, generator=generator).to(dtype).transpose(1, 2) for _ in range(2))
    weight = torch.randn(4, 1, 33, 1, generator=generator).to(dtype).requires_grad_()

    def total(weight: Tensor) -> Tensor:
        return (add_convolution(v, weight, torch.zeros_like(v)) * upstream).sum(dtype=torch.float32)

    run = total if way == "eager" else torch.compile(total, backend=way, fullgraph=True)
    (found,) = torch.autograd.grad(run(weight), weight)
    seen = torch.nn.functional.pad(v.double(), (0, 0, 16, 16)).unfold(2, 4096, 1)
    expected = torch.einsum("bhkdn,bhnd->hk", seen, upstream.double()).view(weight.shape)
    assert (found.double() - expected).norm() <= (1e-6 if dtype == torch.float32 else 3e-3) * expected.norm()


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor calls a C++ compiler")
def test_inductor_compiles_nystrom() -> None:
    torch._dynamo.reset()
    module = create_attention("nystrom", num_heads=HEADS, head_dim=DIM, num_landmarks=8, conv_kernel_size=3)
    x = qkv(2, 40)
    keep = random_mask(2, 40)
    out = torch.compile(module, fullgraph=True)(*x, keep)
    torch.testing.assert_close(out, module(*x, keep), rtol=1e-4, atol=1e-5)


@tracing("export")
def test_one_exported_program_serves_every_length(case: Case, masked: bool) -> None:
    module = case.build().eval()
    example = [x.detach() for x in qkv(2, 50)]
    rows, tokens = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("tokens", min=2, max=LONGEST)
    shape = {0: rows, 2: tokens}
    program = torch.export.export(
        module,
        (*example, random_mask(2, 50) if masked else None),
        dynamic_shapes=(shape, shape, shape, {0: rows, 1: tokens} if masked else None),
    ).module()
    for batch, length in [(1, 2), (3, 7), (1, 8), (2, 9), (1, 64), (2, 501), (1, LONGEST)]:
        x = [a.detach() for a in qkv(batch, length)]
        keep = random_mask(batch, length) if masked else None
        torch.testing.assert_close(program(*x, keep), module(*x, keep), rtol=1e-4, atol=1e-5)


@every_case
@settings(max_examples=25)
@given(data=st.data())
def test_any_batch_length_and_mask(case: Case, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 4), label="batch")
    length = data.draw(st.integers(1, 70), label="length")
    rows = st.lists(st.booleans(), min_size=length, max_size=length)
    keep = torch.tensor(data.draw(st.lists(rows, min_size=batch, max_size=batch), label="mask"))
    module = case.build(torch.float64)
    q, k, v = qkv(batch, length, seed=data.draw(st.integers(0, 99), label="seed"), dtype=torch.float64)
    out = module(q, k, v, keep)
    expected = case.expected(module, q, k, v, keep)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


@every_case
def test_what_does_not_fit_is_refused_with_a_reason(case: Case) -> None:
    module = case.build()
    q, k, v = qkv(2, 10)
    for mask, words in [
        (torch.zeros(2, 1, 1, 10), "per token"),
        (torch.ones(10, 10, dtype=torch.bool), "scores are never formed"),
        (torch.ones(2, 10), "bool"),
        (torch.ones(2, 9, dtype=torch.bool), r"\(2, 10\), found \(2, 9\)"),
        (torch.ones(2, 10).numpy() > 0, "mask must be a torch.Tensor.* found ndarray"),
    ]:
        with pytest.raises(ValueError, match=words):
            module(q, k, v, mask)
    with pytest.raises(ValueError, match="expected at least one token per row, found none"):
        module(q[:, :, :0], k[:, :, :0], v[:, :, :0])
    with pytest.raises(ValueError, match="hide the future"):
        module(q, k, v, is_causal=True)
    with pytest.raises(ValueError, match="k must have q's shape"):
        module(q, k[:, :, :5], v)
    with pytest.raises(ValueError, match="v must have q's dtype"):
        module(q, k, v.double())
    with pytest.raises(ValueError, match="q must have the shape"):
        module(q[0], k[0], v[0])


@of_the_package
def test_registry_and_config_are_in_step() -> None:
    assert {case.name for case in CASES} == set(ATTENTIONS), "every attention runs through this suite"
    for name, config in ATTENTIONS.items():
        module = create_attention(name, num_heads=HEADS, head_dim=DIM, max_length=512)
        assert type(module) is attention_class(config)
        assert module.config == config()


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match=r'unknown attention "nystrm"'):
        create_attention("nystrm", num_heads=2, head_dim=8)
    with pytest.raises(ValueError, match="num_heads"):
        create_attention("softmax", num_heads=0, head_dim=8)
