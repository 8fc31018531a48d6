"""A step of training beside transformers' Nyströmformer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import typer

from nystromformer.benchmark.flags import MOST_REPEATS, Results, flag, threads
from nystromformer.config.ranges import MOST, MOST_LAYERS
from nystromformer.errors import UserError

HEAD_DIM = LANDMARKS = 64
"""Of the models whose steps are measured."""


def _parse_sizes(given: Any) -> Any:
    """Tokens and rows, such as 512x8,4096x1."""
    if not isinstance(given, str):  # the default
        return given
    pairs = [part.strip().partition("x")[::2] for part in given.split(",")]
    if all(tokens.isdecimal() and rows.isdecimal() for tokens, rows in pairs):
        sizes = tuple((int(tokens), int(rows)) for tokens, rows in pairs)
        if all(LANDMARKS < n <= MOST and n % LANDMARKS == 0 and 1 <= rows <= MOST for n, rows in sizes):
            return sizes
    raise typer.BadParameter(
        f"expected TOKENSxROWS separated by commas, such as 512x8,4096x1, with more tokens than the {LANDMARKS} "
        f"landmarks and a multiple of them (transformers accepts no others); found {given!r}"
    )


@dataclass(frozen=True)
class Step:
    """The model, by default the paper's BERT-small with RoBERTa's vocabulary, and its batches.

    Raises:
        UserError: a width that heads do not divide, or rows that landmarks do not divide.
    """

    attentions: list[str] = flag(
        [],
        "An attention to pretrain with, with parameters after commas; may be given several times. Default: Nyström "
        "with the convolution, and softmax.",
        name="attention",
    )
    sizes: Sequence[tuple[int, int]] = flag(
        ((512, 8), (4096, 1)),
        "Batches of pretraining, as TOKENSxROWS, separated by commas.",
        parser=_parse_sizes,
        metavar="SIZES",
        show_default="512x8,4096x1",
    )
    batch: int = flag(32, "Examples of a step of fine-tuning.", 1, MOST)
    pad_to: int = flag(512, f"Tokens of a padded example; a multiple of the {LANDMARKS} landmarks.", 128, MOST)
    batches: int = flag(16, "Steps of fine-tuning that a measurement of batches by length consists of.", 1, MOST)
    repeats: int = flag(7, "Measurements of each.", 1, MOST_REPEATS)
    num_layers: int = flag(4, "Layers of the model.", 1, MOST_LAYERS, name="layers")
    width: int = flag(512, f"Width of the model: {HEAD_DIM} for each attention head.", HEAD_DIM, HEAD_DIM * 10**5)
    vocab_size: int = flag(50265, "Tokens of the vocabulary.", 300, MOST)
    precision: Literal["float32", "bf16", "fp16"] = flag(
        "float32", "What models compute in: float32, or bf16 or fp16 under autocast."
    )
    threads: int = threads()

    def __post_init__(self) -> None:
        if self.width % HEAD_DIM:
            raise UserError(f"--width: expected a multiple of the heads' {HEAD_DIM}, found {self.width}")
        if self.pad_to % LANDMARKS:
            raise UserError(f"--pad_to: expected a multiple of the {LANDMARKS} landmarks, found {self.pad_to}")


def step(settings: Step, results: Results) -> str:
    """Time and memory of a step of pretraining and of fine-tuning, beside transformers' Nyströmformer."""
    from nystromformer.benchmark.step import measure_step

    return measure_step(settings, results.out)
