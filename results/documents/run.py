"""Tables of real texts from end to end: reviews as `run_imdb.py` reads them and as a CSV, news by their topic, pairs of
papers, and pairs of sentences with a value; each killed in its second epoch and resumed, beside a run that was not.

Run it at the top of a clone, in its environment: `python results/documents/run.py [STAGE ...] --data DIR`. DIR holds
imdb, realnews, lra/retrieval and glue/STS-B; in the folder `tiny` beside --out, by default runs/documents, lies what
results/tiny/run.py has pretrained. Writes documents.json and documents.md here. Started again, it goes on where it was
stopped. What the small encoder reaches is no more than a sign that it learned; that both runs of a table are one is
what this is for.
"""

import csv
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.files import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.runs.baselines import BASELINES, find_baselines, read_baselines
from nystromformer.runs.record import Run, find_runs
from nystromformer.side_by_side import ROOT, Runner, experiment_from, run_stages, write_table
from nystromformer.tables import markdown
from nystromformer.tasks.imdb.read import LABELS, read_imdb

HERE = Path(__file__).resolve().parent
KIND, CHECKPOINT = "nystrom-tiny-conv", 2
FLAGS = "--batch_size 16 --lr 3e-4 --seed 0 --set model.pooling=mean --baselines"
REVIEWS = "--length 256 --epoch 2 --train_rows 2000 --validation 0.04"
FIFTH = 5
"""Every fifth row of a table without a division is tested on."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Case:
    """One table, and the flags of its run."""

    name: str
    script: str
    words: list[str]
    metric: str


class Stages:
    """The stages, in their order."""

    def __init__(self, data: Path, out: Path, run: Runner, rehearse: bool) -> None:
        self.data, self.out, self.rehearse = data, out, rehearse
        self.source = out.parent / "tiny" / "seed0" / KIND

    def imdb(self) -> None:
        """Reviews by their own command."""
        self._both(Case("imdb", "run_imdb.py", ["--imdb", str(self.data / "imdb"), *REVIEWS.split()], "accuracy"))

    def reviews(self) -> None:
        """The same ones as tables."""
        train, test = (self.out / f"reviews-{split}.csv" for split in ("train", "test"))
        if not train.exists():
            splits = read_imdb(self.data / "imdb")
            for path, split in ((test, splits["test"]), (train, splits["train"])):
                assert split.labels is not None
                write_table(
                    path, ("body", "label"), zip(split.first, (LABELS[each] for each in split.labels), strict=True)
                )
        self._table("reviews", train, test, "body", "label", REVIEWS, "accuracy")

    def news(self) -> None:
        """Articles by topic, each text once."""
        with (self.data / "realnews" / "realnews.jsonl").open(encoding="utf-8") as file:
            articles = [json.loads(line) for line in file]
        topics = {article["text"]: article["category"] for article in articles if "category" in article}
        train, test = self._divided("news", ("text", "topic"), list(topics.items()))
        self._table("news", train, test, "text", "topic", "--length 256 --epoch 3", "accuracy")

    def pairs(self) -> None:
        """Whether one paper cites the other; 158 rows of evaluation, which say little: ± 8 points."""
        paths = []
        for split in ("train", "eval"):
            source = self.data / "lra" / "retrieval" / f"new_aan_pairs.{split}.tsv"
            with source.open(encoding="utf-8", newline="") as file:
                rows = [line.rstrip("\r\n").split("\t") for line in file]
            path = self.out / f"pairs-{split}.csv"
            write_table(path, ("first", "second", "cites"), [(row[3], row[4], str(int(float(row[0])))) for row in rows])
            paths.append(path)
        self._table("pairs", *paths, "first,second", "cites", "--length 512 --epoch 2", "accuracy")

    def values(self) -> None:
        """How alike two sentences are, from 0 to 5."""
        columns = ("sentence1", "sentence2", "score")
        paths = []
        for split in ("train", "dev"):
            with (self.data / "glue" / "STS-B" / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
                # GLUE quotes nothing: a quotation mark there is one of the sentence.
                rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            path = self.out / f"values-{split}.csv"
            write_table(path, columns, [[row[name] for name in columns] for row in rows])
            paths.append(path)
        more = "--kind value --length 128 --epoch 3 --train_rows 3000"
        self._table("values", *paths, "sentence1,sentence2", "score", more, "pearson")

    def _divided(self, name: str, header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> tuple[Path, Path]:
        train, test = (self.out / f"{name}-{part}.csv" for part in ("train", "test"))
        write_table(train, header, [row for number, row in enumerate(rows) if number % FIFTH])
        write_table(test, header, [row for number, row in enumerate(rows) if not number % FIFTH])
        return train, test

    def _table(self, name: str, train: Path, test: Path, text: str, label: str, more: str, metric: str) -> None:
        words = ["--train", str(train), "--test", str(test), "--text", text, "--label", label, "--task", name]
        self._both(Case(name, "run_classify.py", [*words, *more.split()], metric))

    def _both(self, case: Case) -> None:
        """One run that is left alone and one that is killed; what both say goes into a file."""
        done = self.out / f"{case.name}.json"
        if done.exists():
            return
        whole, _ = self._trained(case, "whole", killed=False)
        again, log = self._trained(case, "killed", killed=True)
        predictions = [predictions_of(result) for result in (whole, again)]
        facts: dict[str, Any] = {
            "name": case.name,
            "command": " ".join(["python", f"code/{case.script}", *case.words, *FLAGS.split()]).replace(
                f"{self.data}/", "DATA/").replace(f"{self.out}/", ""),
            "rows": dict(whole.rows) | dict(whole.test_rows),
            "metric": case.metric,
            "metrics": dict(whole.test_metrics),
            "guessers": guessers_of(whole, case.metric),
            "killed_and_resumed": {
                "metrics_equal": whole.test_metrics == again.test_metrics,
                "prediction_files_equal": predictions[0] == predictions[1],
                "went_on": [line for line in log.splitlines() if "going on" in line][-1:],
            },
            "machine": machine_facts(),
        }  # fmt: skip
        write_json(done, facts)
        gather(self.out)

    def _trained(self, case: Case, how: str, killed: bool) -> tuple[Run, str]:
        folder = experiment_from(self.source, CHECKPOINT, self.out / f"{case.name}-{how}")
        flags = FLAGS.split() + (["--train_rows", "64"] if self.rehearse else [])
        place = ["--model", str(folder), "--checkpoint", str(CHECKPOINT)]
        words = [sys.executable, f"code/{case.script}", *place, *case.words, *flags]
        log = self.out / "logs" / f"{case.name}-{how}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if killed and not find_runs(folder / "model"):
            kill_in_second_epoch(words, folder, log)
        logger.info("%s, %s", case.name, how)
        with log.open("ab") as file:
            subprocess.run(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=True)
        (result,) = find_runs(folder / "model")
        return result, log.read_text()


def kill_in_second_epoch(words: Sequence[str], folder: Path, log: Path) -> None:
    """Start a run, and kill it (SIGKILL) a second after its first epoch's checkpoint is there."""
    with log.open("ab") as file:
        process = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        while process.poll() is None and not list(folder.rglob("cp-0000.cp")):
            time.sleep(0.1)
        time.sleep(1)
        if process.poll() is not None:
            sys.exit(f"{log}: ended before it could be killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def predictions_of(result: Run) -> dict[str, bytes]:
    folder = result.folder / "predictions"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tsv"))}


def guessers_of(result: Run, metric: str) -> dict[str, float]:
    """What the guessers without a network reach on the test rows."""
    tested = None if result.tested is None else result.tested.data
    measured = find_baselines(read_baselines(result.folder.parent / BASELINES), result.data, tested)
    if measured is None:
        return {}
    return {
        name: found[f"{metric}_test"].mean for name, found in measured.baselines.items() if f"{metric}_test" in found
    }


def gather(out: Path) -> None:
    """Write the table of what is there."""
    cases = [json.loads(path.read_text()) for name in STAGES for path in out.glob(f"{name}.json")]
    lines = []
    for case in cases:
        again = case["killed_and_resumed"]
        guessers = ", ".join(f"{name} {value:.3f}" for name, value in case["guessers"].items())
        same = "the same to the bit" if again["metrics_equal"] and again["prediction_files_equal"] else "another one"
        rows = " / ".join(f"{count:,}" for count in case["rows"].values())
        lines.append([case["name"], rows, case["metric"], f"{case['metrics'][case['metric']]:.3f}", guessers, same])
    header = [
        "table",
        "rows of training, validation, test",
        "metric",
        "test",
        "without a network",
        "killed and resumed",
    ]
    write_json(HERE / "documents.json", cases)
    write_text(HERE / "documents.md", markdown(header, lines) + "\n")


STAGES = ("imdb", "reviews", "news", "pairs", "values")


if __name__ == "__main__":
    csv.field_size_limit(1 << 24)
    run_stages(__doc__, STAGES, Stages, "folder with imdb, realnews, lra and glue", Path("runs/documents"))
