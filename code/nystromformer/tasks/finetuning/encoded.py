"""Sentences and pairs of them, tokenised; a part of the rows, and a line about them.

Shapes: B rows, N tokens.
"""

import hashlib
import re

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.data.tokenizer import special_tokens
from nystromformer.tasks.finetuning.definition import Loading
from nystromformer.tasks.finetuning.examples import Ints, Texts, select
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.wording import number_of, say_unknown

PIECE = 1024
"""Texts that are encoded together, which bounds the memory of the tokenizer's own objects."""


class EncodedTexts:
    """The rows of a split as `<s> A </s>` or `<s> A </s> B </s>`, the form of the pretraining rows.

    Implements Examples: an example is one row.

    Args:
        tokenizer: with RoBERTa's special tokens. Where a text spells one of them, it is taken for text.
        length: tokens of the longest row; a longer one loses tokens at the end of its longer sentence.
        sentence_types: whether batches say which sentence a token is of (type 1 from B's first token on).
    """

    def __init__(self, texts: Texts, tokenizer: Tokenizer, length: int, sentence_types: bool) -> None:
        self.texts = texts
        self.name = texts.name
        self.labels = texts.labels
        special = special_tokens(tokenizer)
        self._pad, self._separator, self._unknown = special.pad, special.eos, special.unk
        self._with_types = sentence_types and texts.second is not None
        self._special = 2 if texts.second is None else 3
        pieces, is_cut = list[NDArray[np.int32]](), list[bool]()
        encoder = literal(tokenizer)
        encoder.no_padding()
        encoder.enable_truncation(length, strategy="longest_first")
        rows = texts.first if texts.second is None else zip(texts.first, texts.second, strict=True)
        inputs: list[str | tuple[str, str]] = list(rows)
        for start in range(0, len(texts), PIECE):
            for encoding in encoder.encode_batch_fast(inputs[start : start + PIECE]):
                pieces.append(np.asarray(encoding.ids, dtype=np.int32))
                is_cut.append(bool(encoding.overflowing))
        self._flat = np.concatenate([np.zeros(0, dtype=np.int32), *pieces])
        self.lengths = np.fromiter(map(len, pieces), dtype=np.int64)
        self._ends = np.append(0, np.cumsum(self.lengths))
        self.rows = np.ones(len(pieces), dtype=np.int64)
        self.tokens = self.lengths
        self.is_cut = np.asarray(is_cut, dtype=bool)
        """Of each example whether some of its tokens are not read."""
        self.truncated = int(self.is_cut.sum())
        digest = hashlib.sha256()
        for array in (self._flat, self.lengths, np.zeros(0) if self.labels is None else self.labels):
            digest.update(f"{array.dtype} {len(array)};".encode())
            digest.update(np.ascontiguousarray(array).data)
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def own_tokens(self) -> Ints:
        """Tokens of each example's texts, without special ones; of windows each token once."""
        tokens: Ints = np.diff(self._ends) - self._special
        return tokens

    @property
    def unknown(self) -> Ints:
        """How many of them the tokenizer has no token for."""
        before = np.append(0, np.cumsum(self._flat == self._unknown))
        unknown: Ints = np.diff(before[self._ends])
        return unknown

    def tokens_of(self, number: int) -> Ints:
        """The tokens of a row, (its length,)."""
        tokens: Ints = self._flat[self._ends[number] : self._ends[number + 1]].astype(np.int64)
        return tokens

    def places_of(self, number: int) -> list[Ints]:
        """Of each row of an example where its tokens stand in `tokens_of`."""
        return [np.arange(self.lengths[number])]

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        rows = [self.tokens_of(number)[places] for number in numbers.tolist() for places in self.places_of(number)]
        lengths_B = np.asarray([len(row) for row in rows])
        width = pad_to or int(lengths_B.max())
        tokens_BN = np.full((len(rows), width), self._pad, dtype=np.int64)
        types_BN = np.zeros_like(tokens_BN)
        for number, row in enumerate(rows):
            tokens_BN[number, : len(row)] = row
            types_BN[number, int(np.argmax(row == self._separator)) + 1 :] = 1
        mask_BN = np.arange(width) < lengths_B[:, None]
        batch = {"tokens_BN": torch.from_numpy(tokens_BN), "mask_BN": torch.from_numpy(mask_BN)}
        if self._with_types:
            batch["types_BN"] = torch.from_numpy(types_BN)
        if self.labels is not None:
            batch["labels"] = torch.from_numpy(self.labels[numbers])
        return batch


def literal(tokenizer: Tokenizer) -> Tokenizer:
    """A copy of the tokenizer that takes a special token spelt in a text for text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = True
    return copy


_BREAKS = re.compile(r"(?:\s*<br\s*/?>)+\s*", re.IGNORECASE)


def without_breaks(text: str) -> str:
    """A text in which each line break of HTML (`<br />`) is a space."""
    return _BREAKS.sub(" ", text)


def encode(texts: Texts, loading: Loading) -> EncodedTexts:
    """The rows of a split, tokenised as the run needs them."""
    return EncodedTexts(texts, loading.tokenizer, loading.length, loading.sentence_types)


def reduce(texts: Texts, wanted: int | None) -> tuple[Texts, list[str]]:
    """So many rows of a split, drawn once and for all, and a warning where that leaves some out."""
    if wanted is None or wanted >= len(texts):
        return texts, []
    chosen = subset(len(texts), wanted)
    return select(texts, chosen), [f"trained on {wanted:,} of the {len(texts):,} rows of {texts.name} (--train_rows)"]


def size_warning(
    name: str, found: int, noun: str, official: int, why: str = "figures on it are not comparable with published ones"
) -> list[str]:
    """A warning where a split has not as many rows as the official one, and why that matters."""
    if found == official:
        return []
    return [f"{name} has {number_of(found, noun)}, the official one has {official:,}: {why}"]


def describe(examples: EncodedTexts) -> str:
    """Number and lengths of a split's rows, how many were cut, and how much of them is unknown."""
    lengths, rows = examples.lengths, int(examples.rows.sum())
    unknown = say_unknown(examples.unknown.sum(), examples.own_tokens.sum())
    texts, cut = "", f"{examples.truncated:,} cut" if examples.truncated else "none cut"
    if rows > len(examples):
        texts, cut = f"{number_of(len(examples), 'text')} in ", f"{examples.truncated:,} in several rows"
    return (
        f"{examples.name}: {texts}{number_of(rows, 'row')} of {lengths.min()} to {lengths.max()} tokens "
        f"(median {int(np.median(lengths))}), {cut}{', ' if unknown else ''}{unknown}"
    )
