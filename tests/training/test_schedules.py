"""How the learning rate falls, what StableAdamW clips, how batches grow, and dropout's seeds."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import small_config
from torch import Tensor, nn

from nystromformer.objectives import PrecisionAtRecall
from nystromformer.tasks.experiment.run import training_settings
from nystromformer.tasks.pretraining.batches import BatchSizes
from nystromformer.training import TrainingSettings
from nystromformer.training.optim import RATE_OF_VARIABLES, StableAdamW, build_optimizer, learning_rate
from nystromformer.training.state import dropout_seed


def settings(**changes: Any) -> TrainingSettings:
    named = {f"pretraining_setting__{key}": value for key, value in changes.items()}
    own = {"learning_rate": 1.0, "batches_per_epoch": 100, "epoch": 1, "warmup": 0.1}
    return training_settings(small_config(**{f"pretraining_setting__{k}": v for k, v in own.items()} | named))


def test_schedules() -> None:
    """A warm-up of 10 steps of 100, and then what each says."""
    stable = [1.0] * 66 + [n / 25 for n in range(24, 0, -1)]
    for schedule, after in (
        ({}, [n / 90 for n in range(90, 0, -1)]),
        ({"schedule": "cosine"}, [(1 + math.cos(math.pi * n / 90)) / 2 for n in range(90)]),
        ({"schedule": "wsd", "decay": 0.25}, stable),
    ):
        rates = [learning_rate(step, settings(**schedule)) for step in range(100)]
        assert rates == pytest.approx([*(0.1 * n for n in range(1, 11)), *after])
    assert learning_rate(0, settings(warmup=0.0)) == 1.0
    assert math.isfinite(learning_rate(99, settings(warmup=1.0)))


def stable_adamw(gradients: list[Tensor], lr: float, betas: tuple[float, float], eps: float, decay: float) -> Tensor:
    """The weight after steps from 1, as Wortsman et al. write them, in float64."""
    weight, mean, square = torch.ones(3, dtype=torch.float64), torch.zeros(3), torch.zeros(3)
    for step, g in enumerate(gradients, start=1):
        corrected = [beta * (1 - beta ** (step - 1)) / (1 - beta**step) for beta in betas]
        mean = corrected[0] * mean + (1 - corrected[0]) * g
        square = corrected[1] * square + (1 - corrected[1]) * g**2
        rms = (g**2 / square.clamp(min=eps**2)).mean() ** 0.5
        rate = lr / max(1.0, float(rms))
        weight = weight - rate * decay * weight - rate * mean / (square**0.5 + eps)
    return weight


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_stable_adamw_is_the_papers(scale: float) -> None:
    gradients = [torch.randn(3, dtype=torch.float64) for _ in range(6)]
    gradients[3] *= scale
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = StableAdamW([{"params": [weight], "weight_decay": 0.1}], 0.01, (0.9, 0.99), 1e-6)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.data, stable_adamw(gradients, 0.01, (0.9, 0.99), 1e-6, 0.1))


def test_where_nothing_is_clipped_it_is_adamw() -> None:
    def trained(name: str) -> Tensor:
        layer = nn.Linear(3, 3, bias=False)
        nn.init.ones_(layer.weight)
        optimizer = build_optimizer(layer, settings(optimizer=name))
        for _ in range(5):
            layer.weight.grad = torch.full((3, 3), 0.1)
            optimizer.step()
        return layer.weight.data

    torch.testing.assert_close(trained("stable_adamw"), trained("adamw"))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 10**6), st.integers(1, 512))
def test_batches_grow_by_tokens_and_see_every_row_once(start: int, times: int, tokens: int, length: int) -> None:
    setting = small_config(
        pretraining_setting__batch_size=4 * start * (times + 1),
        pretraining_setting__batch_size_start=4 * start,
        pretraining_setting__batch_growth_tokens=tokens,
    ).pretraining_setting
    sizes = BatchSizes(setting, length)
    assert [BatchSizes(small_config().pretraining_setting, length).of_step(step) for step in (0, 5)] == [
        (0, 8),
        (40, 8),
    ]
    last = sizes.first_steps[-1]
    steps = sorted({*range(min(last, 200)), *range(max(0, last - 3), last + 3)})
    for step in steps:
        (first, size), (after, larger) = sizes.of_step(step), sizes.of_step(step + 1)
        assert first + size == after
        assert size <= larger
    assert sizes.of_step(0) == (0, 4 * start)
    assert sizes.of_step(last)[1] == 4 * start * (times + 1)
    seen = [(b - a) * length for a, b in itertools.pairwise(sizes.first_rows)]
    for size, of_size in zip(sizes.sizes, seen, strict=False):
        assert abs(of_size - tokens / times) <= size * length, "as many tokens, up to whole steps"


@pytest.mark.parametrize("optimizer", ["adamw", "stable_adamw"])
def test_an_objectives_duals_ascend_at_a_rate_of_their_own(optimizer: str) -> None:
    model = nn.Linear(2, 1)
    model.objective = PrecisionAtRecall(0.5, 0.5)
    built = build_optimizer(model, settings(optimizer=optimizer, learning_rate=1e-3))
    (group,) = (each for each in built.param_groups if each["maximize"])
    assert [id(each) for each in group["params"]] == [id(model.objective.multiplier)]
    assert 1e-3 * group["rate_factor"] == pytest.approx(RATE_OF_VARIABLES)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    built.step()
    grew = [bool((after > old).all()) for after, old in zip(model.parameters(), before, strict=True)]
    assert grew == [False, False, True]


def test_norms_and_biases_do_not_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Embedding(4, 3))
    decayed, free = build_optimizer(model, settings()).param_groups
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight), id(model[2].weight)}
    assert {id(p) for p in free["params"]} == {id(model[0].bias), id(model[1].weight), id(model[1].bias)}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.01, 0.0)


def test_seeds_collide_no_more_than_random_ones() -> None:
    """Nor those of steps that powers of two part: by these, numbers packed side by side lose their upper bits."""
    apart = {step + distance for step in range(2000) for distance in (0, *(2**k for k in range(11, 63)))}
    keys = set(itertools.product((0, 1, 2, 2**40), range(10_000), range(6)))
    keys |= {(0, step, 0) for step in apart} | {(0, 0, batch) for batch in (2**k for k in range(1, 63))}
    expected = len(keys) ** 2 / (2 * 2**32)
    collisions = len(keys) - len({dropout_seed(*key) % 2**32 for key in keys})
    assert collisions < expected + 6 * expected**0.5, "six standard deviations"
