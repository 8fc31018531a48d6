"""What the GPU benchmark counts: bytes of kernels, operations of a training step."""

from dataclasses import replace

import pytest
import torch
from interpreting import DEVICE, ON_GPU
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nystromformer.attention.kernels import plan
from nystromformer.benchmark.gpu.clock import Repeats
from nystromformer.benchmark.gpu.kernels import timed_kernels
from nystromformer.benchmark.gpu.methods import OURS, Inputs, build
from nystromformer.benchmark.gpu.settings import FULL, TINY, GpuBenchmark
from nystromformer.benchmark.gpu.traffic import (
    BACKWARD,
    FORWARD,
    LEAST_BACKWARD,
    LEAST_FORWARD,
    SMALLEST_FORWARD,
    Call,
    kernel_bytes,
    step_flops,
)
from nystromformer.benchmark.gpu.training import NYSTROM, SOFTMAX, training_config
from nystromformer.benchmark.models import made_up_batch
from nystromformer.model import PretrainingModel


def test_the_least_traffic() -> None:
    assert (SMALLEST_FORWARD, LEAST_FORWARD, LEAST_BACKWARD) == (4, 6, 10)


def test_bytes_of_kernels() -> None:
    # 16 rows of 12 heads: 192 heads, which are cut into 4 parts forward and 2 splits backward.
    p = Call(16, 12, 8192, 64, 64, 33, 2)
    cut = plan.make_plan(192, 8192, 64, 64, 33, 2)
    assert (cut.parts, cut.splits, cut.tokens_of_split, cut.taps_block) == (4, 2, 4096, 32)
    heads, unit = 192, 192 * 8192 * 64 * 2
    tile, line, filters = heads * 64 * 64 * 4, heads * 64 * 4, 12 * 33 * 4
    parts = 4 * (tile + 2 * line)
    assert p.unit == unit
    assert {name: kernel_bytes(name, p) for name in FORWARD | BACKWARD} == {
        "query_landmarks_kernel": unit + tile,
        "keys_kernel": 2 * unit + 2 * tile + parts,
        "landmark_system_kernel": parts + 4 * tile + line,
        "output_kernel": 3 * unit + 2 * tile + filters,
        "output_sums_kernel": 2 * unit + 2 * tile + 2 * 2 * tile,
        "landmark_gradients_kernel": 8 * tile + line + 2 * 12 * heads * 64 * 64 * 4,
        "key_value_gradients_kernel": 5 * unit + 3 * tile + 2 * line + filters + 2 * tile,
        "query_gradients_kernel": 3 * unit + 3 * tile,
        "weight_gradient_kernel": 2 * unit + 2 * heads * 32 * 64 * 4,
    }
    assert kernel_bytes("another_kernel", p) is None


def test_long_inputs_take_what_their_numbers_take() -> None:
    p = Call(8, 12, 32768, 64, 64, 33, 2)
    moved = [kernel_bytes(name, p) or 0 for name in FORWARD]
    assert 6 <= sum(moved) / p.unit < 6.5
    assert 12 <= sum(kernel_bytes(name, p) or 0 for name in BACKWARD) / p.unit < 12.5


def test_every_kernel_that_is_launched_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(plan, "ENOUGH_PROGRAMS", 1)
    from nystromformer.attention.kernels import forward

    kernel = forward.keys_kernel
    settings = GpuBenchmark(dry_run=not ON_GPU, sizes=TINY)
    method = build(OURS, settings, Inputs.drawn(settings, 1, 40))
    with timed_kernels(DEVICE) as launches:
        method.both()
    if ON_GPU:
        torch.cuda.synchronize()
    assert [name for name, _, _ in launches] == [*FORWARD, *BACKWARD]
    assert all(before.until(after) > 0 for _, before, after in launches)
    assert forward.keys_kernel is kernel


@pytest.mark.parametrize("attention", [NYSTROM, SOFTMAX])
def test_operations_of_a_step_are_those_that_pytorch_counts(attention: str) -> None:
    size = TINY.training[0]
    larger = ("model.num_layers=2", "model.num_head=2", "model.transformer_dim=64")
    config = training_config(replace(size, overrides=(*size.overrides, *larger)), attention, "torch")
    batch = made_up_batch(config.vocab_size, 64, 3, torch.device("cpu"))
    model = PretrainingModel(config, ["mlm"]).eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch["tokens_BN"], batch["positions_BK"])
    assert step_flops(config, 64, 3, batch["positions_BK"].shape[1]) == 3 * counter.get_total_flops()


@pytest.mark.parametrize("attention", [NYSTROM, SOFTMAX])
def test_what_is_trained_is_what_is_shipped(attention: str) -> None:
    lengths = []
    for size in FULL.training:
        config = training_config(size, attention, "triton")
        assert (config.num_layers, config.transformer_dim, config.vocab_size) == (12, 768, 50265)
        layer = config.attentions[0]
        taps = {"nystrom-512": 33, "nystrom-4096": 65}[size.experiment]
        assert layer.conv_kernel_size == (taps if attention == NYSTROM else None)
        assert getattr(layer, "implementation", None) == ("triton" if attention == NYSTROM else None)
        assert not config.attention_grad_checkpointing
        assert not config.gelu_grad_checkpointing
        lengths.append(config.max_seq_len)
        assert size.rows * size.length == 32768
    assert lengths == [512, 4096, 16384]


def test_full_sizes_fit_the_kernels() -> None:
    assert all(length % FULL.num_landmarks == 0 and FULL.tokens % length == 0 for length in FULL.lengths)


def test_repeats() -> None:
    wanted = Repeats(seconds=1.0, least=4, most=50)
    assert [wanted.fitting(once) for once in (1e-6, 0.1, 10.0)] == [50, 10, 4]
    calls: list[int] = []
    cpu = torch.device("cpu")
    assert Repeats(0.0, 2, 2).of([lambda: calls.append(1)], cpu) == 2
    assert not calls
    assert Repeats(0.0, 2, 3).of([lambda: calls.append(1)], cpu) == 2
    assert len(calls) == 2
