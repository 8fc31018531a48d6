"""What a byte-level BPE tokenizer as GPT-2's and RoBERTa's has to be: its merges make up its vocabulary."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, pairwise

from tokenizers import pre_tokenizers

from nystromformer.errors import UserError

Merge = tuple[str, str]

_SHOWN = 3
# <s>, <|endoftext|>, <unused7>, and the words with which RoBERTa's vocabulary is filled up
_NO_TEXT = re.compile(r"<\|?\w+\|?>|madeupword\d{4}")
_ORDERED = 0.9
"""Share of neighbouring merges with ascending ids from which on ids are taken to be given in the order of the merges.
In RoBERTa's vocabulary, which is in the order of frequency, it is a half."""
_ROBERTA_TOKENS = "0d67c742af60436bd1150c685f55271e78642a116acae08177e0887578af2a0a"
"""SHA-256 of the tokens of RoBERTa's vocabulary, sorted and joined by line ends; of these in the order of their ids;
and of the lines of its merges, which are GPT-2's."""
_ROBERTA_IDS = "6e8b8d26dcc24d72cd5094c4b3d6d5e50cfb48e0cfc9bd1db1588620a41e3a91"
_ROBERTA_MERGES = "04e3597d7996f292ca9b8b7285ca4d58a6ae171ac47d73fc7140ceb0c7a6bbc0"


def check_byte_level(vocabulary: Mapping[str, int], merges: Sequence[Merge], added: Collection[str]) -> None:
    """Check that merges and vocabulary make each other up, so that neither was cut short or altered.

    - Ids are 0, 1, … without a gap; all 256 bytes are tokens.
    - A merge joins bytes or results of merges before it, and its result is in the vocabulary.
    - Every token is a byte, the result of a merge, an added token, or of a form that no merge makes (`_NO_TEXT`).
    - Where ids are in the order of the merges, they are so throughout.
    - RoBERTa's own tokens have RoBERTa's own ids and merges.

    Args:
        added: special tokens and others that are not made by merges.

    Raises:
        UserError: names the first tokens for which this does not hold.
    """
    check_ids(vocabulary)
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    _refuse(sorted(alphabet - set(vocabulary)), "the vocabulary lacks the bytes {}, which would vanish from the text")
    results = _check_merges(vocabulary, merges, alphabet)
    others = (token for token in vocabulary if token not in results and token not in added)
    _refuse([token for token in others if not _NO_TEXT.fullmatch(token)], "no merge makes the tokens {}")
    _check_order(vocabulary, merges)
    _check_roberta(vocabulary, merges)


def check_ids(vocabulary: Mapping[str, int]) -> None:
    """Check that the ids are 0, 1, … without a gap.

    Raises:
        UserError: names the first tokens for which this does not hold.
    """
    expected = set(range(len(vocabulary)))
    lacking = sorted(expected - set(vocabulary.values()))
    _refuse([token for token, number in vocabulary.items() if number not in expected], "ids beyond their number: {}")
    _refuse(lacking, "no token has the ids {}: expected 0, 1, … without a gap")


def _check_merges(vocabulary: Mapping[str, int], merges: Sequence[Merge], alphabet: Collection[str]) -> set[str]:
    """Check the merges one after the other; returns all that they make, with the bytes."""
    results = set(alphabet)
    for number, (left, right) in enumerate(merges, start=1):
        lacking = [part for part in (left, right) if part not in results]
        _refuse(lacking, f"merge {number}, {left!r} and {right!r}: no merge before it makes {{}}")
        if left + right not in vocabulary:
            raise UserError(f"merge {number}, {left!r} and {right!r}: the merged token is not in the vocabulary")
        results.add(left + right)
    _refuse([merge for merge, count in Counter(merges).items() if count > 1], "the same merge comes twice: {}")
    return results


def _check_order(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> None:
    """Where nearly all ids are in the order of the merges, all have to be."""
    # of a token that two merges make, the first one gave the id
    results = list(dict.fromkeys(left + right for left, right in merges))
    falling = [two for one, two in pairwise(results) if vocabulary[one] > vocabulary[two]]
    if len(falling) < (1 - _ORDERED) * len(results):
        _refuse(falling, "ids are in the order of the merges but for those of {}: merges or ids were altered")


def _check_roberta(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> None:
    tokens = sorted(vocabulary)
    if _sha256(tokens) != _ROBERTA_TOKENS:
        return
    if _sha256(sorted(tokens, key=vocabulary.__getitem__)) != _ROBERTA_IDS:
        raise UserError("the vocabulary has RoBERTa's tokens, but not all with RoBERTa's ids: it was altered")
    if _sha256(" ".join(merge) for merge in merges) != _ROBERTA_MERGES:
        raise UserError("the vocabulary is RoBERTa's, but the merges are not: they were altered")


def _sha256(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _refuse(wrong: Sequence[object], problem: str) -> None:
    """Raise, naming the first of what is wrong, if anything is."""
    if wrong:
        shown = ", ".join(f"{each!r:.60}" for each in islice(wrong, _SHOWN))
        more = f" and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
        raise UserError(problem.format(shown + more))
