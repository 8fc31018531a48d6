"""What decides the rows of a dataset."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from nystromformer.data.preprocessing.corpus import choose_validation_groups
from nystromformer.data.preprocessing.mixture import Choice, parse_mixture
from nystromformer.data.preprocessing.packing import MAX_LENGTH, MIN_LENGTH
from nystromformer.data.preprocessing.unified import UnifiedCorpus
from nystromformer.data.tokenizer import LEAST_TOKENS, MOST_TOKENS
from nystromformer.errors import UserError

log = logging.getLogger(__name__)

TRAIN = "train"
_USUAL_SIZE = 50265
"""The tokenizer that is trained on the text."""


@dataclass(frozen=True)
class DatasetSettings:
    """What decides a dataset's rows, besides the corpora; its fields are flags (`with_flag_groups`)."""

    length: Annotated[
        int,
        typer.Option("--length", min=MIN_LENGTH, max=MAX_LENGTH, help="Tokens of a row, special tokens included."),
    ]
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
            "--tokenizer",
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
    tokenizer_limit: Annotated[
        int | None,
        typer.Option(
            "--tokenizer_limit", min=1, help="Longest row to allow, instead of the limit in the tokenizer's files."
        ),
    ] = None
    validation: Annotated[
        float,
        typer.Option(
            "--validation",
            help="Share of the documents to keep for validation; 1: no training rows, to score a model with.",
        ),
    ] = 0.2
    seed: Annotated[
        int,
        typer.Option(
            "--seed", help="Random seed of the validation documents, and of the sample at a weight such as 1/3."
        ),
    ] = 0
    in_parts: Annotated[
        bool,
        typer.Option(
            "--in_parts",
            help="Leave the rows in files for each file of documents instead of merging them: for many terabytes.",
        ),
    ] = False

    def __post_init__(self) -> None:
        if not 0 < self.validation <= 1:
            raise UserError(
                f"--validation: expected a share above 0, at most 1 (no training rows), found {self.validation}"
            )
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
        parse_mixture(self.mixture)

    @property
    def trained_size(self) -> int:
        """Tokens of a tokenizer that is trained."""
        return self.vocab_size or _USUAL_SIZE

    def choices(self, read: Mapping[str, UnifiedCorpus]) -> list[Choice]:
        """How documents of each corpus are chosen.

        Raises:
            UserError: none of the corpora can be divided.
        """
        choices = []
        for corpus in parse_mixture(self.mixture):
            sizes = read[corpus.name].groups
            groups = None if sizes is None else choose_validation_groups(sizes, self.seed, self.validation)
            choices.append(Choice(corpus, self.validation, self.seed, groups))
        undivided = [choice.corpus.name for choice in choices if choice.groups == frozenset()]
        if len(undivided) == len(choices):
            raise UserError(
                f"--corpus {', '.join(undivided)}: the text is a single group, so no part of it can be held out for "
                "validation: add text or another corpus, or give --validation 1"
            )
        for name in undivided:
            log.warning("%s: its text is a single group, so all of it is used for training", name)
        return choices
