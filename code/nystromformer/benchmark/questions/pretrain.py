"""A pretraining step of BERT-small beside transformers' Nyströmformer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

from nystromformer.benchmark.flags import LANDMARKS, MOST_REPEATS, BertSmall, Results, flag
from nystromformer.config.ranges import MOST


def _parse_batches(given: Any) -> Any:
    """Tokens and rows of `--sizes`, such as 512x8,4096x1: sizes that transformers takes."""
    if not isinstance(given, str):
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
class Pretraining(BertSmall):
    """Of the peer, float32 is measured always, and `precision` too where it is another."""

    sizes: Sequence[tuple[int, int]] = flag(
        ((512, 8), (4096, 1)),
        "Batches to measure, as TOKENSxROWS, separated by commas.",
        parser=_parse_batches,
        metavar="SIZES",
        show_default="512x8,4096x1",
    )
    repeats: int = flag(7, "Measured steps of each model.", 1, MOST_REPEATS)
    compile: bool = flag(False, "Also measure layers that torch.compile has compiled.")


def pretrain(settings: Pretraining, results: Results) -> str:
    """Time and memory of a pretraining step of BERT-small, beside transformers' Nyströmformer."""
    from nystromformer.benchmark.pretrain import measure_pretraining

    return measure_pretraining(settings, results.out)
