"""What tasks on sentences share: a part of the rows, their tokens, and a line about them."""

import re

import numpy as np
from tokenizers import Tokenizer

from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.definition import Loading
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Texts, select
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.wording import number_of

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


def at_least(texts: Texts, tokens: int, tokenizer: Tokenizer) -> Texts:
    """The rows of a split that have so many tokens or more before any is cut, special tokens included.

    Raises:
        UserError: no row has.
    """
    lengths = EncodedTexts(texts, tokenizer, MOST, sentence_types=False).lengths
    chosen = np.flatnonzero(lengths >= tokens)
    if not len(chosen):
        raise UserError(
            f"--min_tokens {tokens}: {texts.name} has no row of so many tokens; its longest one has {lengths.max():,}"
        )
    return select(texts, chosen)


def size_warning(
    name: str, found: int, noun: str, official: int, why: str = "figures on it do not compare with published ones"
) -> list[str]:
    """A warning where a split has not as many rows as the official one, and why that matters."""
    if found == official:
        return []
    return [f"{name} has {number_of(found, noun)}, the official one has {official:,}: {why}"]


def describe(examples: EncodedTexts) -> str:
    """Number and lengths of a split's rows, and how many were cut."""
    lengths, rows = examples.lengths, int(examples.rows.sum())
    texts, cut = "", f"{examples.truncated:,} cut" if examples.truncated else "none cut"
    if rows > len(examples):
        texts, cut = f"{number_of(len(examples), 'text')} in ", f"{examples.truncated:,} in several"
    return (
        f"{examples.name}: {texts}{number_of(rows, 'row')} of {lengths.min()} to {lengths.max()} tokens "
        f"(median {int(np.median(lengths))}), {cut}"
    )
