"""Predictions of a folder by one process, by several and by Ray: the same bytes, their time and their memory.

`python experiments/studies/scale.py run --data DIR [STAGE ...]`, then `collect`. Needs the extra `ray` and nothing else
running on the machine. The texts to predict are drawn at random and the model learned from a few of them: only time,
memory and bytes matter. DIR holds wiki and minilm, whose tokenizer the stage `preprocessing` uses.
"""

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow
from pyarrow import parquet

from nystromformer import studies
from nystromformer.data.dataset import open_dataset
from nystromformer.data.manifest import PARTS_FOLDER, splits_file, tokens_file
from nystromformer.data.preprocessing.parts import merge_parts
from nystromformer.data.preprocessing.stages import StageOutput, Stamps
from nystromformer.files.paths import EXPERIMENTS, PROJECT
from nystromformer.files.writing import NewFile, write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.runs.record import find_runs
from nystromformer.studies import Stages, job
from nystromformer.tables import markdown

logger = logging.getLogger(__name__)

RESULTS = studies.RESULTS / "scale"
WORDS = [f"{first}{last}" for first in "bdfgklmnprstvz" for last in ("a", "en", "ir", "o", "um")]
FEWEST, MOST = 10, 50
"""Words of a text."""
PART = 6_000
PARTS = 16
MANY, SHORT = 2_000_000, 5
"""Texts of at most so many words."""
MERGED = 1 << 30
REPEATS = 3
"""Of the two ways that are compared; others run once."""
WAYS = ("one process", "two processes", "Ray, 1 worker", "Ray, 2 workers", "Ray, 4 workers")
TWO, RAY_TWO = "two processes", "Ray, 2 workers"


class Scale(Stages):
    """The runs."""

    study = "scale"
    needs = "wiki and minilm"

    def model(self) -> None:
        """A classifier of `nystrom-demo-conv`'s size."""
        folder = self.out / "classifier"
        if not (self.out / "train.jsonl").exists():
            rows = [{"text": text, "label": str("ba" in text)} for text in _texts(500, 0)]
            write_text(self.out / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
            write_text(folder / "config.json", (EXPERIMENTS / "nystrom-demo-conv" / "config.json").read_text())
        flags = (
            "--text text --label label --task drawn --from_scratch --vocab_size 300 --epoch 1 --length 128 --lr 1e-3"
        )
        place = ("--model", folder, "--train", self.out / "train.jsonl", flags, "--device cpu --validation 0.2")
        self.run([job("model", "code/run_classify.py", *place)])

    def engines(self) -> None:
        """The same folder in each way, in turn, several times."""
        source = self._source("texts", PARTS, 200 if self.rehearse else PART)
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        first: bytes | None = None
        for number in range(1 if self.rehearse else REPEATS):
            for way in WAYS if number == 0 else (TWO, RAY_TWO):
                out = self.out / "predicted"
                shutil.rmtree(out, ignore_errors=True)
                found[way].append(self._timed(way, source, out))
                manifest = (out / "_manifest.json").read_bytes()
                if (first := first or manifest) != manifest:
                    raise SystemExit(f"{way}: other bytes than those of {WAYS[0]}")
                logger.info("%s, %d: %.1f s", way, number, found[way][-1]["seconds"])
        texts = sum(parquet.read_metadata(path).num_rows for path in source.glob("*.parquet"))
        write_json(self.out / "engines.json", {"facts": machine_facts(), "texts": texts, "ways": found})

    def memory(self) -> None:
        """Few and many short texts by one process."""
        found = {}
        for texts in (MANY // 100, MANY):
            parts = 2 if self.rehearse else 20
            source = self._source(f"memory-{texts}", parts, 100 if self.rehearse else texts // parts, 1, SHORT)
            out = self.out / "predicted"
            shutil.rmtree(out, ignore_errors=True)
            found[texts] = self._timed(WAYS[0], source, out)
            shutil.rmtree(source)
        write_json(self.out / "memory.json", {"facts": machine_facts(), "texts": found})

    def preprocessing(self) -> None:
        """Wikipedia to documents, to rows, and the rows merged and not, by one process."""
        corpora, source = self.out / "corpora", self.data / "wiki"
        shutil.rmtree(corpora, ignore_errors=True)
        unified = corpora / "wiki" / "unified"
        words = ["data-preprocessing/wiki/preprocess.py", "--source", str(source), "--out", str(unified)]
        found = {"documents": _measured([*words, "--workers", "1"])}
        sizes = {"text": _bytes_of(source), "documents": _bytes_of(unified)}
        for way, flags in {"merged": [], "in_parts": ["--in_parts"]}.items():
            out = self.out / f"rows-{way}"
            shutil.rmtree(out, ignore_errors=True)
            words = ["data-preprocessing/preprocess_data_512.py", "--corpora", str(corpora), "--corpus", "wiki"]
            words += ["--tokenizer", str(self.data / "minilm"), "--out", str(out), "--workers", "1", *flags]
            found[f"rows, {way}"] = _measured([*words, "--array_index", "0", "--array_size", "1"])
            found[f"finished, {way}"] = _measured(words)
            sizes[way] = _bytes_of(out)
        found["merging"] = self._merging(MERGED)
        sizes["merging"] = MERGED
        manifest = open_dataset(self.out / "rows-merged").manifest
        tokens = manifest.train.tokens + manifest.validation.tokens
        write_json(
            self.out / "preprocessing.json",
            {"facts": machine_facts(), "seconds": found, "bytes": sizes, "tokens": tokens},
        )

    def _merging(self, size: int) -> float:
        """Seconds for a part of so many bytes, with its checksum."""
        folder = self.out / "merging"
        shutil.rmtree(folder, ignore_errors=True)
        stamps = {}
        for file_of, length in ((tokens_file, size), (splits_file, 0)):
            name = f"{PARTS_FOLDER}/{file_of('drawn.train')}"
            (folder / PARTS_FOLDER).mkdir(parents=True, exist_ok=True)
            with NewFile(folder / name) as file:
                for _ in range(length >> 20):
                    file.write(os.urandom(1 << 20))
            stamps[name] = file.stamp
        begin = time.monotonic()
        merge_parts(Stamps(folder), "train", {"drawn": StageOutput(stamps)})
        seconds = time.monotonic() - begin
        shutil.rmtree(folder)
        return seconds

    def _source(self, name: str, parts: int, rows: int, fewest: int = FEWEST, most: int = MOST) -> Path:
        folder = self.out / name
        for number in range(parts):
            path = folder / f"part-{number:05d}.parquet"
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                ids = [f"{number}-{row}" for row in range(rows)]
                fresh = path.with_suffix(".new")
                parquet.write_table(pyarrow.table({"id": ids, "text": _texts(rows, number + 1, fewest, most)}), fresh)
                fresh.rename(path)
        return folder

    def _timed(self, way: str, source: Path, out: Path) -> dict[str, Any]:
        """How long commands take side by side, and the most memory of one of them; of two, the time to finish the
        folder is counted, too.
        """
        (run,) = find_runs(self.out / "classifier" / "model", "classify")
        words = ["code/run_predict.py", str(run.folder), "--input", str(source), "--out", str(out), "--id", "id"]
        words += ["--device", "cpu"]
        begin = time.monotonic()
        if way == TWO:
            _ended([[*words, "--array_index", str(index), "--array_size", "2"] for index in range(2)])
        elif way.startswith("Ray"):
            words += ["--engine", "ray", "--workers", way.split()[1]]
        peak = _ended([words])
        return {"seconds": time.monotonic() - begin, "peak_mib": peak / 1024}


def _measured(words: Sequence[str]) -> float:
    begin = time.monotonic()
    _ended([words])
    return time.monotonic() - begin


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _texts(count: int, seed: int, fewest: int = FEWEST, most: int = MOST) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(fewest, most))) for _ in range(count)]


def _ended(commands: Sequence[Sequence[str]]) -> int:
    """Run commands side by side, each with one thread; the most KiB that one of them had in memory."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = {
        " ".join(words): subprocess.Popen([sys.executable, *words], cwd=PROJECT, env=environment) for words in commands
    }
    peaks = []
    for words, process in processes.items():
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"status {process.returncode}: {words}")
        peaks.append(usage.ru_maxrss)
    return max(peaks)


def collect(runs: Path = Path("runs/scale")) -> None:
    """Write scale.json and scale.md."""
    data = {name: studies.read_json(runs / f"{name}.json") for name in ("engines", "memory", "preprocessing")}
    write_json(RESULTS / "scale.json", data)
    engines, memory = data["engines"], data["memory"]
    seconds = {way: median(run["seconds"] for run in engines["ways"][way]) for way in WAYS}
    lines = []
    for way, runs_of_way in engines["ways"].items():
        spread = [run["seconds"] for run in runs_of_way]
        each = f"{seconds[way]:.1f}" + (f" ({min(spread):.1f} to {max(spread):.1f})" if len(spread) > 1 else "")
        lines.append([way, each, f"{engines['texts'] / seconds[way]:,.0f}", f"{seconds[way] / seconds[TWO]:.2f}"])
    bounds = [
        [f"{int(texts):,}", f"{run['peak_mib']:,.0f}", f"{run['seconds']:.0f}"]
        for texts, run in memory["texts"].items()
    ]
    facts = engines["facts"]
    studies.write_page(
        RESULTS / "scale.md",
        "# A folder of texts predicted in several ways",
        f"{engines['texts']:,} texts of {FEWEST} to {MOST} words in {PARTS} Parquet files, a classifier of the size of "
        "`nystrom-demo-conv`. The time is that of the whole command, start included; of two ways the median of "
        f"{REPEATS} turns, and the least and the most. The folders were identical, manifests included. *Two processes* "
        "are two slices (`--array_index`) side by side, and the command that finishes the folder.",
        markdown(["", "seconds", "texts a second", "of two processes' time"], lines),
        f"Texts of at most {SHORT} words: the most memory of one process, libraries included:",
        markdown(["texts", "MiB", "seconds"], bounds),
        "## Preprocessing",
        "Articles of Wikipedia, rows of 512 tokens of MiniLM's tokenizer, one process:",
        markdown(["", "seconds", "a second"], _preprocessing_lines(data["preprocessing"])),
        f"{facts['processor']}, {facts['date']}, commit `{facts['commit']}`. `python "
        "experiments/studies/scale.py run --data DIR && python experiments/studies/scale.py collect`",
    )


def _preprocessing_lines(found: dict[str, Any]) -> list[list[str]]:
    seconds, sizes, mega = found["seconds"], found["bytes"], 10**6
    lines = [
        ("text to documents", seconds["documents"], sizes["text"], "MB of text"),
        ("documents to rows", seconds["rows, merged"], found["tokens"], "million tokens"),
        ("merging", seconds["merging"], sizes["merging"], "MB of rows"),
    ]
    return [[name, f"{took:.1f}", f"{amount / mega / took:,.2f} {unit}"] for name, took, amount, unit in lines]


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Scale), collect)
