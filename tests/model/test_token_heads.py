"""Heads over tokens: a class of each, and where a span begins and ends.

Shapes: B batch, N tokens, C classes.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from small import small_config
from torch import Tensor

from nystromformer.model import QuestionAnsweringModel, TokenClassificationModel, best_span
from nystromformer.model.heads import ClassificationHead, PooledHead, SpanHead, TokenHead

CONFIG = small_config(model__dropout_prob=0.0).model
KEEP_BN = torch.arange(20) < torch.tensor([[20], [11]])
TOKENS_BN = torch.randint(5, 200, (2, 20), generator=torch.Generator().manual_seed(0))


def longhand(first: list[float], last: list[float], most: int) -> float:
    return max(a + b for i, a in enumerate(first) for j, b in enumerate(last) if i <= j < i + most)


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 2**31))
def test_the_best_span_is_that_of_all_pairs(length: int, most: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first_BN, last_BN = (torch.randn(3, length, generator=generator) for _ in "ab")
    first_B, last_B = best_span(first_BN, last_BN, most)
    for row in range(3):
        begin, end = int(first_B[row]), int(last_B[row])
        assert begin <= end < begin + most
        found = float(first_BN[row, begin] + last_BN[row, end])
        assert found == pytest.approx(longhand(first_BN[row].tolist(), last_BN[row].tolist(), most))


def test_answers_are_valid_tokens_of_the_context() -> None:
    torch.manual_seed(0)
    model = QuestionAnsweringModel(CONFIG).eval()
    context_BN = torch.arange(20) >= torch.tensor([[8], [5]])
    first_BN, last_BN = model(TOKENS_BN, KEEP_BN, answers_BN=context_BN)
    for logits_BN in (first_BN, last_BN):
        assert torch.equal(logits_BN.isfinite(), context_BN & KEEP_BN)
    first_B, last_B = best_span(first_BN, last_BN, 30)
    assert ((first_B >= torch.tensor([8, 5])) & (last_B <= torch.tensor([19, 10]))).all()
    # Rows without padding may be given without a mask.
    whole = model(TOKENS_BN[:1])
    torch.testing.assert_close(whole[0], model(TOKENS_BN[:1], KEEP_BN[:1])[0])


def test_spans_are_learned() -> None:
    torch.manual_seed(0)
    model = QuestionAnsweringModel(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)

    def made(rows: int) -> tuple[Tensor, Tensor]:
        tokens_BN = torch.randint(5, 200, (rows, 20), generator=generator)
        begin_B = torch.randint(0, 17, (rows,), generator=generator)
        tokens_BN[torch.arange(rows), begin_B], tokens_BN[torch.arange(rows), begin_B + 3] = 201, 202
        return tokens_BN, begin_B

    for _ in range(60):
        tokens_BN, begin_B = made(32)
        first_BN, last_BN = model(tokens_BN)
        (F.cross_entropy(first_BN, begin_B) + F.cross_entropy(last_BN, begin_B + 3)).backward()
        optimizer.step()
        optimizer.zero_grad()
    tokens_BN, begin_B = made(64)
    first_B, last_B = best_span(*model.eval()(tokens_BN), most=8)
    assert float(((first_B == begin_B) & (last_B == begin_B + 3)).float().mean()) > 0.9


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
    keep_BN = torch.ones(1, 1000, dtype=torch.bool)
    scores = {
        "classes": lambda: ClassificationHead(32, 1)(pooled_BE),
        "pooled": lambda: PooledHead(32, 16, 1)(pooled_BE),
        "tokens": lambda: TokenHead(32, 1)(x_BNE),
        "spans": lambda: SpanHead(32)(x_BNE, keep_BN)[0],
    }
    for name, score in scores.items():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found = score()
        assert found.dtype == torch.float32, name
        assert len(found.unique()) > 900, name
