"""Gathers what run.py has reached into this folder: tables, data and pictures.

`python results/tiny/collect.py [--runs runs/tiny]`: what is not there yet is named and left out.
"""

import argparse
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import binomtest

from nystromformer.files import write_figure, write_json, write_text
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.report.finetuning import Column, FinetunedModel, collect
from nystromformer.report.table2 import write_table2
from nystromformer.runs.baselines import read_baselines
from nystromformer.runs.figures import Spread, mark, power_note, smallest_difference
from nystromformer.runs.record import find_runs
from nystromformer.side_by_side import read_stages
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

HERE = Path(__file__).resolve().parent
KINDS = ("nystrom-tiny-conv", "softmax-tiny-conv", "nystrom-tiny-noconv", "softmax-tiny-noconv")
PAIRS = (
    ("nystrom-tiny-conv", "softmax-tiny-conv"),
    ("nystrom-tiny-noconv", "softmax-tiny-noconv"),
    ("nystrom-tiny-conv", "nystrom-tiny-noconv"),
    ("softmax-tiny-conv", "softmax-tiny-noconv"),
)
"""What differs in one thing: the attention, or the convolution."""

logger = logging.getLogger(__name__)


def pretraining(runs: Path) -> None:
    """`pretraining.json` and, of the first seed, `curves.png`."""
    rows = []
    for folder in sorted(runs.glob("seed*/*")):
        scores = folder / "model" / "validation.json"
        if not scores.is_file():
            logger.info("%s: not scored yet", folder)
            continue
        data = json.loads(scores.read_text())
        (last,) = data["scores"]
        rows.append({"kind": folder.name, "seed": int(folder.parent.name.removeprefix("seed")), **last} | {
            key: data[key] for key in ("rows", "masked_tokens", "baselines")
        })  # fmt: skip
    write_json(HERE / "pretraining.json", {"began": read_stages(runs), "rows": rows})
    first = [runs / "seed0" / kind for kind in KINDS if (runs / "seed0" / kind / "model" / "log.jsonl").is_file()]
    if first:
        draw_curves([read_curve(folder) for folder in first], HERE / "curves.png")


def tables(runs: Path) -> None:
    """`finetune.md` and the like, each with its `.json`."""
    for name in ("tune", "finetune", "landmarks", "more"):
        folders = [folder for folder in sorted((runs / name).glob("*")) if find_runs(folder / "model")]
        if not folders:
            logger.info("%s: nothing finished yet", name)
            continue
        write_table2(folders, HERE / f"{name}.md")
        data = HERE / f"{name}.json"
        write_json(data, {"began": read_stages(runs, name), **json.loads(data.read_text())})
        for path in (HERE / f"{name}.md", data):
            _without_places(path, runs)


def _without_places(path: Path, runs: Path) -> None:
    """Commands name folders as somebody else would have them: runs/tiny, glue, imdb."""
    text = path.read_text(encoding="utf-8").replace(str(runs.resolve()), "runs/tiny")
    write_text(path, re.sub(r"(--(glue|imdb) )[^ `\"]+", r"\1\2", text))


def differences(runs: Path) -> None:
    """`differences.json`: of each pair that differs in one thing, by how much the first is better, and whether that is
    more than noise by the rule of `figures.MARKS`.
    """
    folders = [runs / "finetune" / kind for kind in KINDS]
    if not all(find_runs(folder / "model") for folder in folders):
        logger.info("differences: not all kinds are fine-tuned yet")
        return
    models = {model.name: model for model in collect(folders).models}
    rows = [
        {"first": first, "second": second, "task": task.key, **difference}
        for first, second in PAIRS
        for task in sorted(models[first].tasks.keys() & models[second].tasks.keys(), key=lambda each: each.key)
        for difference in _compared(models[first], models[second], task)
    ]
    write_json(HERE / "differences.json", {"began": read_stages(runs), "rows": rows})


def _compared(first: FinetunedModel, second: FinetunedModel, task: Column) -> list[dict[str, Any]]:
    a, b = first.tasks[task], second.tasks[task]
    return [
        {
            "metric": name,
            "points": round(100 * (a.shown[name].mean - b.shown[name].mean), 2),
            "within_noise": mark(name, a.shown[name], [b.shown[name]], a.examples(name)) == "≈",
        }
        for name in a.shown
        if name in b.shown
    ]


def landmarks(runs: Path) -> None:
    """`landmarks.json` and `landmarks.png`: test accuracy of encoders that were trained with so many landmarks, and of
    softmax ones tested with them.
    """
    rows: list[dict[str, Any]] = []
    for folder in sorted((runs / "landmarks").glob("*")):
        if not find_runs(folder / "model", "imdb"):
            continue
        for model in collect([folder]).models:
            for runs_of in model.tasks.values():
                attention = runs_of.first.attention[0]
                for result in runs_of.on_test:
                    rows.append({
                        "kind": folder.name,
                        "landmarks": attention.get("num_landmarks"),
                        "trained": True,
                        "seed": result.settings.seed,
                        "accuracy": result.test_metrics["accuracy"],
                        "rows": sum(result.test_rows.values()),
                        "exact_share": result.exact_share["validation"],
                        "learning_rate": result.settings.learning_rate,
                    })  # fmt: skip
    for path in sorted(runs.glob("swap-*.json")):
        rows += [
            {"kind": row["experiment"], "trained": False} | {key: row[key] for key in row if key != "experiment"}
            for row in json.loads(path.read_text())
            if row["landmarks"] is not None
        ]
    if not rows:
        logger.info("landmarks: nothing finished yet")
        return
    write_json(HERE / "landmarks.json", {"began": read_stages(runs, "landmarks", "landmarks_noconv"), "rows": rows})
    _draw_landmarks(rows, HERE / "landmarks.png")


def _draw_landmarks(rows: Sequence[dict[str, Any]], path: Path) -> None:
    ends = [end for end in ("conv", "noconv") if any(row["kind"].endswith(f"-{end}") for row in rows)]
    figure = Figure(figsize=(0.6 + 4.2 * len(ends), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(ends), sharey=True, squeeze=False)[0]
    for axis, end in zip(axes, ends, strict=True):
        for kind, trained, colour, label in (
            (f"nystrom-tiny-{end}", True, "C0", "Nyström, trained so"),
            (f"softmax-tiny-{end}", False, "C1", "softmax, tested with Nyström"),
        ):
            own = [row for row in rows if (row["kind"], row["trained"]) == (kind, trained) and row["landmarks"]]
            counts = sorted({row["landmarks"] for row in own})
            spreads = {n: Spread.of([row["accuracy"] for row in own if row["landmarks"] == n]) for n in counts}
            means = [100 * spread.mean for spread in spreads.values()]
            deviations = [100 * (spread.deviation or 0) for spread in spreads.values()]
            axis.errorbar(list(spreads), means, deviations, marker="o", capsize=3, color=colour, label=label)
        exact = [r["accuracy"] for r in rows if r["kind"] == f"softmax-tiny-{end}" and r["landmarks"] is None]
        if exact:
            axis.axhline(100 * Spread.of(exact).mean, color="C1", linestyle=":", label="softmax")
        axis.set_xscale("log", base=2)
        axis.set_xticks([8, 16, 32, 64, 128], ["8", "16", "32", "64", "128"])
        axis.set(xlabel="landmarks", title="with the convolution" if end == "conv" else "without")
        axis.grid(alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("IMDB reviews right, %")
    axes[0].legend(fontsize=8, frameon=False)
    write_figure(path, figure, dpi=120)


def lengths(runs: Path) -> None:
    """`lengths.json` and `lengths.md`: the share of reviews that is right with rows of each length and in blocks, and
    how many changed. Those for validation are among them: the last epoch's weights count, and nothing was chosen.
    """
    rows: list[dict[str, Any]] = []
    for folder in sorted((runs / "lengths").glob("*")):
        right: dict[tuple[int, bool], dict[str, bool]] = {}
        own: list[dict[str, Any]] = []
        for result in find_runs(folder / "model", "imdb", "classify"):
            assert result.tested_epoch == result.last.epoch
            told = _right(result.folder / "predictions")
            in_blocks = result.kind == "classify"
            right[result.length, in_blocks] = told
            speeds = [
                one["tokens_per_second"] for one in read_log(result.folder / "log.jsonl") if one["type"] == "train"
            ]
            own.append({
                "kind": folder.name,
                "length": result.length,
                "in_blocks": in_blocks,
                "rows": len(told),
                "accuracy": sum(told.values()) / len(told),
                "test_accuracy": result.test_metrics["accuracy"],
                "test_rows": sum(result.test_rows.values()),
                "seed": result.settings.seed,
                "tokens_per_second": sum(speeds) / len(speeds),
            })  # fmt: skip
        shortest = min(right) if right else None
        for row in own:
            key = (row["length"], row["in_blocks"])
            if key != shortest and shortest is not None:
                shorter, longer = right[shortest], right[key]
                assert shorter.keys() == longer.keys(), f"{folder}: other reviews"
                row["gained"] = sum(longer[name] and not shorter[name] for name in longer)
                row["lost"] = sum(shorter[name] and not longer[name] for name in longer)
                row["p"] = float(binomtest(row["gained"], row["gained"] + row["lost"]).pvalue)
        rows += own
    compared = [row for row in rows if "p" in row]
    for row in compared:  # as many tests as there are comparisons (Bonferroni)
        row["p"] = min(1.0, row["p"] * len(compared))
    if not rows:
        logger.info("lengths: nothing finished yet")
        return
    lengths = sorted({row["length"] for row in rows if not row["in_blocks"]})
    measured = {length: _guessed(runs, length) for length in lengths}
    guesses = [{"length": length, **guess} for length, guess in measured.items()]
    write_json(
        HERE / "lengths.json", {"began": read_stages(runs, "lengths", "blocks"), "rows": rows, "baselines": guesses}
    )
    columns = [
        *((length, False) for length in lengths),
        *sorted({(row["length"], True) for row in rows if row["in_blocks"]}),
    ]
    lines = []
    for kind in KINDS:
        of = {(row["length"], row["in_blocks"]): row for row in rows if row["kind"] == kind}
        shown = [f"{100 * of[one]['accuracy']:.1f}{_changed(of[one])}" if one in of else "not run" for one in columns]
        lines.append([f"`{kind}`", *shown])
    for name in ("bag of words", "majority class"):
        told = (f"{100 * measured[length][name]:.1f}" if not in_blocks else "" for length, in_blocks in columns)
        lines.append([name, *told])
    header = ["", *(f"{'blocks of ' if in_blocks else ''}{length:,} tokens, %" for length, in_blocks in columns)]
    tested = f"p: a sign test of the same reviews, times {len(compared)} for as many tests; of one seed."
    alone = [(Spread(row["accuracy"], None), 1) for row in rows if not row["in_blocks"] and row["length"] == lengths[0]]
    note = power_note({"": smallest_difference("accuracy", alone, rows[0]["rows"])})
    write_text(HERE / "lengths.md", "\n\n".join([markdown(header, lines), tested, note]) + "\n")


def _changed(row: dict[str, Any]) -> str:
    """Reviews that became right and wrong beside the shortest rows."""
    return f" (+{row['gained']} −{row['lost']}, p = {row['p']:.2g})" if "p" in row else ""


def _right(predictions: Path) -> dict[str, bool]:
    """By the review's name, whether it was told right, of both splits."""
    found = {}
    for split in ("test", "validation"):
        header, *lines = (predictions / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        columns = header.split("\t")
        for line in lines:
            row = dict(zip(columns, line.split("\t"), strict=True))
            found[f"{split}/{row['id']}"] = row["label"] == row["prediction"]
    return found


def _guessed(runs: Path, length: int) -> dict[str, float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/tiny"))
    runs = parser.parse_args().runs
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for stage in (pretraining, tables, differences, landmarks, lengths):
        stage(runs)


if __name__ == "__main__":
    main()
