"""What the GPU benchmark counts: bytes of kernels, operations of a training step."""

from dataclasses import replace

import pytest
import torch
from interpreting import DEVICE, ON_GPU
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nystromformer.attention.kernels import plan
from nystromformer.benchmark.gpu.attention import OURS, build, bytes_of_queries, draw_inputs
from nystromformer.benchmark.gpu.bandwidth import WHOLE, measure_kernels, timed_kernels
from nystromformer.benchmark.gpu.clock import Repeats
from nystromformer.benchmark.gpu.figures import LEAST_BACKWARD, LEAST_FORWARD
from nystromformer.benchmark.gpu.settings import FULL, TINY, GpuBenchmark
from nystromformer.benchmark.gpu.training import NYSTROM, SOFTMAX, step_flops, training_config
from nystromformer.benchmark.models import made_up_batch
from nystromformer.benchmark.timing import wait_for_device
from nystromformer.model import PretrainingModel


def test_kernels_move_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(plan, "ENOUGH_PROGRAMS", 1)
    from nystromformer.attention.kernels import forward

    kernel = forward.keys_kernel
    settings = GpuBenchmark(dry_run=not ON_GPU, sizes=TINY)
    method = build(OURS, settings, draw_inputs(settings, 1, 80))
    moved = []
    for work in (method.forward, method.both):
        with timed_kernels(DEVICE) as launches:
            work()
        wait_for_device()
        moved.append(sum(x.shape == (1, 1, 80, 32) for launch in launches for x in launch.tensors))
        assert all(launch.before.until(launch.after) > 0 for launch in launches)
    assert moved[0] == LEAST_FORWARD
    # The filter's gradient may have a kernel of its own, which reads V and d_out again.
    assert LEAST_BACKWARD <= moved[1] - moved[0] <= LEAST_BACKWARD + 2
    assert forward.keys_kernel is kernel


def test_bytes_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(plan, "ENOUGH_PROGRAMS", 1)
    rows = measure_kernels(GpuBenchmark(dry_run=not ON_GPU, sizes=TINY), 64)
    nbytes = {row.kernel: row.nbytes for row in rows}
    # Q, and its landmarks: of 32 numbers of 4 bytes.
    assert nbytes["query_landmarks_kernel"] == 4 * 32 * (64 + 32)
    assert nbytes[WHOLE] is None
    assert list(nbytes)[-1] == WHOLE


def test_bytes_of_queries() -> None:
    assert bytes_of_queries(GpuBenchmark(), 16, 8192) == 16 * 12 * 8192 * 64 * 2


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
