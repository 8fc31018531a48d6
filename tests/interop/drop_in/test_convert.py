"""Models of transformers trained towards their own softmax."""

from collections.abc import Iterator

import pytest
import torch
from theirs import batch, build, hidden
from torch import Tensor

from nystromformer.interop.drop_in import convert, register

NAME = "near_far_small"


@pytest.fixture(autouse=True)
def registered() -> None:
    register("near_far", name=NAME, block_size=4, neighbours=0, num_landmarks=2, num_selected=2)
    register(num_landmarks=16)


def batches(name: str, count: int) -> Iterator[dict[str, Tensor]]:
    for _ in range(count):
        yield batch(name, length=40)[0]


@pytest.mark.parametrize("name", ["bert", "modernbert"])
@pytest.mark.slow
def test_it_comes_nearer(name: str) -> None:
    inputs, keep_BN = batch(name, length=40)
    theirs, ours = build(name, "sdpa"), build(name, NAME).train()
    wanted = hidden(theirs, inputs)[keep_BN]
    far = (hidden(ours.eval(), inputs)[keep_BN] - wanted).norm()
    ours.train()
    words = ours.get_input_embeddings().weight.clone()
    done = convert(
        ours, batches(name, 60), steps=30, end_to_end_steps=30, learning_rate=1e-2, end_to_end_learning_rate=1e-3
    )
    assert ours.training
    assert len(done.layers) == len(done.hidden) == 30
    assert done.layers[-1] < done.layers[0]
    assert done.hidden[-1] < done.hidden[0]
    assert (hidden(ours.eval(), inputs)[keep_BN] - wanted).norm() < 0.9 * far
    assert torch.equal(words, ours.get_input_embeddings().weight)
    assert ours.config._attn_implementation == NAME
    assert all(parameter.requires_grad and parameter.grad is None for parameter in ours.parameters())


def test_where_it_is_softmax_already_there_is_nothing_to_learn() -> None:
    ours = build("bert", "nystrom")
    few = batch("bert")[0]
    assert max(convert(ours, [few], steps=1).layers) < 1e-9


def test_what_cannot_be_converted() -> None:
    with pytest.raises(ValueError, match="expected a batch for each step, found none for step 1 of 1"):
        convert(build("bert", NAME), batches("bert", 2), steps=2, end_to_end_steps=1)
    with pytest.raises(ValueError, match="load it with one that is registered"):
        convert(build("bert", "sdpa"), batches("bert", 1), steps=1)
