"""The encoder's own contract; that it is transformers' and the authors' is shown where their weights are read."""

import pytest
import torch
from largest import bytes_for_backward
from small import LENGTH, PLAIN, tokens
from small import model_config as config

from nystromformer.model import Encoder, PretrainingModel


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_padding_changes_no_valid_output(norm: str, pooling: str) -> None:
    encoder = Encoder(config(norm=norm, pooling=pooling)).eval()
    short = tokens(length=20)
    padded = torch.cat([short, torch.ones(2, 12, dtype=torch.long)], 1)
    keep = torch.arange(LENGTH).expand(2, -1) < 20
    expected, out = encoder(short), encoder(padded, keep)
    torch.testing.assert_close(out[:, :20], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder.pool(out, keep), encoder.pool(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("embedding_norm", [False, True])
def test_embeddings_of_another_width_are_projected_then_normalised(embedding_norm: bool) -> None:
    embeddings = Encoder(config(embedding_dim=8, embedding_norm=embedding_norm)).eval().embeddings
    summed = (
        embeddings.word.weight[tokens()]
        + embeddings.position.weight[2 : LENGTH + 2]
        + embeddings.sentence_type.weight[0]
    )
    assert isinstance(embeddings.projection, torch.nn.Linear)
    expected = summed @ embeddings.projection.weight.T + embeddings.projection.bias
    if embedding_norm:
        expected = torch.nn.functional.layer_norm(expected, (16,), eps=1e-5)
    torch.testing.assert_close(embeddings(tokens()), expected)


@pytest.mark.parametrize("key", ["attention_grad_checkpointing", "gelu_grad_checkpointing"])
def test_gradient_checkpointing_changes_memory_not_gradients(key: str) -> None:
    saved, gradients = [], []
    for value in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(config(**{key: value}))
        torch.manual_seed(1)
        saved.append(sum(bytes_for_backward(lambda encoder=encoder: encoder(tokens())).values()))
        torch.manual_seed(1)
        out = encoder(tokens())
        out.square().sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    assert saved[1] < 0.95 * saved[0]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_input_longer_than_the_position_table_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at most max_seq_len = {LENGTH} tokens, found {LENGTH + 1}"):
        Encoder(config())(tokens(length=LENGTH + 1))
    with pytest.raises(ValueError, match="expected at least one token per row, found none"):
        Encoder(config())(tokens(length=0))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("attention", ["nystrom", "softmax"])
def test_only_the_wanted_positions(norm: str, attention: str) -> None:
    """The last layer's short cut changes neither the vectors nor any gradient."""
    changes: dict[str, object] = {"norm": norm, "attn_type": attention, "dropout_prob": 0.0}
    if attention == "softmax":
        changes |= PLAIN
    encoder = Encoder(config(**changes)).double().train()
    positions = torch.tensor([[0, 5, 5, 31], [7, 0, 0, 1]])
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [20]])
    upstream = torch.randn(2, 4, encoder.embeddings.word.weight.shape[1], dtype=torch.float64)

    def results(hidden: torch.Tensor) -> list[torch.Tensor]:
        return [hidden, *torch.autograd.grad(hidden, list(encoder.parameters()), upstream)]

    everywhere = encoder(tokens(), keep)
    expected = results(torch.stack([everywhere[row, positions[row]] for row in range(2)]))
    for result, wanted in zip(results(encoder(tokens(), keep, positions_BK=positions)), expected, strict=True):
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_pretraining_outputs_are_those_of_the_whole_encoder(pooling: str) -> None:
    model = PretrainingModel(config(pooling=pooling), ["mlm", "sop"]).double().eval()
    positions = torch.tensor([[3, 8, 0], [30, 2, 0]])
    hidden = model.encoder(tokens())
    out = model(tokens(), positions)
    assert model.sentence_order is not None
    torch.testing.assert_close(out.order_B2, model.sentence_order(model.encoder.pool(hidden)))
    at = torch.stack([hidden[row, positions[row]] for row in range(2)])
    torch.testing.assert_close(out.mlm_BKV, model.mlm(at, model.encoder.embeddings.word.weight))


def test_a_mask_is_no_positions() -> None:
    with pytest.raises(ValueError, match=r"positions_BK must be positions, int64, found a mask, bool \(2, 32\)"):
        PretrainingModel(config(), ["mlm"])(tokens(), torch.ones(2, LENGTH, dtype=torch.bool))
