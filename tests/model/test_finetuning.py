"""Models of fine-tuning tasks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import LENGTH, small_config
from torch import Tensor

from nystromformer.model import CandidateModel, ClassificationModel
from nystromformer.model.heads import CandidateHead


def tokens(rows: int = 3, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(5, 300, (rows, length))
    mask = torch.arange(length) < torch.tensor([length, length - 7, 3])[:rows, None]
    return tokens, mask


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_classification_is_the_head_over_the_pooled_encoder(pooling: str) -> None:
    model = ClassificationModel(small_config(model__pooling=pooling).model, 3).eval()
    tokens_BN, mask_BN = tokens()
    with torch.no_grad():
        hidden = model.encoder(tokens_BN, mask_BN)
        torch.testing.assert_close(model(tokens_BN, mask_BN), model.head(model.encoder.pool(hidden, mask_BN)))
        padded = torch.nn.functional.pad(tokens_BN[:, :20], (0, 0)), mask_BN[:, :20] & (torch.arange(20) < 9)
        short = tokens_BN[:, :9], padded[1][:, :9]
        torch.testing.assert_close(model(*padded), model(*short), rtol=1e-4, atol=1e-5)


@given(st.data(), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=40)
def test_a_candidates_score_is_the_mean_over_its_rows(data: st.DataObject, instances: int, most: int) -> None:
    counts = data.draw(st.lists(st.integers(1, most), min_size=instances, max_size=instances))
    rows = [(i, sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))) for i, n in enumerate(counts)]
    rows += [(i, [c for c in range(n)]) for i, n in enumerate(counts)]  # noqa: C416  # plain lists, both
    widest = max(len(candidates) for _, candidates in rows)
    candidates_BC = torch.full((len(rows), widest), -1)
    for row, (_, candidates) in enumerate(rows):
        candidates_BC[row, : len(candidates)] = torch.tensor(candidates)
    instance_B = torch.tensor([instance for instance, _ in rows])
    present_IA = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    head = CandidateHead(8).eval()
    hidden = torch.randn(len(rows), widest, 8, requires_grad=True)
    scores = head(hidden, candidates_BC, instance_B, present_IA)
    single = head.score(hidden)[..., 0]
    for instance, count in enumerate(counts):
        for candidate in range(max(counts)):
            where = (candidates_BC == candidate) & (instance_B == instance)[:, None]
            expected = single[where].mean() if candidate < count else torch.tensor(float("-inf"))
            torch.testing.assert_close(scores[instance, candidate], expected)
    torch.nn.functional.cross_entropy(scores, torch.zeros(instances, dtype=torch.long)).backward()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()
    assert not hidden.grad[candidates_BC < 0].any(), "padding gets no gradient"


def test_candidates_are_read_where_they_stand() -> None:
    model = CandidateModel(small_config().model).eval()
    tokens_BN, mask_BN = tokens(2)
    positions = torch.tensor([[1, 5, 9], [2, 3, -1]])
    candidates = torch.tensor([[0, 1, 2], [0, 1, -1]])
    present = torch.tensor([[True, True, True], [True, True, False]])
    with torch.no_grad():
        scores = model(tokens_BN, mask_BN, mask_BN, positions, candidates, torch.arange(2), present)
        hidden = model.encoder(tokens_BN, mask_BN)
        for row, column in ((0, 0), (0, 2), (1, 1)):
            expected = model.head.score(hidden[row, positions[row, column]])[0]
            torch.testing.assert_close(scores[row, column], expected, rtol=1e-4, atol=1e-5)
    assert scores[1, 2] == float("-inf")
