"""Which implementation computes, and what is said where one cannot."""

import logging

import pytest
import torch
from interpreting import DEVICE, ON_GPU
from torch.utils.checkpoint import checkpoint

from nystromformer.attention import create_attention, kernels, nystrom
from nystromformer.attention.kernels import ops, trial


def attend(
    N: int = 40, H: int = 1, D: int = 32, dtype: torch.dtype = torch.float32, **parameters: object
) -> torch.Tensor:
    module = create_attention("nystrom", num_heads=H, head_dim=D, **{"num_landmarks": 32, **parameters})
    q = torch.randn(1, H, N, D).to(DEVICE, dtype)
    out: torch.Tensor = module.to(DEVICE, dtype)(q, q, q)
    return out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_landmarks": 16}, "num_landmarks is 16: supported are 32, 64"),
        ({"D": 48}, "head_dim is 48: supported are 32, 64, 128"),
        ({"num_landmarks": 64, "N": 80, "D": 128}, "num_landmarks x head_dim is 8192: supported with torch.float32"),
        ({"dtype": torch.float64}, "the dtype is torch.float64: supported are bfloat16, float16 and float32"),
        ({"conv_kernel_size": 131}, "conv_kernel_size is 131: supported are up to 129"),
        ({"pinv_iterations": 13}, "the kernels iterate in float32, of which 12 are stable, not 13"),
        (
            {"pinv_iterations": 9, "dtype": torch.bfloat16},
            "the kernels iterate in bfloat16, of which 8 are stable, not 9",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name_and_left_to_torch_by_auto(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match='implementation="triton" cannot compute this') as error:
        attend(**changes, implementation="triton")  # type: ignore[arg-type]
    assert reason in str(error.value)
    assert 'Use "torch" or "auto"' in str(error.value)
    assert torch.isfinite(attend(**changes, implementation="auto")).all()  # type: ignore[arg-type]


def test_cpu_tensors_need_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    module = create_attention("nystrom", num_heads=1, head_dim=32, num_landmarks=32, implementation="triton")
    q = torch.randn(1, 1, 40, 32)
    with pytest.raises(ValueError, match="the tensors are on cpu: kernels run on CUDA devices"):
        module(q, q, q)


def test_without_triton_everything_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "IS_INSTALLED", False)
    with pytest.raises(ValueError, match="triton is not installed"):
        attend(implementation="triton")
    assert attend().isfinite().all()


def test_short_input_is_exact_attention_by_either() -> None:
    for implementation in ("torch", "triton"):
        q = torch.randn(1, 1, 32, 32)
        module = create_attention("nystrom", num_heads=1, head_dim=32, num_landmarks=32, implementation=implementation)
        torch.testing.assert_close(module(q, q, q), torch.nn.functional.scaled_dot_product_attention(q, q, q))


@pytest.fixture
def auto_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter stands in for a GPU."""
    monkeypatch.setattr(nystrom, "_FUSED_ON", (DEVICE.type,))
    nystrom._say_once.cache_clear()
    trial._verdicts.clear()


@pytest.mark.usefixtures("auto_everywhere")
def test_auto_tries_the_kernels_and_says_once_what_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            for D in (32, 48):
                assert attend(D=D).isfinite().all()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "Nyström attention with fused kernels"),
        ("INFO", "Nyström attention without fused kernels: head_dim is 48: supported are 32, 64, 128"),
    ]


@pytest.mark.usefixtures("auto_everywhere")
@pytest.mark.parametrize(
    ("broken", "reason"),
    [("fails", "RuntimeError: no such instruction"), ("lies", "their results are wrong"), ("nan", "wrong")],
)
def test_auto_leaves_kernels_that_fail_or_lie_to_tensor_operations(
    broken: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a driver, a compiler or a GPU does: "auto" computes what "torch" would, and says why."""
    right = ops.nystrom_attention

    def wrong(*args: object) -> tuple[torch.Tensor, ...]:
        if broken == "fails":
            raise RuntimeError("no such instruction")
        out, *rest = right(*args)
        return (out * (1.01 if broken == "lies" else float("nan")), *rest)

    monkeypatch.setattr(ops, "nystrom_attention", wrong)
    with caplog.at_level(logging.WARNING):
        torch.manual_seed(0)
        out = attend(conv_kernel_size=3)
        torch.manual_seed(0)
        assert torch.equal(out, attend(conv_kernel_size=3, implementation="torch"))
    (record,) = caplog.records
    assert "without fused kernels: they were tried and" in record.message
    assert reason in record.message


@pytest.mark.usefixtures("auto_everywhere")
def test_kernels_with_a_mask_are_tried_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.nystrom_attention

    def without_masks(*args: object) -> tuple[torch.Tensor, ...]:
        if args[3] is not None:
            raise AssertionError
        results: tuple[torch.Tensor, ...] = right(*args)
        return results

    monkeypatch.setattr(ops, "nystrom_attention", without_masks)
    case = ("cpu", 32, 32, torch.float32, 3)
    assert trial.failure(*case, has_mask=False) is None
    assert trial.failure(*case, has_mask=True) == "they fail on cpu: AssertionError"


@pytest.mark.usefixtures("auto_everywhere")
@pytest.mark.parametrize(
    ("taps", "has_mask"),
    [(0, False), (5, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, True), (5, False)))],
)
def test_kernels_that_are_right_pass_the_trial(taps: int, has_mask: bool) -> None:
    assert trial.failure(str(DEVICE), 32, 32, torch.bfloat16, taps, has_mask) is None


@pytest.mark.usefixtures("auto_everywhere")
def test_the_trial_does_not_meddle_with_checkpointing() -> None:
    """Nor with whatever else the caller is amid of."""
    module = create_attention("nystrom", num_heads=1, head_dim=32, num_landmarks=32).to(DEVICE)
    q = torch.randn(1, 1, 40, 32, device=DEVICE, requires_grad=True)
    out = checkpoint(module, q, q, q, use_reentrant=False)
    (gradient,) = torch.autograd.grad(out.sum(), q)
    (expected,) = torch.autograd.grad(module(q, q, q).sum(), q)
    torch.testing.assert_close(gradient, expected)
    assert set(trial._verdicts.values()) == {None}
    trial._verdicts.clear()
    with torch.device("meta"), torch.inference_mode():
        assert trial.failure(str(DEVICE), 32, 32, torch.float32, 0, False) is None


@pytest.mark.usefixtures("auto_everywhere")
def test_a_failed_trial_is_kept_and_a_capture_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    case = (str(DEVICE), 32, 32, torch.float32, 0, False)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert "before a CUDA graph is captured" in str(trial.failure("cuda:0", *case[1:]))
    assert trial._verdicts == {}
    with monkeypatch.context() as patch:
        patch.setattr(ops, "nystrom_attention", full)
        failed = trial.failure(*case)
    assert failed == f"they fail on {DEVICE}: OutOfMemoryError: CUDA out of memory"
    assert trial.failure(*case) == failed, "as the forward had it"


@pytest.mark.slow
@pytest.mark.usefixtures("auto_everywhere")
def test_auto_within_a_compiled_model() -> None:
    module = create_attention("nystrom", num_heads=1, head_dim=32, num_landmarks=32).to(DEVICE)
    q = torch.randn(1, 1, 40, 32, device=DEVICE)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, q, q), module(q, q, q))


@pytest.mark.parametrize(
    ("room", "dtype", "N", "reason"),
    [
        (99, torch.bfloat16, 40, None),
        (99, torch.float32, 40, "99 KiB of shared memory, of which the kernels need 163"),
        (64, torch.float16, 40, "64 KiB of shared memory, of which the kernels need 99"),
        (163, torch.float32, 40, None),
        (163, torch.bfloat16, 33_038_208, None),
        (163, torch.bfloat16, 33_038_209, "fewer than 33,038,209"),
    ],
)
def test_little_shared_memory_and_positions_beyond_32_bits_are_left_to_tensor_operations(
    room: int, dtype: torch.dtype, N: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "room", lambda device: room * 1024)
    refusal = kernels.why_not(_OnGpu(dtype, 1, 1, N, 64), 64, None)  # type: ignore[arg-type]
    assert refusal is None if reason is None else reason in str(refusal)


class _OnGpu:
    """What the choice looks at, of a tensor that need not exist."""

    device = torch.device("cuda")

    def __init__(self, dtype: torch.dtype, *shape: int) -> None:
        self.dtype, self.shape = dtype, shape

    def element_size(self) -> int:
        return self.dtype.itemsize


@pytest.mark.skipif(ON_GPU, reason="there is one")
def test_on_a_cpu_auto_is_tensor_operations() -> None:
    torch.manual_seed(0)
    auto = attend(implementation="auto")
    torch.manual_seed(0)
    assert torch.equal(auto, attend(implementation="torch"))
