"""The tasks: rows of tokens, some of which ask a question whose answer stands elsewhere in the row.

A token has an id and a mark, which the encoder embeds as a sentence type; so a key and its value can share one position
(stacked associative recall, Arora et al. 2023, arXiv 2312.04927). Nothing at a position tells the answer asked for
there, and every other position may be looked at, before and after.

Shapes: R rows, N tokens, P pairs, K keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NO_ANSWER = -100
VALUES = 16
"""Values of `lookup` and `recall`, and kinds of token of `shift`, `copy` and `needle`."""
KINDS = 4
"""Kinds of token of `majority`."""
_FAVOURED = 0.2
"""Of `majority`: the share of the tokens that are made to be of one kind, so that few rows are decided by one token."""


class Rows(NamedTuple):
    """Rows of a task."""

    tokens_RN: Tensor
    """Ids, int64."""
    marks_RN: Tensor
    """Int64; 0 where a token has none."""
    answers_RN: Tensor
    """Int64; NO_ANSWER where none is asked for."""
    guesses_RN: Tensor
    """What the task's rule answers without looking for anything."""


@dataclass(frozen=True)
class Task:
    """A task at one length."""

    vocab_size: int
    marks: int
    answers: int
    """Kinds of answer; `recall` has more in training, see `recall`."""
    rule: str
    """The simplest way to answer, whose accuracy stands beside the attentions'."""
    draw: Callable[[torch.Generator, int, bool], Rows]
    """`draw(generator, rows, training)`."""
    rotary: bool = False
    """Whether positions are rotary rather than learned."""


def lookup(length: int, pairs: int) -> Task:
    """Tokens hold a key and its value, or a key alone, whose value is asked for."""
    keys = 2 * length

    def draw(generator: torch.Generator, rows: int, training: bool) -> Rows:
        keys_RP, values_RP = _pairs(generator, rows, keys, pairs)
        questions = _whole(generator, pairs, rows, length - pairs)
        tokens = torch.cat([keys_RP, keys_RP.gather(1, questions)], 1)
        marks = torch.cat([values_RP + 1, torch.zeros_like(questions)], 1)
        answers = torch.cat([torch.full_like(values_RP, NO_ANSWER), values_RP.gather(1, questions)], 1)
        order_RN = torch.rand(rows, length, generator=generator).argsort(1)
        tokens, marks, answers = (each.gather(1, order_RN) for each in (tokens, marks, answers))
        return _rows(tokens, answers, values_RP, marks)

    return Task(keys, 1 + VALUES, VALUES, "the row's most frequent value", draw)


def recall(length: int, pairs: int) -> Task:
    """As `lookup`, with the value in the token behind its key: a value must find its key before a question finds it.

    In training each value is asked for its key, too. Without that, softmax learned neither step in minutes, with any
    positions, rates or numbers of pairs that were tried; with learned positions it does not with it either.
    """
    keys, items = 2 * pairs, length - pairs

    def draw(generator: torch.Generator, rows: int, training: bool) -> Rows:
        keys_RP, values_RP = _pairs(generator, rows, keys, pairs)
        order = torch.rand(rows, items, generator=generator).argsort(1)
        is_pair = order < pairs
        which = torch.where(is_pair, order, _whole(generator, pairs, rows, items))
        key, value = keys_RP.gather(1, which), values_RP.gather(1, which)
        at = (1 + is_pair.long()).cumsum(1) - 1 - is_pair.long()
        # What has no second token is written beyond the row, and cut.
        second = torch.where(is_pair, at + 1, length)
        tokens = torch.zeros(rows, length + 1, dtype=torch.int64)
        tokens.scatter_(1, at, key).scatter_(1, second, keys + value)
        answers = torch.full((rows, length + 1), NO_ANSWER)
        answers.scatter_(1, torch.where(is_pair, length, at), value)
        if training:
            answers.scatter_(1, second, VALUES + key)
        return _rows(tokens[:, :length], answers[:, :length], values_RP)

    return Task(keys + VALUES, 1, VALUES + keys, "the row's most frequent value", draw, rotary=True)


def shift(length: int, distance: int) -> Task:
    """Each token is asked for the one `distance` places before it."""

    def draw(generator: torch.Generator, rows: int, training: bool) -> Rows:
        tokens = _whole(generator, VALUES, rows, length)
        answers = torch.full_like(tokens, NO_ANSWER)
        answers[:, distance:] = tokens[:, :-distance]
        return _rows(tokens, answers, tokens)

    return Task(VALUES, 1, VALUES, "the row's most frequent token", draw)


def copy(length: int) -> Task:
    """Each token's mark is a position, and the token there is asked for."""

    def draw(generator: torch.Generator, rows: int, training: bool) -> Rows:
        tokens, pointers = (_whole(generator, most, rows, length) for most in (VALUES, length))
        # A pointer at the token itself would need no attention.
        pointers = torch.where(pointers == torch.arange(length), (pointers + 1) % length, pointers)
        return _rows(tokens, tokens.gather(1, pointers), tokens, pointers)

    return Task(VALUES, length, VALUES, "the row's most frequent token", draw)


def needle(length: int) -> Task:
    """The first token is asked for the one token that has a mark."""

    def draw(generator: torch.Generator, rows: int, training: bool) -> Rows:
        tokens = _whole(generator, VALUES, rows, length)
        at = torch.randint(1, length, (rows, 1), generator=generator)
        marks = torch.zeros_like(tokens).scatter_(1, at, 1)
        answers = torch.full_like(tokens, NO_ANSWER)
        answers[:, :1] = tokens.gather(1, at)
        others, tokens[:, 0] = tokens[:, 1:].clone(), VALUES
        return _rows(tokens, answers, others, marks)

    return Task(VALUES + 1, 2, VALUES, "the row's most frequent token", draw)


def majority(length: int) -> Task:
    """The first token is asked for the most frequent kind of the others; rows with a tie ask nothing."""

    def draw(generator: torch.Generator, rows: int, training: bool) -> Rows:
        tokens, favourite = _whole(generator, KINDS, rows, length), _whole(generator, KINDS, rows, 1)
        tokens = torch.where(torch.rand(rows, length, generator=generator) < _FAVOURED, favourite, tokens)
        counts, kinds = F.one_hot(tokens[:, 1:], KINDS).sum(1).topk(2, 1)
        answers = torch.full_like(tokens, NO_ANSWER)
        answers[:, 0] = torch.where(counts[:, 0] > counts[:, 1], kinds[:, 0], NO_ANSWER)
        tokens[:, 0] = KINDS
        return _rows(tokens, answers, tokens[:, 1:2])

    return Task(KINDS + 1, 1, KINDS, "the kind of the second token", draw)


TASKS: Mapping[str, Callable[[int, int | None], Task]] = {
    "lookup": lambda length, pairs: lookup(length, length // 2 if pairs is None else pairs),
    "recall": lambda length, pairs: recall(length, length // 4 if pairs is None else pairs),
    "shift_1": lambda length, pairs: shift(length, 1),
    "shift_8": lambda length, pairs: shift(length, 8),
    "shift_half": lambda length, pairs: shift(length, length // 2),
    "copy": lambda length, pairs: copy(length),
    "needle": lambda length, pairs: needle(length),
    "majority": lambda length, pairs: majority(length),
}
"""By name: the task at a length, with so many pairs; None: its own number, a half or a quarter of the tokens."""
MOST_PAIRS: Mapping[str, Callable[[int], int]] = {
    "lookup": lambda length: length - 1,
    "recall": lambda length: (length - 1) // 2,
}
"""Of the tasks that have pairs: the most at a length, which leave one question."""


def _whole(generator: torch.Generator, below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=generator)


def _pairs(generator: torch.Generator, rows: int, keys: int, pairs: int) -> tuple[Tensor, Tensor]:
    """(R, P) each: keys, all different within a row, and values."""
    keys_RP = torch.rand(rows, keys, generator=generator).argsort(1)[:, :pairs]
    return keys_RP, _whole(generator, VALUES, rows, pairs)


def _rows(tokens_RN: Tensor, answers_RN: Tensor, counted_RX: Tensor, marks_RN: Tensor | None = None) -> Rows:
    """Rows whose guesses are the most frequent of what is counted; marks are 0 unless told."""
    guesses_R1 = F.one_hot(counted_RX, VALUES).sum(1).argmax(1, keepdim=True)
    marks_RN = torch.zeros_like(tokens_RN) if marks_RN is None else marks_RN
    return Rows(tokens_RN, marks_RN, answers_RN, guesses_R1.expand(tokens_RN.shape))
