"""Up to which length rows get exact attention, and what long rows take."""

from typing import Any

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, random_mask, suffix_mask
from largest import Largest
from torch import Tensor

from nystromformer.attention import AttentionMask, create_attention, reference
from nystromformer.config import attention_config

EXACT: list[tuple[str, dict[str, Any]]] = [
    ("bigbird", {"block_size": 4}),
    ("bigbird", {"block_size": 4, "num_window_blocks": 1, "num_random_blocks": 0}),
    ("bigbird", {"block_size": 4, "num_global_blocks": 0}),
    ("local", {"block_size": 5}),
    ("longformer", {"window": 8}),
    ("longformer", {"window": 6, "num_global_tokens": 3}),
    ("mra", {"block_size": 4, "num_blocks": 3}),
    ("near_far", {"block_size": 8, "num_landmarks": 4, "num_selected": 2}),
    ("near_far", {"block_size": 8, "num_landmarks": 23, "num_selected": 2}),
    ("nystrom", {"num_landmarks": 7}),
    ("sinkhorn", {"block_size": 16}),
    ("sparse", {"stride": 6}),
    ("sparse", {"stride": 1}),
]


@pytest.mark.parametrize(("name", "parameters"), EXACT, ids=str)
@pytest.mark.parametrize("padding", [0, 30])
def test_rows_are_exact_up_to_the_length_that_the_config_says(
    name: str, parameters: dict[str, Any], padding: int
) -> None:
    config = attention_config(name, **parameters)
    module = create_attention(config, num_heads=HEADS, head_dim=DIM).double()
    exact = int(min(config.longest_exact, 60))
    for length in (exact, exact + 1):
        q, k, v = qkv(1, length + padding, dtype=torch.float64)
        keep = suffix_mask(length + padding, length)
        difference = (module(q, k, v, keep) - reference.softmax_attention(q, k, v, keep)).abs().max()
        assert (difference < 1e-12) == (length <= config.longest_exact)


@pytest.mark.parametrize(
    ("name", "parameters", "length", "most"),
    [
        # Keys of eight blocks, and four of marked ones, for each block.
        ("bigbird", {"block_size": 4}, 1024, 13),
        ("longformer", {"window": 32, "num_global_tokens": 2}, 8192, 10),
        # With D = 8 and M = 64, an N x M matrix per head would be eight times the size of Q.
        ("nystrom", {"num_landmarks": 64, "conv_kernel_size": 33}, 32768, 2.5),
        ("sparse", {"stride": 32}, 1024, 16),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_no_tensor_is_much_larger_than_the_input(
    name: str, parameters: dict[str, Any], length: int, most: float, masked: bool
) -> None:
    """Forward and backward: neither the pairs of tokens nor those of tokens and landmarks are ever held."""
    module = create_attention(name, num_heads=HEADS, head_dim=DIM, **parameters)
    x, mask = qkv(1, length), None
    if masked:
        mask = AttentionMask(random_mask(1, length), torch.arange(length)[None] % 1000 == 0)
    with Largest() as seen:
        torch.autograd.grad(module(*x, mask).sum(), x)
    assert seen.elements < most * x[0].numel() < length * length


def numbers_of(module: Any) -> Tensor:
    numbers: Tensor = module.get_buffer(module.numbers)
    return numbers


@pytest.mark.parametrize("name", ["performer", "reformer"])
def test_random_numbers_are_a_function_of_the_seed_and_the_step(name: str) -> None:
    def build(seed: int, redraw_steps: int | None = 10) -> Any:
        torch.manual_seed(seed)
        return create_attention(name, num_heads=HEADS, head_dim=DIM, redraw_steps=redraw_steps)

    module, twin = build(1), build(1)
    first = numbers_of(module).clone()
    module.at_step(9)
    assert torch.equal(numbers_of(module), first)
    for step in (10, 15, 37):
        module.at_step(step)
    twin.at_step(37)
    assert not torch.equal(numbers_of(module), first)
    assert torch.equal(numbers_of(module), numbers_of(twin)), "whatever was drawn before"
    module.at_step(0)
    assert torch.equal(numbers_of(module), first)
    fixed = build(1, redraw_steps=None)
    fixed.at_step(10**6)
    assert torch.equal(numbers_of(fixed), first)
    # They are saved with the weights, and go on from there.
    other = build(2)
    assert not torch.equal(first, numbers_of(other)), "layers and runs differ"
    module.at_step(25)
    other.at_step(31)
    other.load_state_dict(module.state_dict())
    for step in (25, 29, 30):
        module.at_step(step)
        other.at_step(step)
        assert torch.equal(numbers_of(other), numbers_of(module))
