"""Who wrote it: passages of 512, 2,048 and 8,192 tokens of novels, learned from one book of each author and told of the
other.

Run it at the top of a clone, in its environment: `python results/authors/run.py [STAGE ...] --data DIR`. DIR holds
authors/Author_Title_Year.txt, two books of each author. --out, by default runs/authors, takes everything; in the folder
`tiny` beside it lies what results/tiny/run.py has pretrained. Started again, it goes on where it was stopped.

The same text is read at every length: of each book as many whole passages of the longest length as the shortest book
has, at most eight, and shorter passages are those divided. What differs is how much of it the model sees at once.
Softmax and Nyström begin with the same weights, those of softmax-tiny-conv, which favours softmax.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.files import write_json
from nystromformer.side_by_side import Job, Runner, experiment_from, job, run_stages, write_table

KIND, CHECKPOINT = "softmax-tiny-conv", 2
LENGTHS = (512, 2048, 8192)
LONGEST = max(LENGTHS)
MOST = 8
"""Passages of the longest length of a book."""
ROOM = 8
"""Tokens of a row of 512 that are left free, for the special ones and for words that are cut otherwise at the ends."""
FIRST_CHARACTERS = 10_000
"""Cut off each book: author, title, preface, the list of chapters."""
COLUMNS = ("author", "text", "passage")
WAYS = ("first", "second")
"""Which of an author's two books, by their years, is learned from; the other one is tested on."""
EPOCHS = 6
ATTENTIONS = {"nystrom": "--set model.attn_type=nystrom --set model.num_landmarks=64", "softmax": ""}


@dataclass(frozen=True)
class Trained:
    """One kind of run; each is done both ways."""

    attention: str
    length: int
    """Of a row of the model."""
    passage: int
    epochs: int = EPOCHS

    @property
    def name(self) -> str:
        windows = f"-blocks-of-{self.length}" if self.length < self.passage else ""
        return f"{self.attention}-{self.passage}{windows}" + (f"-epochs-{self.epochs}" if self.epochs != EPOCHS else "")


WHOLE = [
    Trained(name, length, length) for length in LENGTHS for name in ATTENTIONS if (name, length) != ("softmax", LONGEST)
]
BLOCKS = [Trained("nystrom", min(LENGTHS), length) for length in LENGTHS[1:]]
ONE_EPOCH = [Trained(name, LONGEST, LONGEST, 1) for name in ATTENTIONS]
"""Softmax at the longest length takes hours: one epoch of it, and of Nyström beside it."""


class Stages:
    """The stages, in their order."""

    def __init__(self, data: Path, out: Path, run: Runner, rehearse: bool) -> None:
        self.data, self.out, self.run, self.rehearse = data, out, run, rehearse
        self.tiny = out.parent / "tiny"

    def tables(self) -> None:
        """Of each length a table of each side's passages, and one of those that the epoch is chosen by."""
        made = passages_of(self.data / "authors", self.tiny / "seed0" / KIND / "model" / "tokenizer")
        write_json(self.out / "authors.json", sorted({author for author, *_ in made[LONGEST]}))
        for length, way in itertools.product(LENGTHS, WAYS):
            table = [(author, text, number) for author, book, number, text in made[length] if book == way]
            last = max(number for _, _, number in table)
            write_table(self.table("held-out", way, length), COLUMNS, [row for row in table if row[2] == last])
            write_table(self.table("train", way, length), COLUMNS, [row for row in table if row[2] < last])
            write_table(self.table("all", way, length), COLUMNS, table)

    def guessers(self) -> None:
        """A bag of words, and one of character n-grams."""
        self.run([
            job(f"guessers-{length}", "results/authors/guessers.py", self.out / "tables", "--length", length,
                "--out", self.out / f"guessers-{length}.json")
            for length in LENGTHS
        ])  # fmt: skip

    def whole(self) -> None:
        """Nyström at each length, softmax at the first two."""
        self._train(WHOLE)

    def blocks(self) -> None:
        """Rows of 512 tokens, embedded one by one, of which the mean is classified."""
        self._train(BLOCKS)

    def one_epoch(self) -> None:
        """Softmax at the longest length."""
        self._train(ONE_EPOCH)

    def table(self, part: str, way: str, length: int) -> Path:
        return self.out / "tables" / f"{part}-{way}-{length}.csv"

    def _train(self, wanted: Sequence[Trained]) -> None:
        self.run([self._run(one, way) for one in wanted for way in WAYS])

    def _run(self, one: Trained, way: str) -> Job:
        batch = LONGEST // one.passage  # as many tokens in a step at every length
        cut = "--cut windows --overlap 0" if one.length < one.passage else ""
        train, held_out = (self.table(part, way, one.passage) for part in ("train", "held-out"))
        test = self.table("all", WAYS[1 - WAYS.index(way)], one.passage)
        tables = ("--train", train, "--validation", held_out, "--test", test)
        rows = f"--text text --label author --task {way}-{one.passage}"
        flags = f"{cut} --length {one.length} --batch_size {batch} --epoch {one.epochs} --lr 3e-4 --predict last"
        started = experiment_from(self.tiny / "seed0" / KIND, CHECKPOINT, self.out / one.name)
        place = ("--model", started, "--checkpoint", CHECKPOINT)
        less = "--train_rows 18 --epoch 1" if self.rehearse else ""
        return job(f"{one.name}-{way}", "code/run_classify.py", *place, *tables, rows, flags, ATTENTIONS[one.attention],
                   "--set model.pooling=mean --discard_weights", less)  # fmt: skip


def passages_of(books: Path, tokenizer_folder: Path) -> dict[int, list[tuple[str, str, int, str]]]:
    """Of each length: author, which of the two books, the number of the longest passage that this one is of, text."""
    tokenizer = load_tokenizer(tokenizer_folder)
    unit = min(LENGTHS) - ROOM
    texts: dict[str, list[tuple[str, list[int]]]] = {}
    for path in sorted(books.glob("*_*_*.txt"), key=lambda path: (path.stem.split("_")[0], path.stem.split("_")[2])):
        text = path.read_text(encoding="utf-8-sig")[FIRST_CHARACTERS:]
        starts = [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]
        texts.setdefault(path.stem.split("_")[0], []).append((text, starts))
    if not texts or any(len(pair) != len(WAYS) for pair in texts.values()):
        sys.exit(f"{books}: expected two books of each author, found { ({a: len(pair) for a, pair in texts.items()}) }")
    longest = unit * (LONGEST // min(LENGTHS))
    most = min(MOST, *(len(starts) // longest for pair in texts.values() for _, starts in pair))
    if most < 2:
        sys.exit(f"{books}: expected books of {2 * longest:,} tokens at least, found a shorter one")
    made: dict[int, list[tuple[str, str, int, str]]] = {length: [] for length in LENGTHS}
    for author, pair in texts.items():
        for way, (text, starts) in zip(WAYS, pair, strict=True):
            # The last one's end; a book need not go on after it.
            ends = [*starts, len(text)]
            for length in LENGTHS:
                size = unit * (length // min(LENGTHS))
                for number in range(most * longest // size):
                    piece = text[ends[number * size] : ends[(number + 1) * size]]
                    made[length].append((author, way, number * size // longest, piece))
    return made


STAGES = ("tables", "guessers", "whole", "blocks", "one_epoch")


if __name__ == "__main__":
    run_stages(__doc__, STAGES, Stages, "folder with authors", Path("runs/authors"))
