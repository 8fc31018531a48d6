"""Batches that are on their way while others are computed."""

import threading

import pytest
import torch

from nystromformer.training.prefetch import batches_ahead, copied_ahead, one_ahead
from nystromformer.training.trainable import Step


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_next_item_has_begun_before_one_is_given_out(count: int) -> None:
    begun: list[int] = []

    def begin(item: int) -> int:
        begun.append(item)
        return 10 * item

    given = []
    for item in one_ahead(range(count), begin):
        assert len(begun) == min(len(given) + 2, count)
        given.append(item)
    assert given == [10 * item for item in range(count)]


def steps(count: int) -> list[Step]:
    return [Step([{"x": torch.full((64,), float(10 * i + j))} for j in range(2)], tokens=i) for i in range(count)]


def test_on_a_cpu_the_steps_are_as_they_were() -> None:
    made = steps(3)
    assert all(a is b for a, b in zip(copied_ahead(made, torch.device("cpu")), made, strict=True))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_of_a_validation_arrive_in_order(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    batches = ({"x": torch.full((3,), float(number))} for number in range(5))
    copied = list(batches_ahead(batches, torch.device(device)))
    assert [batch["x"].device.type for batch in copied] == [device] * 5
    assert [batch["x"].tolist() for batch in copied] == [[float(number)] * 3 for number in range(5)]


def test_a_validation_that_ends_early_ends_its_thread() -> None:
    before = threading.active_count()
    batches = batches_ahead(({"x": torch.zeros(1)} for _ in range(100)), torch.device("cpu"))
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert threading.active_count() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_what_is_computed_waits_for_the_copy_and_the_host_does_not() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    busy = torch.randn(4096, 4096, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sums = []
        for step in copied_ahead((each.pin_memory() for each in steps(4)), device):
            busy = busy @ busy / 64
            sums.append(torch.stack([batch["x"].sum() for batch in step.micro_batches]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [each.tolist() for each in sums] == [[64.0 * 10 * i, 64.0 * (10 * i + 1)] for i in range(4)]
