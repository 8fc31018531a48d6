"""Which tokens a prediction goes by.

Shapes: B rows, N tokens, L layers.
"""

import pytest
import torch
from small import SOFTMAX, model_config
from torch import Tensor

from nystromformer.model import ClassificationModel
from nystromformer.model.explain import explain

TOKENS_BN = torch.randint(5, 200, (2, 24), generator=torch.Generator().manual_seed(0))
KEEP_BN = torch.arange(24) < torch.tensor([[24], [15]])


def build(**changes: object) -> ClassificationModel:
    torch.manual_seed(0)
    return ClassificationModel(model_config(num_sen_type=1, **changes), 3).eval()


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_attention_is_the_matrix_of_softmax(pooling: str) -> None:
    model = build(pooling=pooling, **SOFTMAX)
    found = explain(model, TOKENS_BN, KEEP_BN).attention_BLN
    seen: list[Tensor] = []

    def matrices(core: object, args: tuple[Tensor, ...]) -> None:
        q_BHND, k_BHND = args[:2]
        scores = (q_BHND @ k_BHND.mT / q_BHND.shape[-1] ** 0.5).masked_fill(~KEEP_BN[:, None, None], float("-inf"))
        seen.append(scores.softmax(-1).detach().mean(1))

    for layer in model.encoder.layers:
        layer.attention.core.register_forward_pre_hook(matrices)  # type: ignore[union-attr]
    model(TOKENS_BN, KEEP_BN)
    for layer_number, weights_BNN in enumerate(seen):
        for row, length in enumerate((24, 15)):
            rows_QN = weights_BNN[row, :1] if pooling == "first" else weights_BNN[row, :length]
            torch.testing.assert_close(found[row, layer_number], rows_QN.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 2))
    assert not found[1, :, 15:].any()


@pytest.mark.parametrize("attention", ["nystrom", "softmax", "linear", "reformer"])
def test_steepness_is_the_slope_along_each_embedding(attention: str) -> None:
    options: dict[str, object] = {} if attention == "nystrom" else {**SOFTMAX, "attn_type": attention}
    if attention == "reformer":
        options["attn_type"] = {"name": "reformer", "chunk_length": 8}
    model = build(pooling="mean", **options).double()
    found = explain(model, TOKENS_BN, KEEP_BN, classes_I=torch.tensor([2, 0]))
    assert found.classes_I.tolist() == [2, 0]
    word = model.encoder.embeddings
    whole = word(TOKENS_BN).detach()

    def score(row: int, token: int, factor: float) -> float:
        moved = whole.clone()
        moved[row, token] *= factor
        handle = word.register_forward_hook(lambda *_: moved)
        try:
            return float(model(TOKENS_BN, KEEP_BN)[row, found.classes_I[row]])
        finally:
            handle.remove()

    step = 1e-5
    for row, token in ((0, 0), (0, 23), (1, 7), (1, 14)):
        slope = (score(row, token, 1 + step) - score(row, token, 1 - step)) / (2 * step)
        assert float(found.steepness_BN[row, token]) == pytest.approx(slope, rel=1e-3, abs=1e-7)
    assert not found.steepness_BN[1, 15:].any()


def test_the_highest_score_is_explained_and_nothing_is_left_behind() -> None:
    model = build(pooling="first")
    found = explain(model, TOKENS_BN, KEEP_BN)
    with torch.no_grad():
        torch.testing.assert_close(found.scores_IC, model(TOKENS_BN, KEEP_BN))
    assert found.classes_I.tolist() == found.scores_IC.argmax(1).tolist()
    assert all(p.grad is None for p in model.parameters())
    assert not model.encoder.embeddings._forward_hooks
    assert not any(layer.attention.core._forward_pre_hooks for layer in model.encoder.layers)  # type: ignore[union-attr]


def test_reversible_layers_are_looked_at_once() -> None:
    model = build(pooling="mean", reversible=True, norm="pre")
    assert explain(model, TOKENS_BN, KEEP_BN).attention_BLN.shape == (2, 2, 24)


def test_a_row_is_explained_as_it_is_alone() -> None:
    model = build(pooling="mean")
    together, alone = explain(model, TOKENS_BN, KEEP_BN), explain(model, TOKENS_BN[1:, :15])
    torch.testing.assert_close(together.attention_BLN[1:, :, :15], alone.attention_BLN, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(together.steepness_BN[1:, :15], alone.steepness_BN, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_rows_that_belong_together_are_explained_together(pooling: str) -> None:
    """Attention is shared out among an instance's rows, and slopes are those of the score of its rows' mean."""
    model = build(pooling=pooling)
    tokens_BN, keep_BN = torch.cat([TOKENS_BN, TOKENS_BN.flip(1)]), torch.cat([KEEP_BN, KEEP_BN])
    rows_I = torch.tensor([3, 1])
    found = explain(model, tokens_BN, keep_BN, rows_I=rows_I)
    alone = explain(model, tokens_BN, keep_BN)
    share_B = torch.tensor([1 / 3] * 3 + [1])
    torch.testing.assert_close(found.attention_BLN, alone.attention_BLN * share_B[:, None, None])
    assert found.classes_I.shape == (2,)
    with torch.no_grad():
        torch.testing.assert_close(found.scores_IC, model(tokens_BN, keep_BN, None, rows_I))
    embeddings = model.encoder.embeddings
    whole = embeddings(tokens_BN).detach()
    leaf = whole.clone().requires_grad_()
    handle = embeddings.register_forward_hook(lambda *_: leaf)
    model(tokens_BN, keep_BN, None, rows_I).gather(1, found.classes_I[:, None]).sum().backward()
    handle.remove()
    assert leaf.grad is not None
    slopes = (leaf.grad * whole).sum(-1).masked_fill(~keep_BN, 0.0)
    torch.testing.assert_close(found.steepness_BN, slopes, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("at_a_time", [1, 3, 4])
def test_pieces_say_what_the_whole_says(at_a_time: int) -> None:
    model = build(pooling="mean")
    tokens_BN, keep_BN = torch.cat([TOKENS_BN, TOKENS_BN.flip(1)]), torch.cat([KEEP_BN, KEEP_BN])
    rows_I = torch.tensor([3, 1])
    whole = explain(model, tokens_BN, keep_BN, rows_I=rows_I)
    pieces = explain(model, tokens_BN, keep_BN, rows_I=rows_I, rows_at_a_time=at_a_time)
    for name in ("scores_IC", "classes_I", "attention_BLN", "steepness_BN"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name), rtol=1e-4, atol=1e-6)


def test_dropout_is_not_explained() -> None:
    with pytest.raises(ValueError, match="expected a model in evaluation mode"):
        explain(build().train(), TOKENS_BN)
