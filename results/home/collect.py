"""Gathers what run.py has reached into this folder: home.json, home.md and attend.png.

`python results/home/collect.py [--runs runs/home]`: what is not there yet is left out.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from nystromformer.files import write_json, write_text
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.side_by_side import read_stages
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

HERE = Path(__file__).resolve().parent
TOKENS = 8192
"""Of a step."""
ATTEND = ("softmax-128", "nystrom-128", "softmax-128-conv", "nystrom-128-conv", "nystrom-128-landmarks-64")
"""Runs whose curves are drawn, once they have ended."""
CURRICULA = ("curriculum", "long-only")
EVERY_SECONDS, SMOOTHED = 200, 50


def switched(runs: Path) -> list[dict[str, Any]]:
    """Validation loss of a softmax encoder with other attentions, and after training with them."""
    found = [json.loads(path.read_text()) for path in sorted(runs.glob("switch-*.json"))]
    return sorted((row for each in found for row in each["rows"]), key=lambda row: row["attention"] != "softmax")


def trained(runs: Path) -> list[dict[str, Any]]:
    """Of each pretraining here: the loss of its first step, before any update, of its last, and on validation rows."""
    rows = []
    for folder in sorted(path.parent for path in runs.glob("*/config.json")):
        log = folder / "model" / "log.jsonl"
        records = list(read_log(log)) if log.is_file() else []
        steps = [one for one in records if one["type"] == "train"]
        scores = [one for one in records if one["type"] == "validation"]
        if not scores:
            continue
        rows.append({
            "run": folder.name,
            "steps": scores[-1]["step"],
            "of_steps": records[0]["num_steps"],
            "first_loss": steps[0].get("mlm_loss", steps[0]["loss"]),
            "last_loss": steps[-1].get("mlm_loss", steps[-1]["loss"]),
            "validation": scores[-1].get("mlm_loss", scores[-1]["loss"]),
            "right": scores[-1]["mlm_accuracy"],
            "training_seconds": points_of(folder)[-1][0],
            "validations": [
                {"step": one["step"], "loss": one.get("mlm_loss", one["loss"]), "right": one["mlm_accuracy"]}
                for one in scores
            ],
        })  # fmt: skip
    return rows


def points_of(folder: Path) -> list[tuple[float, float]]:
    """Of each report on training: the seconds of all steps until then, by the speed that each report tells, and the
    loss of masked tokens. The phases of a curriculum, which have logs of their own, come one after another."""
    seconds, points = 0.0, []
    for path in (*sorted((folder / "model").glob("stage-*/log.jsonl")), folder / "model" / "log.jsonl"):
        step = 0
        for one in read_log(path):
            if one["type"] == "train":
                seconds += (one["step"] - step) * TOKENS / one["tokens_per_second"]
                step = one["step"]
                points.append((seconds, one.get("mlm_loss", one["loss"])))
    return points


def by_seconds(runs: Path) -> list[dict[str, Any]]:
    """Short rows before long ones, and long ones alone: the training loss of masked tokens, the mean of the last
    `SMOOTHED` steps, after equal times; the last one is when the first of the two has ended."""
    if not all((runs / name / "model" / "log.jsonl").is_file() for name in CURRICULA):
        return []
    curves = {name: points_of(runs / name) for name in CURRICULA}
    end = min(points[-1][0] for points in curves.values())
    rows = []
    for at in (*range(EVERY_SECONDS, int(end), EVERY_SECONDS), end):
        losses = {name: [loss for seconds, loss in points if seconds <= at] for name, points in curves.items()}
        rows.append({"seconds": at} | {name: sum(found[-SMOOTHED:]) / SMOOTHED for name, found in losses.items()})
    return rows


def errors(runs: Path) -> dict[str, Any]:
    """How far each attention is from the encoder's own softmax, the mean over its layers; without times, as other work
    ran beside."""
    path = runs / "approximation" / "approximation.json"
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())
    layers: dict[tuple[str, int | None], list[float]] = {}
    for one in found["output_errors"]:
        if one["layer"] != "random":
            layers.setdefault((one["method"], one["width"]), []).append(one["output_error"])
    rows = [
        {"attention": name, "width": width, "error": sum(each) / len(each)} for (name, width), each in layers.items()
    ]
    return {"machine": found["machine"], "validation_rows": found["settings"]["rows"], "rows": rows}


def side_by_side(curves: dict[str, list[dict[str, float]]]) -> str:
    """A line for each validation of the runs that are drawn, which have them after the same steps."""
    rows = [
        [f"{of_step[0]['step']}", *(f"{one['loss']:.3f}, {100 * one['right']:.1f} %" for one in of_step)]
        for of_step in zip(*curves.values(), strict=True)
    ]
    return markdown(["steps", *(f"{name}: validation loss, right" for name in curves)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/home"))
    runs = parser.parse_args().runs
    switches, pretrained, far, timed = switched(runs), trained(runs), errors(runs), by_seconds(runs)
    found = {"switched": switches, "pretrained": pretrained, "approximation": far, "by_seconds": timed}
    write_json(HERE / "home.json", {"began": read_stages(runs), **found})
    tables = [
        markdown(
            ["attention", "steps of training with it", "loss of masked tokens", "right, %"],
            [[row["attention"], str(row["steps"]), f"{row['mlm_loss']:.3f}", f"{100 * row['mlm_accuracy']:.1f}"]
             for row in switches],
        ),
        markdown(
            ["run", "steps", "first loss", "last loss", "validation loss", "right, %", "seconds of steps"],
            [[row["run"], str(row["steps"]), f"{row['first_loss']:.3f}", f"{row['last_loss']:.3f}",
              f"{row['validation']:.3f}", f"{100 * row['right']:.1f}", f"{row['training_seconds']:.0f}"]
             for row in pretrained],
        ),
        markdown(
            ["attention in the softmax encoder's place", "width", "error of its output"],
            [[row["attention"], str(row["width"] or ""), f"{row['error']:.3f}"] for row in far.get("rows", [])],
        ),
    ]  # fmt: skip
    if timed:
        rows = [[f"{row['seconds']:.0f}", *(f"{row[name]:.3f}" for name in CURRICULA)] for row in timed]
        tables.append(markdown(["seconds of steps", *(f"{name}: training loss" for name in CURRICULA)], rows))
    ended = {row["run"]: row["validations"] for row in pretrained if row["steps"] == row["of_steps"]}
    curves = {name: ended[name] for name in ATTEND if name in ended}
    if curves:
        tables.append(side_by_side(curves))
        draw_curves([read_curve(runs / name) for name in curves], HERE / "attend.png")
    write_text(HERE / "home.md", "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
