"""Registered attentions in whole models of transformers.

Shapes: B batch, N tokens, E width.
"""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from theirs import FAMILIES, TEXTS, batch, build, hidden
from torch import Tensor, nn
from transformers import AutoModel

from nystromformer.attention import create_attention
from nystromformer.interop.drop_in import REGISTERED, check, register

LANDMARKS = 17


@pytest.fixture(autouse=True)
def registered() -> None:
    register(num_landmarks=LANDMARKS)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_few_tokens_are_the_models_own(name: str) -> None:
    inputs, keep_BN = batch(name)
    both = [build(name, attention) for attention in ("sdpa", "nystrom")]
    for model in both:
        weighted_sum(hidden(model, inputs)[keep_BN]).backward()
    for (key, theirs), ours in zip(both[0].named_parameters(), both[1].parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
        else:
            # Of numbers that add up over all tokens and layers: relative to the largest.
            error = (ours.grad - theirs.grad).abs().max()
            assert error <= 1e-5 * max(1.0, float(theirs.grad.abs().max())), key


@pytest.mark.parametrize("name", FAMILIES)
def test_more_tokens_are_approximated_with_gradients_everywhere(name: str) -> None:
    inputs, keep_BN = batch(name, length=40, image=40)
    register(num_landmarks=4)
    theirs, ours = build(name, "sdpa"), build(name, "nystrom")
    options = {"interpolate_pos_encoding": True} if name == "vit" else {}
    out = ours(**inputs, **options).last_hidden_state[keep_BN]
    exact = theirs(**inputs, **options).last_hidden_state[keep_BN]
    assert not torch.allclose(out, exact, rtol=1e-3, atol=1e-3)
    weighted_sum(out).backward()
    grads = {key: p.grad for key, p in ours.named_parameters() if "pooler" not in key and "mask_token" not in key}
    assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
    assert all(grad.any() for key, grad in grads.items() if key.endswith("weight"))


@pytest.mark.parametrize("name", TEXTS)
def test_padding_changes_nothing(name: str) -> None:
    register(num_landmarks=4)
    model = build(name, "nystrom")
    ids_1N = batch(name, length=21)[0]["input_ids"][:1]
    alone = hidden(model, {"input_ids": ids_1N, "attention_mask": torch.ones_like(ids_1N)})
    ids = nn.functional.pad(ids_1N, (0, 9), value=7)
    mask = nn.functional.pad(torch.ones_like(ids_1N), (0, 9))
    padded = hidden(model, {"input_ids": ids, "attention_mask": mask})[:, :21]
    torch.testing.assert_close(padded, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", [name for name in register() if name != "softmax"])
def test_every_attention_that_is_registered_runs(attention: str) -> None:
    inputs, keep_BN = batch("bert", length=40)
    state = torch.get_rng_state()
    first, second = (hidden(build("bert", attention), inputs) for _ in range(2))
    assert torch.equal(first, second), "random numbers of the method are the same in every model"
    assert first[keep_BN].isfinite().all()
    more = {"input_ids": nn.functional.pad(inputs["input_ids"], (0, 30), value=9)}
    more["attention_mask"] = nn.functional.pad(inputs["attention_mask"], (0, 30))
    longer = hidden(build("bert", attention), more)[:, :40]
    torch.testing.assert_close(longer[keep_BN], first[keep_BN], rtol=1e-4, atol=1e-4)
    torch.set_rng_state(state)


@pytest.mark.parametrize("attention", ["nystrom", "near_far", "softmax"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_it_is_traced_planned_and_copied(attention: str) -> None:
    """`torch.jit.trace`, the device meta, copies, and half precision."""
    inputs, keep_BN = batch("bert", length=40)
    model = build("bert", attention, return_dict=False)
    with torch.no_grad():
        expected = model(**inputs)[0][keep_BN]
        traced = torch.jit.trace(model, tuple(inputs.values()), check_trace=False, strict=False)
        copied = copy.deepcopy(model)
        for each in (traced, copied, pickle.loads(pickle.dumps(model))):  # noqa: S301  # our own
            torch.testing.assert_close(each(*inputs.values())[0][keep_BN], expected, rtol=1e-5, atol=1e-5)
        half = copied.bfloat16()(**inputs)[0][keep_BN]
        assert float((half.float() - expected).norm() / expected.norm()) < 0.1
        on_meta = {name: x.to("meta") for name, x in inputs.items()}
        assert build("bert", attention).to("meta")(**on_meta).last_hidden_state.shape == (3, 40, 32)


def test_windows_keep_their_own_attention() -> None:
    inputs, _ = batch("modernbert", length=40)
    assert list(check(build("modernbert", "nystrom"), inputs)) == ["layers.0.attn", "layers.3.attn"]


@pytest.mark.parametrize("name", FAMILIES)
def test_check_counts_and_leaves_the_model_as_it_was(name: str) -> None:
    model = build(name, "nystrom").train()
    frozen = next(model.children()).eval()
    found = check(model, batch(name)[0])
    assert len(found) == 2, "the two other layers of ModernBERT have windows"
    assert model.training
    assert not frozen.training
    assert not REGISTERED["nystrom"].observers


def test_the_error_is_the_distance_from_softmax() -> None:
    inputs, keep_BN = batch("bert", length=40)
    model = build("bert", "nystrom")
    seen: list[tuple[Tensor, ...]] = []
    handle = model.encoder.layer[0].attention.self.register_forward_hook(
        lambda module, args, kwargs, out: seen.append((args[0] if args else kwargs["hidden_states"], out[0])),
        with_kwargs=True,
    )
    (first, error), (second, _) = check(model, inputs).items()
    handle.remove()
    (x_BNE, _), module = seen[0], model.encoder.layer[0].attention.self
    q, k, v = (each(x_BNE).double().unflatten(2, (4, 8)).transpose(1, 2) for each in projections(module))
    scores = (q @ k.mT / 8**0.5).masked_fill(~keep_BN[:, None, None], -torch.inf)
    exact = scores.softmax(-1) @ v
    ours = create_attention("nystrom", num_heads=4, head_dim=8, num_landmarks=LANDMARKS)(q, k, v, keep_BN)
    differences, exact = ((x.detach() * keep_BN[:, None, :, None]) for x in (ours - exact, exact))
    assert (first, second) == ("encoder.layer.0.attention.self", "encoder.layer.1.attention.self")
    assert error == pytest.approx(float(differences.norm() / exact.norm()), rel=1e-4)
    assert error > 0.01


def test_a_saved_model_is_loaded_with_it(tmp_path: Path) -> None:
    inputs, keep_BN = batch("bert")
    build("bert", "nystrom").save_pretrained(tmp_path)
    assert "nystrom" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    loaded = AutoModel.from_pretrained(tmp_path, attn_implementation="nystrom").eval()
    torch.testing.assert_close(
        hidden(loaded, inputs)[keep_BN], hidden(build("bert", "sdpa"), inputs)[keep_BN], rtol=1e-5, atol=1e-5
    )
    assert len(check(loaded, inputs)) == 2


def test_a_mask_that_changes_in_place_is_read_again() -> None:
    inputs, keep_BN = batch("bert", length=40)
    model = build("bert", "nystrom")
    mask = torch.ones_like(keep_BN)
    hidden(model, {"input_ids": inputs["input_ids"], "attention_mask": mask})
    mask.copy_(keep_BN)
    out = hidden(model, {"input_ids": inputs["input_ids"], "attention_mask": mask})
    torch.testing.assert_close(out[keep_BN], hidden(model, inputs)[keep_BN])


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_nan_in_the_padding_reaches_no_other_token(family: str) -> None:
    register(num_landmarks=4)
    model = build(family, "nystrom")
    keep_BN = torch.arange(12) < torch.tensor([[12], [6], [1]])
    inputs_BNE = torch.randn(3, 12, 32, generator=torch.Generator().manual_seed(0))
    results = []
    for content in (0.0, float("nan")):
        x_BNE = torch.where(keep_BN[..., None], inputs_BNE, content).requires_grad_()
        out_BNE = model(inputs_embeds=x_BNE, attention_mask=keep_BN.long()).last_hidden_state
        (gradient_BNE,) = torch.autograd.grad(out_BNE[keep_BN].square().sum(), x_BNE)
        results.append((out_BNE[keep_BN], gradient_BNE[keep_BN]))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def weighted_sum(x: Tensor) -> Tensor:
    """Of which no two entries have the same gradient."""
    return (x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum()


def projections(module: nn.Module) -> tuple[nn.Module, ...]:
    return module.query, module.key, module.value
