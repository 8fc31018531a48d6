"""What decides the rows of a dataset: flags, and the mixture of corpora, with weights, and which documents are for
training and how often, by hashes that need no sizes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import typer

from nystromformer.data.preprocessing.corpus import Document, choose_validation_groups, stable_uniform
from nystromformer.data.preprocessing.packing import MAX_LENGTH, MIN_LENGTH
from nystromformer.data.preprocessing.unified import UnifiedCorpus
from nystromformer.data.tokenizer import LEAST_TOKENS, MOST_TOKENS
from nystromformer.errors import UserError

log = logging.getLogger(__name__)

TRAIN = "train"
"""The tokenizer that is trained on the text."""
_USUAL_SIZE = 50265
_MOST = 1000
"""The largest weight."""


def parse_mixture(texts: Sequence[str]) -> dict[str, Fraction]:
    """Read NAME or NAME=WEIGHT, with weights such as 2, 0.5 and 1/3; gives each corpus' weight."""
    mixture: dict[str, Fraction] = {}
    for text in texts:
        name, _, weight = text.partition("=")
        try:
            value = Fraction(weight) if weight else Fraction("=" not in text)
        except (ValueError, ZeroDivisionError):
            value = Fraction(0)
        if not name or "/" in name or name.startswith(".") or not 0 < value <= _MOST:
            raise UserError(f"--corpus {text}: expected NAME or NAME=WEIGHT with a positive weight, such as wiki=1/3")
        if name in mixture:
            raise UserError(f"--corpus: {name} given more than once; a weight of 2 takes its text twice")
        mixture[name] = value
    return mixture


@dataclass(frozen=True)
class Choice:
    """Chooses a document's split and how often it comes. All documents of a group are on the same side.

    weight: how often a document of the corpus is in the train split, on average; in validation it is once at the most.
    validation: share of the groups, by a hash of the seed and the group.
    groups: the validation groups of a corpus that has few large ones, which a hash would divide by chance.
    """

    name: str
    weight: Fraction
    validation: float
    seed: int
    groups: frozenset[str] | None = None

    @property
    def passes(self) -> int:
        """How often the corpus is read."""
        return math.ceil(self.weight)

    def __call__(self, document: Document) -> tuple[str, int]:
        """The split, and how many passes over the corpus take the document: the first ones."""
        weight, name = self.weight, self.name
        times = int(weight)
        times += stable_uniform(self.seed, f"weight\0{name}\0{document.id}") < weight - times
        if self.groups is None:
            held_out = stable_uniform(self.seed, f"validation\0{name}\0{document.group}") < self.validation
        else:
            held_out = document.group in self.groups
        return ("validation", min(1, times)) if held_out else ("train", times)


@dataclass(frozen=True)
class DatasetSettings:
    """What decides a dataset's rows, besides the corpora; its fields are flags (`with_flag_groups`)."""

    length: Annotated[int, typer.Option(min=MIN_LENGTH, max=MAX_LENGTH, help="Tokens of a row, special ones included.")]
    mixture: Annotated[
        list[str],
        typer.Option(
            "--corpus",
            help="Corpus: NAME, or NAME=WEIGHT to use its text WEIGHT times, such as wiki=1/3. Repeatable.",
        ),
    ]
    tokenizer: Annotated[
        str,
        typer.Option(
            help="Folder with RoBERTa's vocab.json and merges.txt, or with a tokenizer.json; the name of one in "
            "--corpora or on the Hugging Face hub; or train, to train one on the text.",
        ),
    ] = "roberta-base"
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab_size",
            min=LEAST_TOKENS,
            max=MOST_TOKENS,
            help=f"With --tokenizer train: its vocabulary size. Default: {_USUAL_SIZE}.",
        ),
    ] = None
    validation: Annotated[
        float,
        typer.Option(
            min=1e-6, max=1, help="Share of the documents for validation; 1: no training rows, to score with."
        ),
    ] = 0.2
    seed: Annotated[
        int, typer.Option(help="Random seed of the validation documents, and of the sample at a weight such as 1/3.")
    ] = 0

    def __post_init__(self) -> None:
        if self.validation == 1 and self.tokenizer == TRAIN:
            raise UserError(
                "--validation 1 leaves no text to train a tokenizer on: name the tokenizer of the model to score with "
                "--tokenizer FOLDER (a run keeps it in <model>/model/tokenizer)"
            )
        if self.vocab_size is not None and self.tokenizer != TRAIN:
            raise UserError(
                f"--vocab_size {self.vocab_size}: expected --tokenizer {TRAIN} with it, because another tokenizer "
                f"has a size of its own; found {self.tokenizer}"
            )

    @property
    def trained_size(self) -> int:
        """Tokens of a tokenizer that is trained."""
        return self.vocab_size or _USUAL_SIZE

    def choices(self, read: Mapping[str, UnifiedCorpus]) -> dict[str, Choice]:
        """How documents of each corpus are chosen, by its name; one of them at least can be divided."""
        choices = {}
        for name, weight in parse_mixture(self.mixture).items():
            sizes = read[name].groups
            groups = None if sizes is None else choose_validation_groups(sizes, self.seed, self.validation)
            choices[name] = Choice(name, weight, self.validation, self.seed, groups)
        undivided = [name for name, choice in choices.items() if choice.groups == frozenset()]
        if len(undivided) == len(choices):
            raise UserError(
                f"--corpus {', '.join(undivided)}: the text is a single group, so no part of it can be held out for "
                "validation: add text or another corpus, or give --validation 1"
            )
        for name in undivided:
            log.warning("%s: its text is a single group, so all of it is used for training", name)
        return choices
