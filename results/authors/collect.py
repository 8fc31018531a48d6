"""Gathers what run.py has reached into this folder: a table, data and a picture.

`python results/authors/collect.py [--runs runs/authors]`: what is not there yet is named and left out. What speed.py
has measured stands below the table.
"""

import argparse
import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from run import LENGTHS, WAYS

from nystromformer.files import write_figure, write_json, write_text
from nystromformer.runs.figures import Spread, power_note, smallest_difference
from nystromformer.runs.record import find_runs
from nystromformer.side_by_side import read_stages
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Line:
    """A line of the table: one way to tell who wrote a passage."""

    what: str
    passage: int
    accuracy: dict[str, float]
    """By the book that was learned from."""
    rows: int
    tokens_per_second: float | None
    """Of training, the median of the reports, with a thread and other work beside it; None for what has no steps."""
    held_out: float | None = None
    """The share that is right of passages of the book that was learned from, which were held out; mean of both ways."""

    @property
    def mean(self) -> float:
        return sum(self.accuracy.values()) / len(self.accuracy)


def encoders(runs: Path) -> list[Line]:
    """Of the finished runs."""
    lines = []
    for folder in sorted(path.parent for path in runs.glob("*/config.json")):
        accuracy: dict[str, float] = {}
        held_out: list[float] = []
        speeds, rows, passage, what = [], 0, 0, ""
        for result in find_runs(folder / "model", "classify"):
            found = re.fullmatch(r"(first|second)-(\d+)", result.choices["table"])
            if not found or "accuracy" not in result.test_metrics:
                continue
            passage, rows = int(found[2]), sum(result.test_rows.values())
            accuracy[found[1]] = result.test_metrics["accuracy"]
            held_out.append(result.last.metrics["accuracy"])
            what = f"{result.attention[0]['name']}, {len(result.epochs)} epoch{'s' if len(result.epochs) > 1 else ''}"
            what += f", mean of blocks of {result.length}" if result.length < passage else ""
            records = [one for one in read_log(result.folder / "log.jsonl") if one["type"] == "train"]
            speeds += [one["tokens_per_second"] for one in records]
        if len(accuracy) == len(WAYS):
            lines.append(Line(what, passage, accuracy, rows, median(speeds), sum(held_out) / len(held_out)))
        else:
            print(f"{folder.name}: not finished")  # noqa: T201
    return lines


def votes(runs: Path) -> list[Line]:
    """Passages told by the mean of what the runs on the shortest rows say, as logarithms, of those that they are made
    of: nothing more was trained.
    """
    lines = []
    for name in ("nystrom", "softmax"):
        found: dict[int, dict[str, tuple[float, int]]] = {}
        for path in sorted(runs.glob(f"{name}-{min(LENGTHS)}/model/documents/*/*/predictions/test.tsv")):
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            classes = [column for column in rows[0] if column.startswith("p_")]
            logs_nC = np.log(np.maximum([[float(row[each]) for each in classes] for row in rows], 1e-6))
            way = path.parts[-4].partition("-")[0]
            for length in LENGTHS[1:]:
                # A table has an author's passages in the order of the book.
                count = length // min(LENGTHS)
                labels = [{row["label"] for row in rows[at : at + count]} for at in range(0, len(rows), count)]
                assert all(len(each) == 1 for each in labels), f"{path}: expected {count} rows of each passage"
                chosen = logs_nC.reshape(-1, count, len(classes)).sum(1).argmax(1)
                right = [rows[number * count]["label"] == classes[each][2:] for number, each in enumerate(chosen)]
                found.setdefault(length, {})[way] = (sum(right) / len(right), len(right))
        for length, ways in found.items():
            if len(ways) == len(WAYS):
                accuracy = {way: share for way, (share, _) in ways.items()}
                what = f"{name}, vote of rows of {min(LENGTHS)}"
                lines.append(Line(what, length, accuracy, ways[WAYS[0]][1], None))
    return lines


def guessers(runs: Path) -> list[Line]:
    """Without a network."""
    lines = []
    for path in sorted(runs.glob("guessers-*.json")):
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        for guesser in dict.fromkeys(row["guesser"] for row in rows):
            own = [row for row in rows if row["guesser"] == guesser]
            accuracy = {row["way"]: row["accuracy"] for row in own}
            lines.append(Line(guesser, own[0]["passage"], accuracy, own[0]["rows"], None))
    return lines


def table(lines: list[Line], authors: int) -> str:
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
    header = [
        "tokens",
        "by",
        "learned from the first books, %",
        "from the second, %",
        "mean, %",
        "of the same book, held out, %",
    ]
    means = [(Spread(line.mean, None), 1) for line in lines]
    books = smallest_difference("accuracy", means, len(WAYS) * authors)
    return (
        f"{markdown(header, body)}\n\nOne of {authors} authors by chance: {100 / authors:.1f} %. One seed. Passages "
        f"of one book are not independent. {power_note({'with a book as one example': books})}\n"
    )


def costs(measured: dict[str, Any]) -> str:
    """A line for each attention and form, in seconds for as many tokens."""
    rows, tokens = measured["rows"], measured["settings"]["tokens"]
    passages = sorted({row["passage"] for row in rows})
    kinds = dict.fromkeys((row["attention"], row["length"] < row["passage"]) for row in rows)
    body = []
    for attention, in_blocks in kinds:
        own = {
            row["passage"]: row
            for row in rows
            if (row["attention"], row["length"] < row["passage"]) == (attention, in_blocks)
        }
        cells = [
            f"{own[one]['train_ms']['median'] / 1000:.2f}, {own[one]['predict_ms']['median'] / 1000:.2f}"
            if one in own
            else ""
            for one in passages
        ]
        body.append([attention + (", blocks of 512" if in_blocks else ""), *cells])
    header = [f"{tokens:,} tokens: a training step, a prediction, s", *(f"in passages of {one:,}" for one in passages)]
    return markdown(header, body) + "\n"


def draw(lines: list[Line], path: Path) -> None:
    """Accuracy over the length of a passage, both ways as a bar's ends."""
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for place, what in enumerate(dict.fromkeys(line.what for line in lines)):
        own = sorted((line for line in lines if line.what == what), key=lambda line: line.passage)
        means = [100 * line.mean for line in own]
        half = [100 * abs(line.accuracy["first"] - line.mean) for line in own]
        look = {
            "marker": "o",
            "capsize": 3,
            "color": f"C{place}",
            "linestyle": "-" if own[0].tokens_per_second else ":",
        }
        # A little aside of each other, so that none hides another.
        aside = 1 + 0.03 * (place - len({line.what for line in lines}) / 2)
        axis.errorbar([line.passage * aside for line in own], means, half, label=what, **look)
    axis.set_xscale("log", base=2)
    lengths = sorted({line.passage for line in lines})
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.set(xlabel="tokens of a passage", ylabel="passages whose author is told, %")
    axis.grid(alpha=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
    write_figure(path, figure, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/authors"))
    runs = parser.parse_args().runs
    lines = [*encoders(runs), *votes(runs), *guessers(runs)]
    authors = len(set(json.loads((runs / "authors.json").read_text())))
    write_json(HERE / "authors.json", {"began": read_stages(runs), "rows": [vars(line) for line in lines]})
    speed = HERE / "speed.json"
    cost = "\n" + costs(json.loads(speed.read_text())) if speed.exists() else ""
    write_text(HERE / "authors.md", table(lines, authors) + cost)
    draw(lines, HERE / "authors.png")


if __name__ == "__main__":
    main()
