"""Preprocessing text into training rows, beside the tokenizer alone."""

from dataclasses import dataclass
from pathlib import Path

from nystromformer.benchmark.flags import MOST_REPEATS, Results, flag
from nystromformer.data.preprocessing.packing import MAX_LENGTH
from nystromformer.resources import most_processes


@dataclass(frozen=True)
class Preprocessing:
    """Text, a tokenizer, and the size of rows."""

    corpus: Path | None = flag(None, "A corpus' folder `unified`; default: made-up text.")
    tokenizer: Path | None = flag(None, "A tokenizer's folder; default: one trained on the text.")
    megabytes: float = flag(64.0, "How much text is tokenized.", 0.1, 10**6)
    length: int = flag(512, "Tokens of a training row.", 8, MAX_LENGTH)
    workers: int = flag(2, "Processes that preprocess, and threads of the tokenizer alone.", 1, most_processes())
    repeats: int = flag(3, "Measurements of each: of preprocessing, and of the tokenizer alone.", 1, MOST_REPEATS)


def preprocess(settings: Preprocessing, results: Results) -> str:
    """Tokens a second of preprocessing text into training rows, beside those of the tokenizer alone."""
    from nystromformer.benchmark.preprocess import measure_preprocessing

    return measure_preprocessing(settings, results.out)
