"""What holds for Nyström attention alone."""

import itertools
from functools import partial

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, random_mask, suffix_mask
from torch import Tensor
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from nystromformer.attention import (
    AttentionMask,
    NystromAttention,
    create_attention,
    iterative_pinv,
    reference,
)
from nystromformer.attention.landmarks import Segments, segment_means
from nystromformer.attention.pinv import PinvStart
from nystromformer.attention.skip import _convolve_channels


def nystrom(**parameters: object) -> NystromAttention:
    module = create_attention("nystrom", num_heads=HEADS, head_dim=DIM, **parameters)
    assert isinstance(module, NystromAttention)
    return module


def well_conditioned(seed: int, size: int = 16) -> Tensor:
    """A row-stochastic matrix near the identity."""
    noise = torch.rand(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(3 * torch.eye(size, dtype=torch.float64) + noise, -1)


@pytest.mark.parametrize("seed", range(5))
def test_eq_14_converges_to_the_pseudo_inverse_in_third_order(seed: int) -> None:
    a = well_conditioned(seed)
    exact = torch.linalg.pinv(a)
    torch.testing.assert_close(iterative_pinv(a[None], 20)[0], exact, rtol=1e-10, atol=1e-10)
    # Eq. 14 takes the residual R = I - AZ to R³(1 + 3R)/4... of third order: |R'| <= |R|³ once |R| < 1.
    eye = torch.eye(len(a), dtype=torch.float64)
    norms = [torch.linalg.matrix_norm(eye - a @ iterative_pinv(a[None], n)[0], 2).item() for n in range(1, 12)]
    checked = 0
    for before, after in itertools.pairwise(norms):
        if 1e-4 < before < 0.5:
            assert after <= 1.01 * before**3
            checked += 1
    assert checked >= 1


def test_the_inverse_of_a_rank_deficient_matrix_is_the_pseudo_inverse() -> None:
    a = well_conditioned(0)
    a[3] = a[4]
    z = iterative_pinv(a[None], 30)[0]
    torch.testing.assert_close(z, torch.linalg.pinv(a), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("start", ["matrix", "batch"])
def test_the_gradient_is_that_of_what_is_computed(start: PinvStart) -> None:
    # No two sums alike: at a tie the largest of them has no derivative for finite differences to find.
    a = torch.rand(3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(partial(iterative_pinv, iterations=4, start=start), a)


@pytest.mark.parametrize("iterations", [6, 12, 13, 24])
def test_the_inverse_stays_finite_where_all_tokens_are_alike(iterations: int) -> None:
    # At initialisation scores are small and A is of rank one up to rounding, which iterations enlarge.
    q, k, v = (0.02 * x if index < 2 else x for index, x in enumerate(qkv(1, 200, scale=1.0)))
    out = nystrom(num_landmarks=64, pinv_iterations=iterations)(q, k, v)
    assert (out - reference.softmax_attention(q, k, v)).abs().max() < 1e-2
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_a_short_rows_gradient_does_not_go_through_an_inverse() -> None:
    q, k, v = qkv(2, 40)
    with torch.no_grad():
        q[1], k[1] = 50.0, 50.0
    mask = torch.arange(40) < torch.tensor([[40], [5]])
    out = nystrom(num_landmarks=8, pinv_iterations=24)(q, k, v, mask)
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_lemma_2_landmarks_that_are_the_tokens_give_true_attention() -> None:
    # Landmarks that are the tokens make all three factors of S: S S⁺ S = S (Lemma 2).
    q, k, v = qkv(1, 12, dtype=torch.float64, scale=2.0)
    s = torch.stack([reference.softmax_matrix(q[0, h], k[0, h]) for h in range(HEADS)])
    expected = reference.softmax_attention(q, k, v)[0]
    torch.testing.assert_close(s @ iterative_pinv(s, 40) @ s @ v[0], expected, rtol=1e-6, atol=1e-6)


def test_the_svd_form_and_many_iterations_agree() -> None:
    q, k, v = qkv(1, 48, dtype=torch.float64, scale=2.5)
    many = nystrom(num_landmarks=6, pinv_iterations=24).double()(q, k, v)
    svd = reference.nystrom_attention(q, k, v, num_landmarks=6, iterations=None)
    torch.testing.assert_close(many, svd, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("masked", [False, True])
def test_input_no_longer_than_the_landmarks_needs_no_inverse(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of short rows are common in fine-tuning, and their inverses would be most of the work."""

    def refuse(*_: object) -> Tensor:
        raise AssertionError("an inverse was computed")

    monkeypatch.setattr("nystromformer.attention.nystrom.iterative_pinv", refuse)
    attention = nystrom(num_landmarks=16).double()
    q, k, v = qkv(2, 16, dtype=torch.float64)
    mask = suffix_mask(16, 16, 5) if masked else None
    torch.testing.assert_close(attention(q, k, v, mask), reference.softmax_attention(q, k, v, mask))
    with pytest.raises(AssertionError, match="an inverse"):
        attention(*qkv(2, 17, dtype=torch.float64))


@pytest.mark.parametrize(
    ("segments", "length"), [("valid", 43), ("valid", 40), ("padded", 40), ("padded_unmasked", 40)]
)
def test_the_factors_multiply_to_the_output(segments: str, length: int) -> None:
    q, k, v = qkv(3, length, dtype=torch.float64)
    attention = nystrom(num_landmarks=8, segments=segments).double()
    factors = attention.factors(q, k)
    assert [tuple(f.shape) for f in factors] == [(3, HEADS, length, 8), (3, HEADS, 8, 8), (3, HEADS, 8, length)]
    product = factors.queries_BHNM @ factors.inverse_BHMM @ factors.keys_BHMN @ v
    torch.testing.assert_close(product, attention(q, k, v), rtol=1e-8, atol=1e-9)
    with pytest.raises(ValueError, match=r"num_landmarks = 8 tokens get exact attention, not factors: .* found 8"):
        attention.factors(q[:, :, :8], k[:, :, :8])


def test_segment_means_of_bfloat16_are_of_float32() -> None:
    x = qkv(1, 4096, dtype=torch.bfloat16)[0].detach()
    means = segment_means(x, Segments.of_length(1, 4096, 8, x.device))
    assert means.dtype == torch.float32
    torch.testing.assert_close(means.double(), x.double().unflatten(2, (8, 512)).mean(3), rtol=0, atol=1e-6)


def hugging_face(num_landmarks: int, length: int) -> NystromformerSelfAttention:
    torch.manual_seed(0)
    config = NystromformerConfig(
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        num_landmarks=num_landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=5,
        attention_probs_dropout_prob=0.0,
    )
    module = NystromformerSelfAttention(config).double().eval()
    # Weights of size one, so that scores are far from uniform.
    for linear in (module.query, module.key, module.value):
        torch.nn.init.normal_(linear.weight, std=0.6)
    return module


def ours_like(peer: NystromformerSelfAttention, x: Tensor, mask: Tensor | None, segments: str) -> Tensor:
    sizes = {"num_landmarks": peer.num_landmarks, "conv_kernel_size": 5}
    module = nystrom(**sizes, segments=segments, pinv_start="batch").double()
    assert module.skip is not None
    with torch.no_grad():
        module.skip.weight.copy_(peer.conv.weight)
    q, k, v = (
        projection(x).unflatten(2, (HEADS, DIM)).transpose(1, 2) for projection in (peer.query, peer.key, peer.value)
    )
    out: Tensor = module(q, k, v, mask).transpose(1, 2).flatten(2)
    return out


@pytest.mark.parametrize("segments", ["padded", "padded_unmasked"])
@pytest.mark.parametrize("length", [8, 32, 64])
def test_compatibility_options_reproduce_transformers(segments: str, length: int) -> None:
    peer = hugging_face(8, length)
    x = torch.randn(3, length, HEADS * DIM, dtype=torch.float64)
    torch.testing.assert_close(ours_like(peer, x, None, segments), peer(x)[0], rtol=1e-8, atol=1e-9)


def test_padded_unmasked_reproduces_transformers_with_its_4d_mask() -> None:
    peer = hugging_face(8, 32)
    torch.nn.init.zeros_(peer.conv.weight)  # its convolution sees the padding, ours never does
    x = torch.randn(3, 32, HEADS * DIM, dtype=torch.float64)
    keep = suffix_mask(32, 32, 20, 9)
    additive = torch.zeros(3, 1, 1, 32, dtype=torch.float64).masked_fill(~keep[:, None, None], -1e9)
    expected = peer(x, attention_mask=additive)[0]
    out = ours_like(peer, x, keep, "padded_unmasked")
    torch.testing.assert_close(out[keep], expected[keep], rtol=1e-8, atol=1e-9)


def test_fixed_segments_refuse_a_length_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match="multiple of it, found 30"):
        nystrom(num_landmarks=8, segments="padded")(*qkv(1, 30))


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_a_sums_gradient_reaches_the_cpu_convolution_as_a_copy(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one number, seen everywhere: such views are convolved at a tenth of the speed."""
    skip = nystrom(conv_kernel_size=5).skip
    assert skip is not None
    _, other, v = qkv(2, 40)
    out = skip(v, other, AttentionMask(random_mask(2, 40)) if masked else None)
    seen: list[Tensor] = []

    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        seen.append(x)
        return _convolve_channels(x, weight)

    monkeypatch.setattr("nystromformer.attention.skip._convolve_channels", convolve)
    torch.autograd.grad(out.sum(), v)
    (gradient,) = seen
    assert gradient.untyped_storage().nbytes() >= 4 * gradient.numel()


@pytest.mark.parametrize(
    ("length", "taps", "dtype"),
    [
        *((length, taps, torch.float32) for length in (1, 20, 300, 4096) for taps in (1, 5, 33)),
        *((300, 33, dtype) for dtype in (torch.bfloat16, torch.float16)),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_the_cpu_convolution_and_its_gradients_agree_with_the_oracle(
    length: int, taps: int, dtype: torch.dtype, masked: bool
) -> None:
    """Of 16 bits they are rounded once."""
    skip = nystrom(conv_kernel_size=taps).skip
    assert skip is not None
    other, v = (x.detach().to(dtype).requires_grad_() for x in qkv(2, length)[1:])
    keep = random_mask(2, length) if masked else None
    factor = torch.ones(1) if keep is None else keep[:, None, :, None].float()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
        out = skip(v * factor.to(dtype), other, None if keep is None else AttentionMask(keep))
    expected = reference.depthwise_convolution(v, skip.weight, keep) + other * factor
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradients = torch.autograd.grad(out, (v, other, skip.weight), upstream)
    wanted = torch.autograd.grad(expected, (v, other, skip.weight), upstream.double())
    assert [x.dtype for x in (out, *gradients)] == [dtype, dtype, dtype, torch.float32]
    exact = 2e-6 if dtype == torch.float32 else 1e-5
    for a, b in zip((out, *gradients), (expected, *wanted), strict=True):
        precision = exact if a.dtype == torch.float32 else torch.finfo(dtype).eps
        assert (a - b).abs().max() < precision * max(1.0, b.abs().max().item())
