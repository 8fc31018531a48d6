"""Float32 products by another library: only where they stay as exact, and without a trace afterwards."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from nystromformer.training import Device, device
from nystromformer.training.device import fast_products, products_are_float32

MKLDNN: Any = torch.backends.mkldnn


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    products_are_float32.cache_clear()
    assert MKLDNN.matmul.fp32_precision == "none"
    yield
    assert MKLDNN.matmul.fp32_precision == "none"
    products_are_float32.cache_clear()


def on(monkeypatch: pytest.MonkeyPatch, facts: str) -> None:
    monkeypatch.setattr(device, "_facts", lambda: facts)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


def test_products_are_float32_wherever_this_runs() -> None:
    """Whatever the processor: what was less exact is refused."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 130, 130, generator=generator)
    with fast_products():
        assert_close((a @ b).double(), a.double() @ b.double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "facts", ["GenuineIntel avx512f", "AuthenticAMD avx512f amx_bf16", ""], ids=["Intel", "AMX", "not Linux"]
)
def test_other_processors_keep_their_library(monkeypatch: pytest.MonkeyPatch, facts: str) -> None:
    on(monkeypatch, facts)
    with fast_products() as are_fast:
        assert not are_fast
        assert MKLDNN.matmul.fp32_precision == "none"


def test_a_library_that_is_less_exact_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "AuthenticAMD avx512f")
    exact = device._products

    def rounded(a: torch.Tensor) -> list[torch.Tensor]:
        return exact(a if a.dtype == torch.float64 else a.bfloat16().float())

    monkeypatch.setattr(device, "_products", rounded)
    with fast_products() as are_fast:
        assert not are_fast
        assert MKLDNN.matmul.fp32_precision == "none"


def test_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, on a CPU, of wide models."""
    on(monkeypatch, "AuthenticAMD avx512f")
    cpu = torch.device("cpu")
    for chosen, width, expected in (
        (Device(cpu, None), 256, True),
        (Device(cpu, None), 128, False),
        (Device(cpu, torch.bfloat16), 256, False),
        (Device(torch.device("cuda"), None), 256, False),
    ):
        with chosen.products(width):
            assert (MKLDNN.matmul.fp32_precision == "bf16") == (expected and products_are_float32())
