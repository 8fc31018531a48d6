"""Sentences as rows of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from nystromformer.data.tokenizer import added_tokens, row_form, special_tokens, train_tokenizer
from nystromformer.tasks.documents.cut import Cut, encode_cut
from nystromformer.tasks.finetuning.encoded import EncodedTexts, describe
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.wording import warn_of_unknown

TOKENIZER: Tokenizer = train_tokenizer(["a landmark is a mean of a segment of tokens"] * 20, 300)
SPECIAL = special_tokens(TOKENIZER)


def encoded(first: list[str], second: list[str] | None = None, length: int = 64, types: bool = True) -> EncodedTexts:
    labels = np.arange(len(first), dtype=np.int64) % 2
    return EncodedTexts(Texts("made-up train", first, second, labels), TOKENIZER, length, types)


def words(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def test_the_form_is_that_of_the_pretraining_rows() -> None:
    single, pair = encoded(["a mean"]), encoded(["a mean"], ["of tokens"])
    assert single.tokens_of(0).tolist() == [SPECIAL.bos, *words("a mean"), SPECIAL.eos]
    row = [SPECIAL.bos, *words("a mean"), SPECIAL.eos, *words("of tokens"), SPECIAL.eos]
    assert pair.tokens_of(0).tolist() == row
    first = len(words("a mean")) + 2
    assert pair.batch(np.array([0]))["types_BN"][0].tolist() == [0] * first + [1] * (len(row) - first)
    assert "types_BN" not in single.batch(np.array([0]))
    assert "types_BN" not in encoded(["a"], ["b"], types=False).batch(np.array([0]))


@given(st.lists(st.text(max_size=60), min_size=1, max_size=8), st.booleans(), st.integers(8, 40))
def test_batches_hold_the_rows_and_their_mask(texts: list[str], pair: bool, length: int) -> None:
    examples = encoded(texts, texts[::-1] if pair else None, length)
    numbers = np.arange(len(texts))[::-1].copy()
    for pad_to in (None, length + 3):
        batch = examples.batch(numbers, pad_to)
        width = pad_to or int(examples.lengths.max())
        assert batch["tokens_BN"].shape == batch["mask_BN"].shape == (len(texts), width)
        for row, number in enumerate(numbers):
            tokens, mask = batch["tokens_BN"][row], batch["mask_BN"][row]
            assert tokens[mask].tolist() == examples.tokens_of(int(number)).tolist()
            assert (tokens[~mask] == SPECIAL.pad).all()
            # Nothing that a text spells ends a row early.
            assert (tokens[mask] == SPECIAL.eos).sum() == (2 if pair else 1)
        assert batch["labels"].tolist() == [number % 2 for number in numbers]
    assert examples.lengths.max() <= length


def test_special_tokens_in_a_text_are_text() -> None:
    examples = encoded(["a </s> b <mask> <pad>"])
    inner = examples.tokens_of(0)[1:-1]
    assert not set(inner.tolist()) & {SPECIAL.bos, SPECIAL.eos, SPECIAL.pad, SPECIAL.mask}
    assert TOKENIZER.decode(inner.tolist()).strip() == "a </s> b <mask> <pad>"


def test_the_longer_sentence_is_cut() -> None:
    examples = encoded(["a mean"], ["of a segment of tokens " * 20], 24)
    tokens = examples.tokens_of(0).tolist()
    assert len(tokens) == 24
    assert tokens[1 : 1 + len(words("a mean"))] == words("a mean")
    assert examples.truncated == 1
    assert "1 row of 24 to 24 tokens (median 24), 1 cut" in describe(examples)


@pytest.mark.parametrize(("share", "said", "warned"), [(0, False, False), (5, True, False), (50, True, True)])
@pytest.mark.parametrize("cut", [Cut(), Cut("windows")], ids=lambda cut: cut.rule)
def test_unknown_tokens_are_counted_and_said(share: int, said: bool, warned: bool, cut: Cut) -> None:
    """Those that are read, each once; of a tokenizer of bytes there are none."""
    tokenizer = Tokenizer(
        WordLevel({word: at for at, word in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>", "a"))}, "<unk>")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(added_tokens())
    tokenizer.post_processor = row_form(tokenizer)
    text = " ".join(["\u0e01"] * share + ["a"] * (100 - share))
    examples = encode_cut(Texts("t", [text, "a"]), tokenizer, 102 if cut.rule != "windows" else 40, False, cut)
    assert (examples.unknown.tolist(), examples.own_tokens.tolist()) == ([share, 0], [100, 1])
    assert (f"{100 * share / 101:.1f} % of the tokens are unknown" in describe(examples)) == said
    assert bool(warn_of_unknown("t", examples.unknown.sum(), examples.own_tokens.sum())) == warned
    assert not encoded([text]).unknown.any()


@pytest.mark.parametrize("change", ["text", "label", "order"])
def test_the_fingerprint_is_of_everything(change: str) -> None:
    base = Texts("x", ["a mean", "tokens"], None, np.array([0, 1]))
    other = {
        "text": Texts("x", ["a mean", "token"], None, np.array([0, 1])),
        "label": Texts("x", ["a mean", "tokens"], None, np.array([0, 0])),
        "order": Texts("x", ["tokens", "a mean"], None, np.array([1, 0])),
    }[change]
    prints = [EncodedTexts(texts, TOKENIZER, 32, False).fingerprint for texts in (base, base, other)]
    assert prints[0] == prints[1] != prints[2]
