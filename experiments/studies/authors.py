"""Who wrote it: passages of 512, 2,048 and 8,192 tokens of novels, learned from one book of each author and told of the
other.

`python experiments/studies/authors.py run --data DIR [STAGE ...]`, then `collect`. DIR holds
authors/Author_Title_Year.txt, two books of each of 18 authors; in the folder `tiny` beside --out lies what
experiments/studies/tiny.py has pretrained.

The same text is read at every length: of each book as many whole passages of the longest length as the shortest book
has, at most eight, and shorter passages are those divided. What differs is how much of it the model sees at once.
Softmax and Nyström begin with the same weights, those of softmax-tiny-conv, which favours softmax.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from authors_figures import AUTHORS, LENGTHS, WAYS, collect

from nystromformer import studies
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.studies import Job, Stages, job

KIND, CHECKPOINT = "softmax-tiny-conv", 2
SHORTEST, LONGEST = min(LENGTHS), max(LENGTHS)
MOST = 8
"""Passages of the longest length of a book."""
FREE = 8
"""Tokens of a row of 512 that are left free, for the special ones and for words that are cut otherwise at the ends."""
FIRST_CHARACTERS = 10_000
"""Cut off each book: author, title, preface, the list of chapters."""
EPOCHS = 6
ATTENTIONS = {"nystrom": "--set model.attn_type=nystrom --set model.num_landmarks=64", "softmax": ""}


@dataclass(frozen=True)
class Encoder:
    """One kind of run; each is done both ways."""

    attention: str
    length: int
    """Of a row of the model."""
    passage: int
    epochs: int = EPOCHS

    @property
    def name(self) -> str:
        blocks = f"-blocks-of-{self.length}" if self.length < self.passage else ""
        return f"{self.attention}-{self.passage}{blocks}" + (f"-epochs-{self.epochs}" if self.epochs != EPOCHS else "")


WHOLE = [
    Encoder(name, length, length) for length in LENGTHS for name in ATTENTIONS if (name, length) != ("softmax", LONGEST)
]
BLOCKS = [Encoder("nystrom", SHORTEST, length) for length in LENGTHS[1:]]
ONE_EPOCH = [Encoder(name, LONGEST, LONGEST, 1) for name in ATTENTIONS]
"""Softmax at the longest length takes hours: one epoch of it, and of Nyström beside it."""


class Authors(Stages):
    """The runs."""

    study = "authors"
    needs = "authors"

    @property
    def _source(self) -> Path:
        return self.out.parent / "tiny" / "seed0" / KIND

    def tables(self) -> None:
        """Of each length a table of each side's passages, and one of those that the epoch is chosen by."""
        passages = cut_passages(self.data / "authors", self._source / "model" / "tokenizer")
        for length, way in itertools.product(LENGTHS, WAYS):
            rows = [(author, text, number) for author, book, number, text in passages[length] if book == way]
            last = max(number for _, _, number in rows)
            parts = {
                "held-out": [row for row in rows if row[2] == last],
                "train": [row for row in rows if row[2] < last],
                "all": rows,
            }
            for part, found in parts.items():
                studies.write_table(self._table(part, way, length), ("author", "text", "passage"), found)

    def guessers(self) -> None:
        """A bag of words, and one of character n-grams."""
        self.run(
            job(f"guessers-{length}", "experiments/studies/authors_guessers.py", self.out / "tables",
                "--length", length, "--out", self.out / f"guessers-{length}.json")
            for length in LENGTHS
        )  # fmt: skip

    def whole(self) -> None:
        """Nyström at each length, softmax at the first two."""
        self._train(WHOLE)

    def blocks(self) -> None:
        """Rows of 512 tokens, embedded one by one, of which the mean is classified."""
        self._train(BLOCKS)

    def one_epoch(self) -> None:
        """Softmax at the longest length."""
        self._train(ONE_EPOCH)

    def _table(self, part: str, way: str, length: int) -> Path:
        return self.out / "tables" / f"{part}-{way}-{length}.csv"

    def _train(self, encoders: Sequence[Encoder]) -> None:
        self.run(self._training(each, way) for each in encoders for way in WAYS)

    def _training(self, each: Encoder, way: str) -> Job:
        train, held_out = (self._table(part, way, each.passage) for part in ("train", "held-out"))
        test = self._table("all", WAYS[1 - WAYS.index(way)], each.passage)
        tables = ("--train", train, "--validation", held_out, "--test", test)
        rows = f"--text text --label author --task {way}-{each.passage} --length {each.length}"
        rows += " --cut windows --overlap 0" if each.length < each.passage else ""
        batch = LONGEST // each.passage  # as many tokens in a step at every length
        flags = f"--batch_size {batch} --epoch {each.epochs} --lr 3e-4 --predict last"
        folder = studies.experiment_from(self._source, CHECKPOINT, self.out / each.name)
        model = f"--checkpoint {CHECKPOINT} {ATTENTIONS[each.attention]} --set model.pooling=mean --discard_weights"
        less = "--train_rows 18 --epoch 1" if self.rehearse else ""
        name = f"{each.name}-{way}"
        return job(name, "code/run_classify.py", "--model", folder, *tables, rows, flags, model, less)


def cut_passages(books: Path, tokenizer_folder: Path) -> dict[int, list[tuple[str, str, int, str]]]:
    """Of each length: author, which of the two books, the number of the longest passage that this one is of, text."""
    tokenizer = load_tokenizer(tokenizer_folder)
    unit = SHORTEST - FREE
    texts: dict[str, list[tuple[str, list[int]]]] = {}
    for path in sorted(books.glob("*_*_*.txt"), key=lambda path: (path.stem.split("_")[0], path.stem.split("_")[2])):
        text = path.read_text(encoding="utf-8-sig")[FIRST_CHARACTERS:]
        starts = [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]
        texts.setdefault(path.stem.split("_")[0], []).append((text, starts))
    counts = {author: len(pair) for author, pair in texts.items()}
    if list(counts.values()) != [len(WAYS)] * AUTHORS:
        sys.exit(f"{books}: expected two books of each of {AUTHORS} authors, found {counts}")
    longest = unit * (LONGEST // SHORTEST)
    most = min(MOST, *(len(starts) // longest for pair in texts.values() for _, starts in pair))
    if most < 2:
        sys.exit(f"{books}: expected books of {2 * longest:,} tokens at least, found a shorter one")
    passages: dict[int, list[tuple[str, str, int, str]]] = {length: [] for length in LENGTHS}
    for author, pair in texts.items():
        for way, (text, starts) in zip(WAYS, pair, strict=True):
            # The last one's end; a book need not go on after it.
            ends = [*starts, len(text)]
            for length in LENGTHS:
                size = unit * (length // SHORTEST)
                for number in range(most * longest // size):
                    piece = text[ends[number * size] : ends[(number + 1) * size]]
                    passages[length].append((author, way, number * size // longest, piece))
    return passages


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Authors), collect)
