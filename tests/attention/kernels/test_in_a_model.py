"""The kernels within an encoder: layers, recomputation, padding, a loss."""

import pytest
import torch
from interpreting import DEVICE
from small import model_config
from torch import Tensor

from nystromformer.model.build import PretrainingModel


def step(implementation: str, **changes: object) -> tuple[Tensor, dict[str, Tensor]]:
    attention = {"name": "nystrom", "implementation": implementation}
    sizes = {"max_seq_len": 64, "transformer_dim": 64, "embedding_dim": 64, "head_dim": 32, "num_landmarks": 32}
    config = model_config(**{**sizes, "dropout_prob": 0.0, "attn_type": attention, **changes})
    torch.manual_seed(0)
    model = PretrainingModel(config, ["mlm"]).to(DEVICE).train()
    tokens = torch.randint(300, (2, 50)).to(DEVICE)
    positions = torch.randint(40, (2, 6)).to(DEVICE)
    mask = torch.arange(50, device=DEVICE) < torch.tensor([[50], [41]], device=DEVICE)
    sums = model(tokens, positions, mask, None, tokens.gather(1, positions)).mlm_sums
    assert sums is not None
    sums[0].backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return sums.detach(), gradients


@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["kept", "recomputed"])
def test_an_encoder_learns_the_same_by_either_implementation(recompute: bool) -> None:
    usual, expected = step("torch")
    sums, gradients = step("triton", attention_grad_checkpointing=recompute)
    torch.testing.assert_close(sums, usual)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected[name], atol=1e-5, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}"
        )
