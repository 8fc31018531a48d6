"""The fused kernels against the float64 oracle: outputs, gradients, masks, lengths, sizes, strides."""

from typing import Any

import pytest
import torch
from interpreting import DEVICE, ON_GPU
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nystromformer.attention import comparison, reference
from nystromformer.attention.comparison import (
    MASKS,
    Results,
    by_tensor_operations,
    draw_inputs,
    errors,
    masks_of_all_kinds,
    results,
    with_gradients,
)
from nystromformer.attention.nystrom import NystromAttention

FLOAT32 = 3e-5
"""Relative, in the Frobenius norm: far above float32's own error, far below any mistake's."""


def build(
    H: int, D: int, M: int, K: int | None = None, implementation: str = "triton", iterations: int = 6
) -> NystromAttention:
    parameters = {"num_landmarks": M, "conv_kernel_size": K, "pinv_iterations": iterations}
    return comparison.build(1, DEVICE, num_heads=H, head_dim=D, implementation=implementation, **parameters)


def by_the_equations(module: NystromAttention, inputs: list[Tensor], keep_BN: Tensor | None = None) -> Results:
    """By `reference`, in float64 on the CPU, with a module's numbers and weights."""
    q, k, v = (x.detach().cpu().double().requires_grad_() for x in inputs[:3])
    keep_BN = None if keep_BN is None else keep_BN.cpu()
    sizes = {"num_landmarks": module.config.num_landmarks, "iterations": module.config.pinv_iterations}
    out, weight = reference.nystrom_attention(q, k, v, keep_BN, **sizes), None
    if module.skip is not None:
        weight = module.skip.weight.detach().cpu().double().requires_grad_()
        out = out + reference.depthwise_convolution(v, weight, keep_BN)
    return with_gradients(out, q, k, v, weight, inputs[3].cpu())


def tensors(B: int, H: int, N: int, D: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Q, K, V and a gradient of the output; the same numbers on every device."""
    return [x.to(DEVICE) for x in draw_inputs((B, N, H, D), dtype, torch.Generator().manual_seed(seed))]


def assert_close(values: Results, expected: Results, tolerance: float = FLOAT32) -> None:
    assert values.keys() == expected.keys()
    wrong = {name: error for name, error in errors(values, expected).items() if not error < tolerance}
    assert not wrong


def ragged(B: int, N: int, seed: int = 3) -> Tensor:
    """Rows of padding behind, of padding in front, of gaps, without any token; if there are fewer, one of several."""
    kinds = masks_of_all_kinds(N, 8, torch.Generator().manual_seed(seed))
    keep = torch.ones(B, N, dtype=torch.bool)
    for row, kind in enumerate(kinds[: MASKS.index("gaps") + 1]):
        keep[row % B] &= kind
    if B > 3:
        keep[3] = kinds[MASKS.index("none")]
    return keep.to(DEVICE)


def slow(*values: object) -> Any:
    """What the interpreter takes seconds for, and what is like a case that is not marked."""
    return pytest.param(*values, marks=pytest.mark.slow)


HEADS = pytest.mark.parametrize("H", [1, slow(2)])
"""One head is half the work for the interpreter; two show whether any is taken for the other."""


@pytest.mark.parametrize(
    ("B", "H", "N", "D", "M", "options", "is_masked"),
    [
        *((1, 1, N, D, M, {"K": 9}, False) for M, D, N in ((32, 32, 33), (64, 64, 200))),
        *(slow(1, 1, N, D, M, {"K": 9}, False) for M, D, N in ((32, 64, 96), (32, 128, 100), (64, 32, 70))),
        (2, 1, 100, 128, 32, {"K": 9}, True),
        slow(2, 1, 200, 64, 64, {"K": 9}, True),
        *((1, 2, N, 32, 32, {"K": 33}, False) for N in (63, 129)),
        *(slow(1, 2, N, 32, 32, {"K": 33}, False) for N in (64, 65, 127, 128, 191, 500)),
        (2, 2, 100, 32, 32, {"K": 3}, True),
        *(slow(2, 2, 100, 32, 32, {"K": K}, True) for K in (None, 1, 33, 65, 129)),
        *((1, 1, 70, 32, 32, {"iterations": iterations}, False) for iterations in (1, 3)),
    ],
    ids=str,
)
def test_sizes_lengths_filters_and_iterations(
    B: int, H: int, N: int, D: int, M: int, options: dict[str, Any], is_masked: bool
) -> None:
    module, x = build(H, D, M, **options), tensors(B, H, N, D)
    keep = ragged(B, N) if is_masked else None
    assert_close(results(module, x, keep), by_the_equations(module, x, keep))


@HEADS
def test_masks_of_all_kinds_with_short_and_empty_rows(H: int) -> None:
    module, x = build(H, 32, 32, K=5), tensors(6, H, 90, 32)
    keep = masks_of_all_kinds(90, 32, torch.Generator().manual_seed(3)).to(DEVICE)
    values = results(module, x, keep)
    assert_close(values, by_the_equations(module, x, keep))
    assert all(value.isfinite().all() for value in values.values())
    few = MASKS.index("fewer tokens than landmarks")
    row, count = slice(few, few + 1), int(keep[few].sum())
    assert 0 < count < 32, "exact attention"
    q, k, v = (each[row, :, :count] for each in x[:3])
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert module.skip is not None
    exact = exact + reference.depthwise_convolution(v, module.skip.weight).float()
    torch.testing.assert_close(values["out"][row, :, :count], exact, atol=1e-5, rtol=1e-5)


@HEADS
def test_what_is_masked_does_not_matter_and_gets_nothing(H: int) -> None:
    module, x = build(H, 32, 32, K=5), tensors(3, H, 80, 32)
    keep = ragged(3, 80)
    before = results(module, x, keep)
    for contents in ((1e30, 1e30, 1e30, -1e30), (float("nan"), float("inf"), float("nan"), float("nan"))):
        for each, content in zip(x, contents, strict=True):
            each.masked_fill_(~keep[:, None, :, None], content)
        after = results(module, x, keep)
        for name, value in before.items():
            assert torch.equal(value, after[name]), name
        for name in ("out", "q", "k", "v"):
            assert not after[name].masked_select(~keep[:, None, :, None]).any(), name


@HEADS
def test_padding_and_neighbours_change_nothing(H: int) -> None:
    module, x = build(H, 32, 32, K=5), tensors(3, H, 100, 32)
    keep = torch.ones(3, 100, dtype=torch.bool, device=DEVICE)
    keep[:, 70:] = False
    together = results(module, x, keep)["out"]
    alone = results(module, [each[:1, :, :70] for each in x])["out"]
    torch.testing.assert_close(together[:1, :, :70], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("enough", [slow(1), 4, slow(512)])
def test_any_number_of_programs(enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nystromformer.attention.kernels.plan.ENOUGH_PROGRAMS", enough)
    module, x = build(1, 32, 32, K=5), tensors(1, 1, 300, 32)
    keep = ragged(1, 300)
    assert_close(results(module, x, keep), by_the_equations(module, x, keep))


@pytest.mark.parametrize("view", [slow("wider"), "every other", slow("transposed"), slow("one for all")])
def test_masks_and_filters_that_are_views(view: str) -> None:
    module, x = build(2, 32, 32, K=5), tensors(2, 2, 80, 32)
    keep = ragged(2, 80)
    views = {
        "wider": lambda: torch.cat([keep, ~keep], 1)[:, :80],
        "every other": lambda: torch.stack([keep, ~keep], 2).flatten(1)[:, ::2],
        "transposed": lambda: keep.t().contiguous().t(),
        "one for all": lambda: keep[:1].expand(2, 80),
    }
    seen = views[view]()
    assert seen.stride() != (80, 1)
    assert module.skip is not None
    module.skip.weight = torch.nn.Parameter(torch.cat([module.skip.weight.detach()] * 2, 3)[..., :1])
    assert module.skip.weight.stride(2) == 2
    assert_close(results(module, x, seen), by_the_equations(module, x, seen.contiguous()))


def test_autocast_does_not_reach_products_of_landmarks() -> None:
    module, x = build(1, 32, 64, K=None, iterations=2), tensors(1, 1, 68, 32, torch.bfloat16)
    expected = results(module, x)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        values = results(module, x)
    for name, value in expected.items():
        assert torch.equal(values[name], value), name


def test_launches_are_on_the_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be the current one: Triton launches on that."""
    entered: list[Tensor] = []
    device_of = torch.cuda.device_of

    def seen(x: Tensor) -> torch.cuda.device_of:
        entered.append(x)
        return device_of(x)

    monkeypatch.setattr(torch.cuda, "device_of", seen)
    results(build(1, 32, 32), tensors(1, 1, 40, 32))
    assert len(entered) == 2, "forward and backward"
    assert all(x.device.type == DEVICE.type for x in entered)


LAYOUTS = {
    "swapped": lambda each: each.transpose(2, 3).contiguous().transpose(2, 3),
    "rows": lambda each: each.contiguous(),
    "wide": lambda each: torch.cat([each] * 2, 1)[:, 2:],
}


@pytest.mark.parametrize("layout", ["swapped", slow("rows"), slow("wide")])
def test_any_strides(layout: str) -> None:
    module, x = build(2, 32, 32, K=5), tensors(2, 2, 40, 32)
    others = [*map(LAYOUTS[layout], x[:3]), x[3]]
    assert others[0].stride() != x[0].stride()
    expected = results(module, x)
    for name, value in results(module, others).items():
        assert torch.equal(value, expected[name]), name


def test_a_gradient_without_strides() -> None:
    module, x = build(2, 32, 32, K=5), tensors(2, 2, 40, 32)
    broadcast = [*x[:3], x[3][:1, :1, :1].expand_as(x[3])]
    assert_close(results(module, broadcast), by_the_equations(module, broadcast))


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *(slow(torch.bfloat16, 0.3), (torch.bfloat16, 1), slow(torch.bfloat16, 3)),
        *(slow(torch.float16, 0.3), slow(torch.float16, 1), slow(torch.float16, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("D", [64, slow(128)])
def test_short_numbers_are_as_close_as_tensor_operations(dtype: torch.dtype, scale: float, D: int) -> None:
    """Also where all keys look alike, which the inverse enlarges most, and where a few take all."""
    module, x = build(1, D, 64, K=9), tensors(2, 1, 150, D, dtype)
    x[:2] = [each * scale for each in x[:2]]
    keep = ragged(2, 150)
    expected = by_the_equations(module, x, keep)
    plain = build(1, D, 64, K=9, implementation="torch")
    with torch.autocast(DEVICE.type, dtype):
        usual = errors(results(plain, x, keep), expected)
        ours = errors(results(module, x, keep), expected)
    assert results(module, x, keep)["out"].dtype == dtype
    assert all(ours[name] < 2 * usual[name] for name in expected), (ours, usual)


@HEADS
def test_every_element_is_written(H: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory is full of NaN, which no result may keep."""
    module, x = build(H, 32, 32, K=5), tensors(4, H, 75, 32)
    keep = ragged(4, 75)
    expected = results(module, x, keep)
    empty = torch.empty

    def poisoned(*size: object, **options: object) -> Tensor:
        memory: Tensor = empty(*size, **options)  # type: ignore[call-overload]
        return memory.fill_(float("nan")) if memory.is_floating_point() else memory

    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(
        torch, "empty_like", lambda x: empty(x.shape, dtype=x.dtype, device=x.device).fill_(float("nan"))
    )
    for name, value in results(module, x, keep).items():
        assert torch.equal(value, expected[name]), name


def test_the_oracles_agree() -> None:
    """The equations row by row, and tensor operations in float64, by which `run_benchmark.py gpu` measures errors."""
    module, x = build(2, 32, 32, K=5, implementation="torch"), tensors(6, 2, 90, 32)
    for keep in (None, masks_of_all_kinds(90, 32, torch.Generator().manual_seed(3)).to(DEVICE)):
        assert_close(by_tensor_operations(module, x, keep), by_the_equations(module, x, keep), tolerance=1e-12)


@pytest.mark.skipif(not ON_GPU, reason="compiles for a GPU")
def test_on_the_gpu_auto_takes_the_kernels() -> None:
    module, x = build(2, 64, 64, K=9, implementation="auto"), tensors(2, 2, 150, 64)
    fused = build(2, 64, 64, K=9)
    assert torch.equal(results(module, x)["out"], results(fused, x)["out"])


@pytest.mark.skipif(not ON_GPU, reason="too many programs for the interpreter")
@pytest.mark.parametrize(("B", "N"), [(70_000, 40), (1, 1_000_003)], ids=["rows", "tokens"])
def test_on_the_gpu_many_rows_and_many_tokens(B: int, N: int) -> None:
    module, x = build(1, 32, 32, K=5), tensors(B, 1, N, 32, torch.bfloat16)
    plain = build(1, 32, 32, K=5, implementation="torch")
    # The other backends end at 65,535 rows.
    with torch.autocast(DEVICE.type, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        usual = results(plain, x)
    assert all(error < 0.05 for error in errors(results(module, x), {k: v.cpu() for k, v in usual.items()}).values())
