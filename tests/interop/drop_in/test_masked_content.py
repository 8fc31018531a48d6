"""What stands at masked positions of a model of transformers."""

import pytest
import torch
from theirs import build

from nystromformer.interop.drop_in import register


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_nan_in_the_padding_reaches_no_other_token(family: str) -> None:
    register("nystrom", num_landmarks=4)
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
