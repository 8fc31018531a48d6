"""Batches that are on their way while others are computed."""

import pytest
import torch

from nystromformer.training.prefetch import begin_next, copy_steps, prefetch_batches, prefetched
from nystromformer.training.trainable import Step


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_next_item_has_begun_before_one_is_given_out(count: int) -> None:
    begun: list[int] = []

    def begin(item: int) -> int:
        begun.append(item)
        return 10 * item

    given = []
    for item in begin_next(range(count), begin):
        assert len(begun) == min(len(given) + 2, count)
        given.append(item)
    assert given == [10 * item for item in range(count)]


def test_a_thread_gives_the_items_in_order() -> None:
    assert list(prefetched(range(100))) == list(range(100))
    assert list(prefetched([])) == []


def test_what_goes_wrong_is_raised_where_the_item_is_asked_for() -> None:
    def items() -> object:
        yield 1
        raise OSError("the disk")

    iterator = iter(prefetched(items()))  # type: ignore[arg-type]
    assert next(iterator) == 1
    with pytest.raises(OSError, match="the disk"):
        next(iterator)


def steps(count: int) -> list[Step]:
    return [Step([{"x": torch.full((64,), float(10 * i + j))} for j in range(2)], tokens=i) for i in range(count)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_of_a_validation_arrive_in_order(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    batches = ({"x": torch.full((3,), float(number))} for number in range(5))
    copied = list(prefetch_batches(batches, torch.device(device)))
    assert [batch["x"].device.type for batch in copied] == [device] * 5
    assert [batch["x"].tolist() for batch in copied] == [[float(number)] * 3 for number in range(5)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_what_is_computed_waits_for_the_copy_and_the_host_does_not() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    busy = torch.randn(4096, 4096, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sums = []
        for step in copy_steps((each.pin_memory() for each in steps(4)), device):
            busy = busy @ busy / 64
            sums.append(torch.stack([batch["x"].sum() for batch in step.micro_batches]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [each.tolist() for each in sums] == [[64.0 * 10 * i, 64.0 * (10 * i + 1)] for i in range(4)]
