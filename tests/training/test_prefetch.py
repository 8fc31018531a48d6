"""Batches that are on their way while others are computed."""

import pytest
import torch

from nystromformer.training.trainable import prefetch_batches, prefetched


def test_what_goes_wrong_is_raised_where_the_item_is_asked_for() -> None:
    def items() -> object:
        yield 1
        raise OSError("the disk")

    iterator = iter(prefetched(items()))  # type: ignore[arg-type]
    assert next(iterator) == 1
    with pytest.raises(OSError, match="the disk"):
        next(iterator)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_of_a_validation_arrive_in_order(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    batches = ({"x": torch.full((3,), float(number))} for number in range(5))
    copied = list(prefetch_batches(batches, torch.device(device)))
    assert [batch["x"].device.type for batch in copied] == [device] * 5
    assert [batch["x"].tolist() for batch in copied] == [[float(number)] * 3 for number in range(5)]
