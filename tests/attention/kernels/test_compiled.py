"""The kernels as compilers see them: PyTorch's, and that of a GPU."""

import re
import subprocess
import sys

import pytest
import torch
from interpreting import DEVICE
from small import ROOT
from torch import Tensor

from nystromformer.attention import create_attention
from nystromformer.attention.kernels import plan
from nystromformer.attention.kernels.ops import nystrom_attention
from nystromformer.attention.mask import AttentionMask

HEADS = pytest.mark.parametrize("H", [1, pytest.param(2, marks=pytest.mark.slow)])


@HEADS
@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_the_operator_keeps_what_pytorch_asks_of_one(masked: bool, H: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, H, 40, 32, generator=generator).to(DEVICE).requires_grad_() for _ in range(3))
    weight = torch.randn(H, 1, 3, 1, generator=generator).to(DEVICE).requires_grad_()
    rows: tuple[Tensor | None, ...] = (None,) * 6
    if masked:
        mask = AttentionMask(torch.arange(40, device=DEVICE) < torch.tensor([[40], [35]], device=DEVICE))
        rows = (mask.keep_BN, *mask.ranges(32))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(nystrom_attention, (q, k, v, *rows, weight, 32, 6), test_utils=checks, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@HEADS
def test_torch_compile_sees_one_operator(H: int) -> None:
    module = create_attention("nystrom", num_heads=H, head_dim=32, num_landmarks=32, implementation="triton").to(DEVICE)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    for N in (40, 57):
        q, k, v = (torch.randn(1, H, N, 32, generator=generator).to(DEVICE).requires_grad_() for _ in range(3))
        keep = (torch.arange(N) < N - 3)[None].to(DEVICE)
        torch.testing.assert_close(compiled(q, k, v, keep), module(q, k, v, keep))
        compiled(q, k, v, keep).sum().backward()
        assert q.grad is not None
        assert q.grad.isfinite().all()


@pytest.mark.parametrize(
    ("capability", "case", "room"),
    [("90", "bfloat16,32,64,33", plan.LARGE_ROOM), ("86", "bfloat16,32,128,129", plan.SMALL_ROOM)],
)
@pytest.mark.slow
def test_kernels_fit_a_gpu_that_is_not_here(capability: str, case: str, room: int) -> None:
    """What would be launched is compiled by NVIDIA's assembler, for a data centre's GPU and for another one."""
    told = subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / "compiling.py", capability, case],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    lines = re.findall(r"(\w+)_kernel shared=(\d+) registers=(\d+) stack=(\d+)", told.stdout)
    assert len(lines) == 2 * 11, "with and without a mask"
    assert all(int(shared) <= room for _, shared, _, _ in lines), told.stdout
