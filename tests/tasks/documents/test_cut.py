"""Texts longer than a row: what each rule keeps, that windows lose nothing, and that their mean is classified."""

from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning import made_rows
from hypothesis import given
from hypothesis import strategies as st
from small import small_config

from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.model import ClassificationModel
from nystromformer.tasks.documents.cut import WindowTexts, cut_of, encode_cut, window_starts
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Texts

MOST = 10_000


@pytest.fixture(scope="module")
def tokenizer(source: Path) -> object:
    return load_tokenizer(source / "model" / "tokenizer")


@given(st.integers(1, 500), st.integers(2, 60), st.data())
def test_windows_cover_everything(size: int, room: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    starts = window_starts(size, room, overlap)
    covered = sorted({at for start in starts for at in range(start, min(start + room, size))})
    assert covered == list(range(size))
    if size <= room:
        assert starts == [0]
        return
    assert starts[-1] + room == size, "all are full"
    steps = np.diff(starts)
    assert steps.max() <= room - overlap
    assert steps.max() - steps.min() <= 1
    assert len(starts) == 1 + -(-(size - room) // (room - overlap)), "the fewest"


def rows_of(examples: EncodedTexts, number: int) -> list[list[int]]:
    batch = examples.batch(np.asarray([number]))
    return [row[mask].tolist() for row, mask in zip(batch["tokens_BN"], batch["mask_BN"], strict=True)]


@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
@pytest.mark.parametrize("rule", ["head", "windows"])
def test_rows(tokenizer, rule: str, pairs: bool) -> None:  # type: ignore[no-untyped-def]
    first = [text for text, _ in made_rows(20, most=60)]
    second = [text for text, _ in made_rows(20, 1, most=30)] if pairs else None
    texts = Texts("t", first, second, np.zeros(20, dtype=np.int64))
    length = 24
    cut = cut_of("windows,overlap=3" if rule == "windows" else rule)
    examples = encode_cut(texts, tokenizer, length, True, cut)
    whole = EncodedTexts(texts, tokenizer, MOST, True)
    assert examples.truncated == (whole.lengths > length).sum() > 0
    for number in range(20):
        rows, tokens = rows_of(examples, number), whole.tokens_of(number).tolist()
        assert max(map(len, rows)) == examples.lengths[number] <= length
        assert len(rows) == examples.rows[number]
        assert sum(map(len, rows)) == examples.tokens[number]
        read = set(np.concatenate(examples.places_of(number)).tolist())
        assert examples.is_cut[number] == (len(read) < len(tokens))
        if len(tokens) <= length:
            assert rows == [tokens]
            continue
        if rule == "windows" and not pairs:
            assert rows[0][:-1] == tokens[: length - 1]
            assert rows[-1][1:] == tokens[-length + 1 :]


def test_a_batch_is_its_examples(tokenizer) -> None:  # type: ignore[no-untyped-def]
    """Padded or not, alone or beside others; with the sentences' types, and the number of rows."""
    pairs = [made_rows(8, seed, most=40) for seed in (0, 1)]
    texts = Texts("t", *([text for text, _ in rows] for rows in pairs), labels=np.arange(8))
    examples = WindowTexts(texts, tokenizer, 24, True, 2)
    batch = examples.batch(np.asarray([3, 0, 5]), pad_to=30)
    assert batch["tokens_BN"].shape == (examples.rows[[3, 0, 5]].sum(), 30)
    assert batch["rows_I"].tolist() == examples.rows[[3, 0, 5]].tolist()
    assert batch["labels"].tolist() == [3, 0, 5]
    found = [row[mask].tolist() for row, mask in zip(batch["tokens_BN"], batch["mask_BN"], strict=True)]
    assert found == [row for number in (3, 0, 5) for row in rows_of(examples, number)]
    for row, mask, types in zip(batch["tokens_BN"], batch["mask_BN"], batch["types_BN"], strict=True):
        middle = row.tolist().index(examples._separator)
        assert types[mask].tolist() == [0] * (middle + 1) + [1] * (int(mask.sum()) - middle - 1)
        assert not types[~mask].any()
    other = WindowTexts(texts, tokenizer, 24, True, 3)
    assert other.fingerprint != examples.fingerprint
    assert WindowTexts(texts, tokenizer, 24, True, 2).fingerprint == examples.fingerprint


def test_the_head_gets_the_mean_over_an_examples_rows() -> None:
    torch.manual_seed(0)
    model = ClassificationModel(small_config(model__dropout_prob=0.0).model, 3).eval()
    tokens_BN = torch.randint(5, 300, (6, 12))
    rows_I = torch.tensor([3, 1, 2])
    with torch.no_grad():
        found = model(tokens_BN, None, None, rows_I)
        hidden = [model.encoder(tokens_BN[row : row + 1])[:, 0] for row in range(6)]
        means = [torch.cat(hidden[start:stop]).mean(0) for start, stop in ((0, 3), (3, 4), (4, 6))]
        torch.testing.assert_close(found, model.head(torch.stack(means)))
        alone = model(tokens_BN, None, None, torch.ones(6, dtype=torch.int64))
    assert torch.equal(alone, model(tokens_BN))


def test_rules_that_cannot_be(tokenizer) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match="--cut middle: expected one of head, windows"):
        cut_of("middle")
    with pytest.raises(UserError, match="--cut head,overlap=3: expected one of head"):
        cut_of("head,overlap=3")
    with pytest.raises(UserError, match="overlap=20: expected windows of --length 24 to advance by at least 4"):
        WindowTexts(Texts("t", ["a"]), tokenizer, 24, False, 20)
