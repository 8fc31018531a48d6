"""Who wrote it: passages of 512, 2,048 and 8,192 tokens of novels, learned from one book of each author and told of the
other.

`python experiments/studies/authors.py run --data DIR [STAGE ...]`, then `collect`. DIR holds
authors/Author_Title_Year.txt, two books of each of 18 authors; in the folder `tiny` beside --out lies what
experiments/studies/tiny.py has pretrained.

The same text is read at every length: of each book as many whole passages of the longest length as the shortest book
has, at most eight, and shorter passages are those divided. What differs is how much of it the model sees at once.
Softmax and Nyström begin with the same weights, those of softmax-tiny-conv, which favours softmax.
"""

import csv
import itertools
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from nystromformer import studies
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.files.writing import write_figure, write_json
from nystromformer.runs.figures import Spread, power_note, smallest_difference
from nystromformer.runs.record import find_runs
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

RESULTS = studies.RESULTS / "authors"
AUTHORS = 18
LENGTHS = (512, 2048, 8192)
WAYS = ("first", "second")
"""Which of an author's two books, by their years, is learned from; the other one is tested on."""
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
            table = passages[passages["length"].eq(length) & passages["way"].eq(way)][["author", "text", "passage"]]
            is_last = table["passage"].eq(table["passage"].max())
            for part, rows in (("held-out", table[is_last]), ("train", table[~is_last]), ("all", table)):
                studies.write_table(self._table(part, way, length), rows)

    def guessers(self) -> None:
        """A bag of words, and one of character n-grams."""
        jobs = []
        for length in LENGTHS:
            out = self.out / f"guessers-{length}.json"
            words = (self.out / "tables", "--length", length, "--out", out)
            jobs.append(job(f"guessers-{length}", "experiments/studies/authors_guessers.py", *words, result=out))
        self.run(jobs)

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
        folder = studies.copy_experiment(self._source, CHECKPOINT, self.out / each.name)
        model = f"--checkpoint {CHECKPOINT} {ATTENTIONS[each.attention]} --set model.pooling=mean --discard_weights"
        less = "--train_rows 18 --epoch 1" if self.rehearse else ""
        name = f"{each.name}-{way}"
        return job(name, "code/run_classify.py", "--model", folder, *tables, rows, flags, model, less)


def cut_passages(books: Path, tokenizer_folder: Path) -> pd.DataFrame:
    """Columns: length, author, which of the two books (way), the number of the longest passage that this one is of
    (passage), text."""
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
    passages: list[tuple[int, str, str, int, str]] = []
    for author, pair in texts.items():
        for way, (text, starts) in zip(WAYS, pair, strict=True):
            # The last one's end; a book need not go on after it.
            ends = [*starts, len(text)]
            for length in LENGTHS:
                size = unit * (length // SHORTEST)
                for number in range(most * longest // size):
                    piece = text[ends[number * size] : ends[(number + 1) * size]]
                    passages.append((length, author, way, number * size // longest, piece))
    return pd.DataFrame(passages, columns=["length", "author", "way", "passage", "text"])


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """A line of the table: one way to tell who wrote a passage."""

    what: str
    passage: int
    accuracy: dict[str, float]
    """By the book that was learned from."""
    rows: int
    tokens_per_second: float | None = None
    """Of training, the median of the reports, with a thread and other work beside it; None for what has no steps."""
    held_out: float | None = None
    """The share that is right of passages of the book that was learned from, which were held out; mean of both ways."""

    @property
    def mean(self) -> float:
        return sum(self.accuracy.values()) / len(self.accuracy)


def collect(runs: Path = Path("runs/authors")) -> None:
    """Write authors.json, authors.md with what `speed.py authors` has measured, and authors.png."""
    if found := [*encoders(runs), *votes(runs), *guessers(runs)]:
        rows = [asdict(line) for line in found]
        write_json(RESULTS / "authors.json", {"began": studies.read_stages(runs), "rows": rows})
    lines = [Line(**row) for row in studies.read_json(RESULTS / "authors.json")["rows"]]
    means = [(Spread(line.mean, None), 1) for line in lines]
    books = smallest_difference("accuracy", means, len(WAYS) * AUTHORS)
    note = f"One of {AUTHORS} authors by chance: {100 / AUTHORS:.1f} %. One seed. Passages of one book are not"
    power = power_note({"with a book as one example": books})
    speed = studies.read_json(RESULTS / "speed.json")
    studies.write_page(RESULTS / "authors.md", table(lines), f"{note} independent. {power}", costs(speed))
    draw(lines)


def encoders(runs: Path) -> list[Line]:
    """Of the finished runs."""
    lines = []
    for each in (*WHOLE, *BLOCKS, *ONE_EPOCH):
        found = {run.choices["table"]: run for run in find_runs(runs / each.name / "model", "classify")}
        ways = {way: found[f"{way}-{each.passage}"] for way in WAYS if f"{way}-{each.passage}" in found}
        if len(ways) < len(WAYS):
            logger.info("%s: not finished", each.name)
            continue
        accuracy = {way: run.test_metrics["accuracy"] for way, run in ways.items()}
        held_out = sum(run.last.metrics["accuracy"] for run in ways.values()) / len(ways)
        records = [record for run in ways.values() for record in read_log(run.folder / "log.jsonl")]
        speed = median(record["tokens_per_second"] for record in records if record["type"] == "train")
        what = f"{each.attention}, {each.epochs} epoch{'s' if each.epochs > 1 else ''}"
        what += f", mean of blocks of {each.length}" if each.length < each.passage else ""
        lines.append(Line(what, each.passage, accuracy, sum(ways[WAYS[0]].test_rows.values()), speed, held_out))
    return lines


def votes(runs: Path) -> list[Line]:
    """Passages told by the mean of what the runs on the shortest rows say, as logarithms, of those that they are made
    of: nothing more was trained.
    """
    lines = []
    for name, length in itertools.product(ATTENTIONS, LENGTHS[1:]):
        ways: dict[str, pd.Series] = {}
        for path in sorted(runs.glob(f"{name}-{SHORTEST}/model/documents/*/*/predictions/test.tsv")):
            rows = pd.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE, dtype={"label": str})
            # A table has an author's passages in the order of the book.
            passages = rows.groupby(np.arange(len(rows)) // (length // SHORTEST))
            labels = passages["label"].agg(["first", "nunique"])
            assert (labels["nunique"] == 1).all(), f"{path}: expected {length // SHORTEST} rows of each passage"
            logs = np.log(rows.filter(regex="^p_").clip(lower=1e-6))
            chosen = logs.groupby(passages.ngroup()).sum().idxmax(axis=1).str.removeprefix("p_")
            ways[path.parts[-4].partition("-")[0]] = chosen == labels["first"]
        if len(ways) == len(WAYS):
            accuracy = {way: float(right.mean()) for way, right in ways.items()}
            lines.append(Line(f"{name}, vote of rows of {SHORTEST}", length, accuracy, len(ways[WAYS[0]])))
    return lines


def guessers(runs: Path) -> list[Line]:
    """Without a network."""
    lines = []
    for path in sorted(runs.glob("guessers-*.json")):
        rows = studies.read_json(path)
        for guesser in dict.fromkeys(row["guesser"] for row in rows):
            own = [row for row in rows if row["guesser"] == guesser]
            accuracy = {row["way"]: row["accuracy"] for row in own}
            lines.append(Line(guesser, own[0]["passage"], accuracy, own[0]["rows"]))
    return lines


def table(lines: list[Line]) -> str:
    """Of all lines. Without errors: passages of one book are not independent."""
    body = [
        [
            f"{line.passage:,}",
            line.what,
            *(f"{100 * line.accuracy[way]:.1f}" for way in WAYS),
            f"{100 * line.mean:.1f}",
            "" if line.held_out is None else f"{100 * line.held_out:.1f}",
        ]
        for line in sorted(lines, key=lambda line: (line.passage, line.tokens_per_second is None, line.what))
    ]
    header = ["tokens", "by", "learned from the first books, %", "from the second, %", "mean, %"]
    return markdown([*header, "of the same book, held out, %"], body)


def costs(speed: dict[str, Any]) -> str:
    """A line for each attention and form, in seconds for as many tokens."""
    passages = sorted({row["passage"] for row in speed["rows"]})
    lines: dict[str, dict[int, str]] = {}
    for row in speed["rows"]:
        kind = row["attention"] + (f", blocks of {LENGTHS[0]}" if row["length"] < row["passage"] else "")
        seconds = (row[key]["median"] / 1000 for key in ("train_ms", "predict_ms"))
        lines.setdefault(kind, {})[row["passage"]] = ", ".join(f"{each:.2f}" for each in seconds)
    header = [f"{speed['settings']['tokens']:,} tokens: a training step, a prediction, s"]
    header += [f"in passages of {each:,}" for each in passages]
    return markdown(header, [[kind, *(line.get(each, "") for each in passages)] for kind, line in lines.items()])


def draw(lines: list[Line]) -> None:
    """authors.png: accuracy over the length of a passage, both ways as a bar's ends."""
    figure, (axis,) = studies.new_figure(1, 7, 4.4)
    kinds = list(dict.fromkeys(line.what for line in lines))
    for place, what in enumerate(kinds):
        own = sorted((line for line in lines if line.what == what), key=lambda line: line.passage)
        means = [100 * line.mean for line in own]
        half = [100 * abs(line.accuracy["first"] - line.mean) for line in own]
        look = {"marker": "o", "capsize": 3, "linestyle": "-" if own[0].tokens_per_second else ":"}
        # A little aside of each other, so that none hides another.
        aside = 1 + 0.03 * (place - len(kinds) / 2)
        passages = [line.passage * aside for line in own]
        axis.errorbar(passages, means, half, label=what, color=f"C{place}", **look)
    axis.set_xscale("log", base=2)
    lengths = sorted({line.passage for line in lines})
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.set(xlabel="tokens of a passage", ylabel="passages whose author is told, %")
    axis.legend(fontsize=8, frameon=False)
    write_figure(RESULTS / "authors.png", figure, dpi=120)


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Authors), collect)
