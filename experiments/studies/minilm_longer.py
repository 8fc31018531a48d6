"""Which long passage is the other half of another: the nearest neighbours of an encoder's embeddings. What the stage
`longer` of experiments/studies/minilm.py starts.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from nystromformer import studies
from nystromformer.exchange.library import from_pretrained

HALF = 2048
"""Tokens that a half has, with [CLS] and [SEP]."""
WINDOW = 512
Embed = Callable[[Sequence[int]], Tensor]


def encoder(folder: Path, tokens: int) -> Callable[[Sequence[int]], Iterator[Tensor]]:
    """Gives the mean of the last hidden vectors of each piece of a row, of at most so many tokens."""
    model, tokenizer = from_pretrained(folder)
    assert tokenizer is not None
    first, last = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))

    def embed(ids: Sequence[int]) -> Iterator[Tensor]:
        for start in range(0, len(ids), tokens - 2):
            row = torch.tensor([[first, *ids[start : start + tokens - 2], last]])
            yield model.encoder(row, None)[0].mean(0)

    return embed


def whole(folder: Path) -> Embed:
    """Gives the mean over all of a half."""
    embed = encoder(folder, HALF)
    return lambda ids: next(embed(ids))


def neighbours(halves: Sequence[tuple[Tensor, Tensor]], books: Sequence[str]) -> dict[str, object]:
    """How often the nearest second half is a first half's own, how often it is of the same book, and by book."""
    one, other = (F.normalize(torch.stack(list(part)), dim=-1) for part in zip(*halves, strict=True))
    nearest = (one @ other.T).argmax(1).tolist()
    right = [found == number for number, found in enumerate(nearest)]
    by_book: dict[str, list[bool]] = {}
    for book, is_right in zip(books, right, strict=True):
        by_book.setdefault(book, []).append(is_right)
    return {
        "right": sum(right) / len(right),
        "same_book": sum(books[found] == book for found, book in zip(nearest, books, strict=True)) / len(right),
        "by_book": {book: sum(values) / len(values) for book, values in by_book.items()},
    }


@torch.no_grad()
def measure(path: Path, embeds: Mapping[str, Embed]) -> dict[str, dict[str, object]]:
    """Every kind of embedding on the passages of a file."""
    passages = [json.loads(line) for line in path.read_text().splitlines()]
    books = [each["book"] for each in passages]
    return {
        name: neighbours([(embed(each["halves"][0]), embed(each["halves"][1])) for each in passages], books)
        for name, embed in embeds.items()
    }


def compare(
    books: Annotated[Path, typer.Option(help="Folder with passages.jsonl.")],
    windows: Annotated[
        Path, typer.Option(help="Experiment that reads the first 512 tokens of a half, and a whole half in windows.")
    ],
    out: Annotated[Path, typer.Option()],
    whole_folders: Annotated[
        list[str], typer.Option("--whole", metavar="NAME=FOLDER", help="An experiment that reads a half at once.")
    ] = [],  # noqa: B006
) -> None:
    """Measure every kind of embedding."""
    torch.set_num_threads(1)
    original = encoder(windows, WINDOW)
    embeds: dict[str, Embed] = {
        "the first 512 tokens": lambda ids: next(original(ids)),
        "the mean of windows of 512": lambda ids: torch.stack(list(original(ids))).mean(0),
    }
    for name, _, folder in (each.partition("=") for each in whole_folders):
        embeds[name] = whole(Path(folder))
    studies.write_figures(out, embeddings=measure(books / "passages.jsonl", embeds))


if __name__ == "__main__":
    studies.run_commands(compare)
