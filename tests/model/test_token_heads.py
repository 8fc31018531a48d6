"""Heads: a class of each token, and scores under autocast."""

import torch
from small import small_config

from nystromformer.model import TokenClassificationModel
from nystromformer.model.heads import ClassificationHead, PooledHead, TokenHead

CONFIG = small_config(model__dropout_prob=0.0).model
KEEP_BN = torch.arange(20) < torch.tensor([[20], [11]])
TOKENS_BN = torch.randint(5, 200, (2, 20), generator=torch.Generator().manual_seed(0))


def test_each_token_gets_a_class_whatever_the_padding() -> None:
    torch.manual_seed(0)
    model = TokenClassificationModel(CONFIG, 7).eval()
    logits_BNC = model(TOKENS_BN, KEEP_BN)
    assert logits_BNC.shape == (2, 20, 7)
    alone = model(TOKENS_BN[1:, :11])
    torch.testing.assert_close(logits_BNC[1:, :11], alone, rtol=1e-4, atol=1e-5)
    logits_BNC[KEEP_BN].sum().backward()
    assert all(p.grad is not None for p in model.head.parameters())


def test_scores_are_not_rounded_under_autocast() -> None:
    """In bfloat16 a thousand rows would share some forty scores."""
    torch.manual_seed(0)
    x_BNE, pooled_BE = 0.1 * torch.randn(1, 1000, 32), 0.1 * torch.randn(1000, 32)
    scores = {
        "classes": lambda: ClassificationHead(32, 1)(pooled_BE),
        "pooled": lambda: PooledHead(32, 16, 1)(pooled_BE),
        "tokens": lambda: TokenHead(32, 1)(x_BNE),
    }
    for name, score in scores.items():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found = score()
        assert found.dtype == torch.float32, name
        assert len(found.unique()) > 900, name
