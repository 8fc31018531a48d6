"""Mixtures of corpora: weights, and which documents are for training and how often, by hashes that need no sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from nystromformer.data.preprocessing.corpus import Document, stable_uniform
from nystromformer.errors import UserError

_MOST = 1000


@dataclass(frozen=True)
class WeightedCorpus:
    """A corpus of a mixture.

    weight: how often a document of it is in the train split, on average. Validation has a document once at the most.
    """

    name: str
    weight: Fraction = Fraction(1)

    @property
    def passes(self) -> int:
        """How often the corpus is read."""
        return math.ceil(self.weight)


def parse_mixture(texts: Sequence[str]) -> tuple[WeightedCorpus, ...]:
    """Read NAME or NAME=WEIGHT, with weights such as 2, 0.5 and 1/3.

    Raises:
        UserError: a weight is not a positive number, or a corpus comes twice.
    """
    mixture = tuple(_parse(text) for text in texts)
    names = [corpus.name for corpus in mixture]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"--corpus: {', '.join(twice)} given more than once; a weight of 2 takes its text twice")
    return mixture


def _parse(text: str) -> WeightedCorpus:
    name, equals, weight = text.partition("=")
    problem = UserError(f"--corpus {text}: expected NAME or NAME=WEIGHT with a positive weight, such as wiki=1/3")
    try:
        value = Fraction(weight) if equals else Fraction(1)
    except (ValueError, ZeroDivisionError):
        raise problem from None
    if not name or "/" in name or name.startswith(".") or not 0 < value <= _MOST:
        raise problem
    return WeightedCorpus(name, value)


@dataclass(frozen=True)
class Choice:
    """Chooses a document's split and how often it comes. All documents of a group are on the same side.

    validation: share of the groups, by a hash of the seed and the group.
    groups: the validation groups of a corpus that has few large ones, which a hash would divide by chance.
    """

    corpus: WeightedCorpus
    validation: float
    seed: int
    groups: frozenset[str] | None = None

    def __call__(self, document: Document) -> tuple[str, int]:
        """The split, and how many passes over the corpus take the document: the first ones."""
        weight, name = self.corpus.weight, self.corpus.name
        whole = int(weight)
        extra = int(weight != whole and stable_uniform(self.seed, f"weight\0{name}\0{document.id}") < weight - whole)
        if self.groups is None:
            held_out = stable_uniform(self.seed, f"validation\0{name}\0{document.group}") < self.validation
        else:
            held_out = document.group in self.groups
        return ("validation", min(1, whole + extra)) if held_out else ("train", whole + extra)
