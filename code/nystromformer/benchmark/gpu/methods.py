"""Attention by every method that is compared, and the calls that are timed.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.peers import NystromAttentionPackage, Shape, TransformersCore, fused_softmax, installed
from nystromformer.benchmark.pieces import LeftOut
from nystromformer.benchmark.timing import Work
from nystromformer.training.device import Device

OURS, MASKED, TORCH = "nystrom, kernels", "nystrom, kernels, padding", "nystrom, torch"
FLASH, CUDNN = "softmax, flash", "softmax, cuDNN"
TRANSFORMERS, PACKAGE = "transformers", "nystrom-attention"
METHODS = (OURS, MASKED, TORCH, FLASH, CUDNN, TRANSFORMERS, PACKAGE)
_BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}

_PADDED = 0.05
"""Of each row, where there is padding: what packed rows of pretraining have at most."""
_SLOWEST = 2.0
"""Seconds that a step may take: what is estimated to take longer is left out."""
_SOFTMAX_RATE = 2e14
"""Operations a second of fused softmax attention, for that estimate."""


@dataclass(frozen=True)
class Inputs:
    """Q, K, V and a gradient of the output, in one precision and in the layout of an encoder's projections."""

    q_BHND: Tensor
    k_BHND: Tensor
    v_BHND: Tensor
    upstream_BHND: Tensor

    @staticmethod
    def drawn(settings: GpuBenchmark, rows: int, length: int) -> "Inputs":
        heads, head_dim = settings.sizes.num_heads, settings.sizes.head_dim
        size = (rows, length, heads, head_dim)
        x = [torch.randn(size, device=settings.device, dtype=settings.dtype) for _ in range(4)]
        q, k, v = (each.transpose(1, 2).requires_grad_() for each in x[:3])
        return Inputs(q, k, v, x[3].transpose(1, 2))


@dataclass(frozen=True)
class Method:
    """Calls of one method on given inputs."""

    forward: Work
    """Without gradients."""
    both: Work
    """Forward, and the gradients of Q, K, V and the filter."""


def bytes_of_queries(settings: GpuBenchmark, rows: int, length: int) -> int:
    """Of Q, (B, H, N, D)."""
    sizes = settings.sizes
    return rows * sizes.num_heads * length * sizes.head_dim * settings.dtype.itemsize


def build(name: str, settings: GpuBenchmark, inputs: Inputs) -> Method:
    """A method on these inputs, parameters in float32 under autocast, as in training.

    Raises:
        LeftOut: it is not there, or would take too long.
    """
    sizes, length = settings.sizes, inputs.q_BHND.shape[2]
    shape = Shape(sizes.num_heads, sizes.head_dim, sizes.num_landmarks, sizes.conv_kernel_size, length)
    leaves = [inputs.q_BHND, inputs.k_BHND, inputs.v_BHND]
    if name in (OURS, MASKED, TORCH):
        module: nn.Module = create_attention(
            "nystrom",
            num_heads=sizes.num_heads,
            head_dim=sizes.head_dim,
            num_landmarks=sizes.num_landmarks,
            conv_kernel_size=sizes.conv_kernel_size,
            implementation="torch" if name == TORCH else settings.implementation,
        )
        if name == MASKED:
            # One for all layers of a model.
            call = partial(module.to(settings.device), mask=AttentionMask(_keep(inputs)))
            return _method(call, leaves, inputs, settings, list(module.parameters()))
        return _method(module, leaves, inputs, settings, list(module.parameters()))
    if name in _BACKENDS:
        _check_softmax(name, settings, inputs)
        return _method(fused_softmax, leaves, inputs, settings, [], _BACKENDS[name])
    _check_installed(name)
    if name == TRANSFORMERS:
        module = TransformersCore(shape)
        return _method(module, leaves, inputs, settings, list(module.core.conv.parameters()))
    package = NystromAttentionPackage(shape)
    # It takes Q, K and V as one tensor, which its projection would write: joining them is not its work.
    joined = torch.cat([x.detach().transpose(1, 2).flatten(2) for x in leaves], dim=-1).requires_grad_()
    package.to(settings.device)
    return _method(package.joined, [joined], inputs, settings, list(package.core.res_conv.parameters()))


def _keep(inputs: Inputs) -> Tensor:
    B, _, N, _ = inputs.q_BHND.shape
    tokens_N = torch.arange(N, device=inputs.q_BHND.device)
    return (tokens_N < N - int(_PADDED * N)).expand(B, N).clone()


def _check_softmax(name: str, settings: GpuBenchmark, inputs: Inputs) -> None:
    if name == CUDNN and settings.device.type != "cuda":
        raise LeftOut("cuDNN computes on CUDA devices alone")
    B, H, N, D = inputs.q_BHND.shape
    # Two products forward, five backward.
    seconds = 14.0 * B * H * N * N * D / _SOFTMAX_RATE
    if seconds > _SLOWEST:
        raise LeftOut(f"quadratic in the length: a step would take about {seconds:.0f} s")


def _check_installed(name: str) -> None:
    if not installed(name.replace("-", "_")):
        raise LeftOut(f"{name} is not installed")


def _method(
    call: Callable[..., Tensor],
    leaves: list[Tensor],
    inputs: Inputs,
    settings: GpuBenchmark,
    parameters: list[nn.Parameter],
    backend: SDPBackend | None = None,
) -> Method:
    if isinstance(call, nn.Module):
        call.to(settings.device)

    def attended() -> Tensor:
        with _autocast(settings):
            return call(*leaves)

    def forward() -> Tensor:
        with torch.no_grad(), _only(backend):
            return attended()

    def both() -> object:
        with _only(backend):
            out = attended()
            upstream = inputs.upstream_BHND if out.ndim == 4 else inputs.upstream_BHND.transpose(1, 2).flatten(2)
            return torch.autograd.grad(out, [*leaves, *parameters], upstream.to(out.dtype))

    return Method(forward, both)


@contextmanager
def _only(backend: SDPBackend | None) -> Iterator[None]:
    if backend is None:
        yield
        return
    with sdpa_kernel(backend):
        yield


def _autocast(settings: GpuBenchmark) -> torch.autocast:
    return Device(settings.device, None if settings.dtype == torch.float32 else settings.dtype).autocast()
