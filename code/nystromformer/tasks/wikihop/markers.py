"""The special tokens that mark a question and its candidates, added to a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from nystromformer.data.tokenizer import special_tokens
from nystromformer.errors import UserError

MARKERS = {
    "question": "<question>",
    "end_question": "</question>",
    "answer": "<answer>",
    "end_answer": "</answer>",
}


@dataclass(frozen=True)
class Markers:
    """Ids of the tokens that rows are built with."""

    bos: int
    pad: int
    eos: int
    question: int
    end_question: int
    answer: int
    end_answer: int


def add_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """A copy of the tokenizer with `<question>`, `</question>`, `<answer>` and `</answer>`.

    Their ids follow the vocabulary's last one, in this order; those that it has already keep theirs.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in MARKERS.values()])
    return copy


def markers(tokenizer: Tokenizer) -> Markers:
    """Ids of the tokens that rows are built with.

    Raises:
        UserError: the tokenizer lacks one of them.
    """
    special = special_tokens(tokenizer)
    ids: dict[str, int] = {}
    for role, token in MARKERS.items():
        index = tokenizer.token_to_id(token)
        if index is None:
            raise UserError(f"the tokenizer has no {token}: expected one with WikiHop's special tokens added")
        ids[role] = index
    return Markers(special.bos, special.pad, special.eos, **ids)
