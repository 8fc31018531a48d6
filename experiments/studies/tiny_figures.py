"""The tables and pictures of results/tiny."""

import csv
import logging
import re
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from nystromformer import studies
from nystromformer.files.writing import write_figure, write_json, write_text
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.report.finetuning import collect as collect_runs
from nystromformer.report.table2 import write_table2
from nystromformer.runs.baselines import read_baselines
from nystromformer.runs.figures import Spread, mark, power_note, smallest_difference
from nystromformer.runs.record import Run, find_runs
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

RESULTS = studies.RESULTS / "tiny"
KINDS = ("nystrom-tiny-conv", "softmax-tiny-conv", "nystrom-tiny-noconv", "softmax-tiny-noconv")
PAIRS = (
    ("nystrom-tiny-conv", "softmax-tiny-conv"),
    ("nystrom-tiny-noconv", "softmax-tiny-noconv"),
    ("nystrom-tiny-conv", "nystrom-tiny-noconv"),
    ("softmax-tiny-conv", "softmax-tiny-noconv"),
)
"""What differs in one thing: the attention, or the convolution."""
Rows = list[dict[str, Any]]

logger = logging.getLogger(__name__)


def collect(runs: Path = Path("runs/tiny")) -> None:
    """Write tables, data and pictures of what is there; of the rest the earlier data stay."""
    began = studies.read_stages(runs)
    of_landmarks = studies.read_stages(runs, "landmarks", "landmarks_noconv")
    _write_rows("pretraining", began, pretraining(runs))
    _write_tables(runs)
    _write_rows("differences", began, differences(runs))
    _write_rows("landmarks", of_landmarks, landmarks(runs))
    draw_landmarks(studies.read_json(RESULTS / "landmarks.json")["rows"])
    if rows := lengths(runs):
        guesses = [{"length": length, **_guesses(runs, length)} for length in _whole_lengths(rows)]
        _write_rows("lengths", studies.read_stages(runs, "lengths", "blocks"), rows, baselines=guesses)
    write_lengths(studies.read_json(RESULTS / "lengths.json"))
    first = [runs / "seed0" / kind for kind in KINDS if (runs / "seed0" / kind / "model" / "log.jsonl").is_file()]
    if first:
        draw_curves([read_curve(folder) for folder in first], RESULTS / "curves.png")


def _write_rows(name: str, began: Rows, rows: Rows, **more: object) -> None:
    if rows:
        write_json(RESULTS / f"{name}.json", {"began": began, "rows": rows, **more})
    else:
        logger.info("%s: nothing finished yet", name)


def pretraining(runs: Path) -> Rows:
    """The last validation of each encoder."""
    rows = []
    for path in sorted(runs.glob("seed*/*/model/validation.json")):
        data = studies.read_json(path)
        (last,) = data["scores"]
        kind, seed = path.parts[-3], int(path.parts[-4].removeprefix("seed"))
        also = {key: data[key] for key in ("rows", "masked_tokens", "baselines")}
        rows.append({"kind": kind, "seed": seed, **last, **also})
    return rows


def _write_tables(runs: Path) -> None:
    """`finetune.md` and the like, each with its `.json`."""
    for name in ("tune", "finetune", "landmarks", "more"):
        folders = [folder for folder in sorted((runs / name).glob("*")) if find_runs(folder / "model")]
        if not folders:
            logger.info("%s: nothing finished yet", name)
            continue
        page, data = RESULTS / f"{name}.md", RESULTS / f"{name}.json"
        write_table2(folders, page)
        write_json(data, {"began": studies.read_stages(runs, name), **studies.read_json(data)})
        for path in (page, data):
            studies.shorten_paths(path, runs, "tiny")
            write_text(path, re.sub(r"(--(glue|imdb) )[^ `\"]+", r"\1\2", path.read_text(encoding="utf-8")))


def differences(runs: Path) -> Rows:
    """Of each pair that differs in one thing, by how much the first is better, and whether that is more than noise by
    the rule of `figures.MARKS`.
    """
    folders = [runs / "finetune" / kind for kind in KINDS]
    if not all(find_runs(folder / "model") for folder in folders):
        return []
    models = {model.name: model for model in collect_runs(folders).models}
    rows = []
    for first, second in PAIRS:
        both = models[first].tasks.keys() & models[second].tasks.keys()
        for task in sorted(both, key=lambda each: each.key):
            a, b = models[first].tasks[task], models[second].tasks[task]
            for metric in (name for name in a.shown if name in b.shown):
                points = round(100 * (a.shown[metric].mean - b.shown[metric].mean), 2)
                noise = mark(metric, a.shown[metric], [b.shown[metric]], a.examples(metric)) == "≈"
                found = {"task": task.key, "metric": metric, "points": points, "within_noise": noise}
                rows.append({"first": first, "second": second, **found})
    return rows


def landmarks(runs: Path) -> Rows:
    """Test accuracy of encoders that were trained with so many landmarks, and of softmax ones tested with them."""
    rows = []
    for folder in sorted((runs / "landmarks").glob("*")):
        if not find_runs(folder / "model", "imdb"):
            continue
        for repeats in (each for model in collect_runs([folder]).models for each in model.tasks.values()):
            for run in repeats.on_test:
                rows.append({
                    "kind": folder.name,
                    "landmarks": repeats.first.attention[0].get("num_landmarks"),
                    "trained": True,
                    "seed": run.settings.seed,
                    "accuracy": run.test_metrics["accuracy"],
                    "rows": sum(run.test_rows.values()),
                    "exact_share": run.exact_share["validation"],
                    "learning_rate": run.settings.learning_rate,
                })  # fmt: skip
    for row in (row for path in sorted(runs.glob("swap-*.json")) for row in studies.read_json(path)):
        if row["landmarks"] is not None:
            rows.append({"kind": row.pop("experiment"), "trained": False, **row})
    return rows


def draw_landmarks(rows: Rows) -> None:
    """landmarks.png: accuracy over the number of landmarks, with the convolution and without."""
    ends = [end for end in ("conv", "noconv") if any(row["kind"].endswith(f"-{end}") for row in rows)]
    figure, axes = studies.new_figure(len(ends), 0.6 + 4.2 * len(ends), 4.4, sharey=True)
    for axis, end in zip(axes, ends, strict=True):
        for kind, trained, colour, label in (
            (f"nystrom-tiny-{end}", True, "C0", "Nyström, trained so"),
            (f"softmax-tiny-{end}", False, "C1", "softmax, tested with Nyström"),
        ):
            own = [row for row in rows if (row["kind"], row["trained"]) == (kind, trained) and row["landmarks"]]
            counts = sorted({row["landmarks"] for row in own})
            spreads = [Spread.of([row["accuracy"] for row in own if row["landmarks"] == n]) for n in counts]
            means, deviations = [100 * each.mean for each in spreads], [100 * (each.deviation or 0) for each in spreads]
            axis.errorbar(counts, means, deviations, marker="o", capsize=3, color=colour, label=label)
        exact = [row["accuracy"] for row in rows if row["kind"] == f"softmax-tiny-{end}" and row["landmarks"] is None]
        if exact:
            axis.axhline(100 * Spread.of(exact).mean, color="C1", linestyle=":", label="softmax")
        axis.set_xscale("log", base=2)
        axis.set_xticks([8, 16, 32, 64, 128], ["8", "16", "32", "64", "128"])
        axis.set(xlabel="landmarks", title="with the convolution" if end == "conv" else "without")
    axes[0].set_ylabel("IMDB reviews right, %")
    axes[0].legend(fontsize=8, frameon=False)
    write_figure(RESULTS / "landmarks.png", figure, dpi=120)


def lengths(runs: Path) -> Rows:
    """The share of reviews that is right with rows of each length and in blocks, and how many changed. Those for
    validation are among them: the last epoch's weights count, and nothing was chosen.
    """
    rows: Rows = []
    for folder in sorted((runs / "lengths").glob("*")):
        found = {(run.length, run.kind == "classify"): run for run in find_runs(folder / "model", "imdb", "classify")}
        right = {key: read_right(run) for key, run in found.items()}
        shortest = right[min(right)] if right else pd.Series()
        for (length, in_blocks), run in found.items():
            own = right[length, in_blocks]
            speeds = [one["tokens_per_second"] for one in read_log(run.folder / "log.jsonl") if one["type"] == "train"]
            rows.append({
                "kind": folder.name,
                "length": length,
                "in_blocks": in_blocks,
                "rows": len(own),
                "accuracy": float(own.mean()),
                "test_accuracy": run.test_metrics["accuracy"],
                "test_rows": sum(run.test_rows.values()),
                "seed": run.settings.seed,
                "tokens_per_second": sum(speeds) / len(speeds),
            })  # fmt: skip
            if own is not shortest:
                assert own.index.equals(shortest.index), f"{folder}: other reviews"
                gained, lost = int((own & ~shortest).sum()), int((shortest & ~own).sum())
                p = float(binomtest(gained, gained + lost).pvalue)
                rows[-1] |= {"gained": gained, "lost": lost, "p": p}
    compared = [row for row in rows if "p" in row]
    for row in compared:  # as many tests as there are comparisons (Bonferroni)
        row["p"] = min(1.0, row["p"] * len(compared))
    return rows


def read_right(run: Run) -> pd.Series:
    """By split and name of a review, whether the last epoch's weights told it right."""
    assert run.tested_epoch == run.last.epoch
    how = {"sep": "\t", "quoting": csv.QUOTE_NONE, "dtype": str, "index_col": "id"}
    splits = {name: pd.read_csv(run.folder / "predictions" / f"{name}.tsv", **how) for name in ("test", "validation")}
    rows = pd.concat(splits).sort_index()
    return rows["label"] == rows["prediction"]


def _guesses(runs: Path, length: int) -> dict[str, float]:
    """The guessers' accuracy on both splits together with rows of this length."""
    for path in sorted((runs / "lengths").glob("*/model/imdb-*/baselines.json")):
        for one in read_baselines(path):
            if one.call.flags.get("--length") == (str(length),):
                counts = {"accuracy": one.rows["validation"], "accuracy_test": one.rows["test"]}
                return {
                    name: sum(count * guess[key].mean for key, count in counts.items()) / sum(counts.values())
                    for name, guess in one.baselines.items()
                }
    return {}


def _whole_lengths(rows: Rows) -> list[int]:
    return sorted({row["length"] for row in rows if not row["in_blocks"]})


def write_lengths(data: dict[str, Any]) -> None:
    """lengths.md."""
    rows, guesses = data["rows"], {one["length"]: one for one in data["baselines"]}
    whole = _whole_lengths(rows)
    in_blocks = sorted({row["length"] for row in rows if row["in_blocks"]})
    columns = [*((length, False) for length in whole), *((length, True) for length in in_blocks)]
    by_place = {(row["kind"], row["length"], row["in_blocks"]): row for row in rows}
    lines = []
    for kind in KINDS:
        found = [by_place.get((kind, *column)) for column in columns]
        lines.append([f"`{kind}`", *("not run" if row is None else _shown(row) for row in found)])
    for name in ("bag of words", "majority class"):
        lines.append([name, *(f"{100 * guesses[length][name]:.1f}" for length in whole), *("" for _ in in_blocks)])
    header = ["", *(f"{'blocks of ' if block else ''}{length:,} tokens, %" for length, block in columns)]
    tests = sum("p" in row for row in rows)
    tested = f"p: a sign test of the same reviews, times {tests} for as many tests; of one seed."
    alone = [(Spread(row["accuracy"], None), 1) for row in rows if not row["in_blocks"] and row["length"] == whole[0]]
    note = power_note({"": smallest_difference("accuracy", alone, rows[0]["rows"])})
    studies.write_page(RESULTS / "lengths.md", markdown(header, lines), tested, note)


def _shown(row: dict[str, Any]) -> str:
    """Accuracy, and reviews that became right and wrong beside the shortest rows."""
    changed = f" (+{row['gained']} −{row['lost']}, p = {row['p']:.2g})" if "p" in row else ""
    return f"{100 * row['accuracy']:.1f}{changed}"
