"""Which long passage is the other half of another: the nearest neighbours of an encoder's embeddings.

`python results/minilm/longer.py --books DIR --out FILE --windows ORIGINAL --whole NAME=FOLDER ...`, which
`results/minilm/run.py longer` starts. DIR holds `passages.jsonl`; ORIGINAL, an experiment folder, reads the first 512
tokens of each half, and all of it in windows of 512; each other folder's encoder reads a half at once.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.exchange.library import from_pretrained
from nystromformer.files import write_json
from nystromformer.machine import machine_facts

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


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--windows", type=Path, required=True)
    parser.add_argument("--whole", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    original = encoder(asked.windows, WINDOW)

    def whole(folder: Path) -> Embed:
        embed = encoder(folder, HALF)
        return lambda ids: next(embed(ids))

    embeds: dict[str, Embed] = {
        "the first 512 tokens": lambda ids: next(original(ids)),
        "the mean of windows of 512": lambda ids: torch.stack(list(original(ids))).mean(0),
    }
    for each in asked.whole:
        name, _, folder = each.partition("=")
        embeds[name] = whole(Path(folder))
    reached = measure(asked.books / "passages.jsonl", embeds)
    write_json(asked.out, {"machine": machine_facts(), "embeddings": reached})


if __name__ == "__main__":
    main()
