"""Tables of real texts from end to end: reviews as `run_imdb.py` reads them and as a CSV, news by their topic, pairs of
papers, and pairs of sentences with a value; each killed in its second epoch and resumed, beside a run that was not.

`python experiments/studies/documents.py run --data DIR [STAGE ...]`, then `collect`. DIR holds imdb, realnews,
lra/retrieval and glue/STS-B; in the folder `tiny` beside --out lies what experiments/studies/tiny.py has pretrained.
What the small encoder reaches is no more than a sign that it learned; that both runs of a table are one is what this is
for.
"""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nystromformer import studies
from nystromformer.files.paths import PROJECT
from nystromformer.files.writing import write_json
from nystromformer.machine import machine_facts
from nystromformer.runs.baselines import beside
from nystromformer.runs.record import Run, find_runs
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown
from nystromformer.tasks.imdb.read import LABELS, read_imdb

RESULTS = studies.RESULTS / "documents"
KIND, CHECKPOINT = "nystrom-tiny-conv", 2
FLAGS = "--batch_size 16 --lr 3e-4 --seed 0 --set model.pooling=mean --baselines"
REVIEWS = "--length 256 --epoch 2 --train_rows 2000 --validation 0.04"
FIFTH = 5
"""Every fifth row of a table without a division is tested on."""


class Documents(Stages):
    """The runs: each stage is a table."""

    study = "documents"
    needs = "imdb, realnews, lra and glue"

    def imdb(self) -> None:
        """Reviews by their own command."""
        self._run_both("imdb", "accuracy", "code/run_imdb.py", "--imdb", self.data / "imdb", REVIEWS)

    def reviews(self) -> None:
        """The same ones as tables."""
        tables = {}
        for split, texts in read_imdb(self.data / "imdb").items():
            assert texts.labels is not None
            labels = [LABELS[each] for each in texts.labels]
            tables[split] = pd.DataFrame({"body": texts.first, "label": labels})
        flags = f"--text body --label label {REVIEWS}"
        self._classify("reviews", "accuracy", tables["train"], tables["test"], flags)

    def news(self) -> None:
        """Articles by topic, each text once."""
        with (self.data / "realnews" / "realnews.jsonl").open(encoding="utf-8") as file:
            articles = [json.loads(line) for line in file]
        topics = {article["text"]: article["category"] for article in articles if "category" in article}
        table = pd.DataFrame(topics.items(), columns=["text", "topic"])
        train, test = table[table.index % FIFTH > 0], table[::FIFTH]
        self._classify("news", "accuracy", train, test, "--text text --label topic --length 256 --epoch 3")

    def pairs(self) -> None:
        """Whether one paper cites the other; 158 rows of evaluation, which say little: ± 8 points."""
        folder, names = self.data / "lra" / "retrieval", ["cites", "one", "other", "first", "second"]
        tables = [read_tsv(folder / f"new_aan_pairs.{split}.tsv", names=names) for split in ("train", "eval")]
        train, test = (
            table[["first", "second"]].assign(cites=table["cites"].astype(float).astype(int)) for table in tables
        )
        flags = "--text first,second --label cites --length 512 --epoch 2"
        self._classify("pairs", "accuracy", train, test, flags)

    def values(self) -> None:
        """How alike two sentences are, from 0 to 5."""
        folder, names = self.data / "glue" / "STS-B", ["sentence1", "sentence2", "score"]
        train, test = (read_tsv(folder / f"{split}.tsv")[names] for split in ("train", "dev"))
        flags = "--text sentence1,sentence2 --label score --kind value --length 128 --epoch 3 --train_rows 3000"
        self._classify("values", "pearson", train, test, flags)

    def _classify(self, name: str, metric: str, train: pd.DataFrame, test: pd.DataFrame, flags: str) -> None:
        paths = [
            studies.write_table(self.out / f"{name}-{split}.csv", table)
            for split, table in (("train", train), ("test", test))
        ]
        words = ("--train", paths[0], "--test", paths[1], "--task", name, flags)
        self._run_both(name, metric, "code/run_classify.py", *words)

    def _run_both(self, name: str, metric: str, script: str, *flags: object) -> None:
        """One run that is left alone and one that is killed; what both say goes into a file."""
        done = self.out / f"{name}.json"
        if done.exists():
            return
        command = job(name, script, *flags, FLAGS)
        whole, killed = (self._train(command, ending) for ending in ("whole", "killed"))
        log = (self.out / "logs" / f"{name}-killed.log").read_text()
        text = shlex.join(["python", *command.words[1:]])
        facts: dict[str, Any] = {
            "name": name,
            "command": text.replace(f"{self.data}/", "DATA/").replace(f"{self.out}/", ""),
            "rows": {**whole.rows, **whole.test_rows},
            "metric": metric,
            "metrics": dict(whole.test_metrics),
            "guessers": guessers_of(whole, metric),
            "killed_and_resumed": {
                "metrics_equal": whole.test_metrics == killed.test_metrics,
                "prediction_files_equal": predictions_of(whole) == predictions_of(killed),
                "went_on": [line for line in log.splitlines() if "going on" in line][-1:],
            },
            "machine": machine_facts(),
        }
        write_json(done, facts)

    def _train(self, command: Job, ending: str) -> Run:
        folder = studies.copy_experiment(self._source, CHECKPOINT, self.out / f"{command.name}-{ending}")
        less = ["--train_rows", "64"] if self.rehearse else []
        place = ["--model", str(folder), "--checkpoint", str(CHECKPOINT)]
        words = [*command.words, *place, *less]
        log = self.out / "logs" / f"{command.name}-{ending}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if ending == "killed" and not find_runs(folder / "model"):
            kill_in_second_epoch(words, folder, log)
        # With all threads, one after another.
        with log.open("ab") as file:
            subprocess.run(words, cwd=PROJECT, stdout=file, stderr=subprocess.STDOUT, check=True)
        (run,) = find_runs(folder / "model")
        return run

    @property
    def _source(self) -> Path:
        return self.out.parent / "tiny" / "seed0" / KIND


def kill_in_second_epoch(words: Sequence[str], folder: Path, log: Path) -> None:
    """Start a run, and kill it (SIGKILL) a second after its first epoch's checkpoint is there."""
    with log.open("ab") as file:
        process = subprocess.Popen(words, cwd=PROJECT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        while process.poll() is None and not list(folder.rglob("cp-0000.cp")):
            time.sleep(0.1)
        time.sleep(1)
        if process.poll() is not None:
            sys.exit(f"{log}: ended before it could be killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read_tsv(path: Path, names: Sequence[str] | None = None) -> pd.DataFrame:
    """A table that quotes nothing: a quotation mark there is one of the text.

    Args:
        names: of the columns; None: they stand in the first line.
    """
    how = {"quoting": csv.QUOTE_NONE, "dtype": str, "keep_default_na": False}
    return pd.read_csv(path, sep="\t", names=names, **how)


def predictions_of(run: Run) -> dict[str, bytes]:
    """The prediction files by their names."""
    return {path.name: path.read_bytes() for path in sorted((run.folder / "predictions").glob("*.tsv"))}


def guessers_of(run: Run, metric: str) -> dict[str, float]:
    """What the guessers without a network reach on the test rows."""
    return {name: found[f"{metric}_test"].mean for name, found in beside(run).items() if f"{metric}_test" in found}


def collect(runs: Path = Path("runs/documents")) -> None:
    """Write documents.json and documents.md."""
    if found := [studies.read_json(path) for name in Documents.names() for path in runs.glob(f"{name}.json")]:
        write_json(RESULTS / "documents.json", found)
    lines = []
    for case in studies.read_json(RESULTS / "documents.json"):
        again = case["killed_and_resumed"]
        guessers = ", ".join(f"{name} {value:.3f}" for name, value in case["guessers"].items())
        same = "the same to the bit" if again["metrics_equal"] and again["prediction_files_equal"] else "another one"
        rows = " / ".join(f"{count:,}" for count in case["rows"].values())
        lines.append([case["name"], rows, case["metric"], f"{case['metrics'][case['metric']]:.3f}", guessers, same])
    header = ["table", "rows of training, validation, test", "metric", "test", "without a network"]
    studies.write_page(RESULTS / "documents.md", markdown([*header, "killed and resumed"], lines))


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Documents), collect)
