"""The tables and the picture of results/home."""

from pathlib import Path
from typing import Any

from nystromformer import studies
from nystromformer.files import write_json
from nystromformer.report.curves import draw_curves, read_curve
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

RESULTS = studies.RESULTS / "home"
TOKENS = 8192
"""Of a step."""
ATTEND = ("softmax-128", "nystrom-128", "softmax-128-conv", "nystrom-128-conv", "nystrom-128-landmarks-64")
"""Runs whose curves are drawn, once they have ended."""
CURRICULA = ("curriculum", "long-only")
EVERY_SECONDS, SMOOTHED = 200, 50
Rows = list[dict[str, Any]]


def collect(runs: Path = Path("runs/home")) -> None:
    """Write home.json, home.md and attend.png; where there are no runs, the page of the earlier data."""
    if runs.is_dir():
        data = {
            "began": studies.read_stages(runs),
            "switched": switches(runs),
            "pretrained": pretrainings(runs),
            "approximation": errors(runs),
            "by_seconds": losses_by_seconds(runs),
        }
        write_json(RESULTS / "home.json", data)
    data = studies.read_json(RESULTS / "home.json")
    tables = [
        markdown(
            ["attention", "steps of training with it", "loss of masked tokens", "right, %"],
            [[row["attention"], str(row["steps"]), f"{row['mlm_loss']:.3f}", f"{100 * row['mlm_accuracy']:.1f}"]
             for row in data["switched"]],
        ),
        markdown(
            ["run", "steps", "first loss", "last loss", "validation loss", "right, %", "seconds of steps"],
            [[row["run"], str(row["steps"]), f"{row['first_loss']:.3f}", f"{row['last_loss']:.3f}",
              f"{row['validation']:.3f}", f"{100 * row['right']:.1f}", f"{row['training_seconds']:.0f}"]
             for row in data["pretrained"]],
        ),
        markdown(
            ["attention in the softmax encoder's place", "width", "error of its output"],
            [[row["attention"], str(row["width"] or ""), f"{row['error']:.3f}"]
             for row in data["approximation"].get("rows", [])],
        ),
    ]  # fmt: skip
    if rows := data["by_seconds"]:
        lines = [[f"{row['seconds']:.0f}", *(f"{row[name]:.3f}" for name in CURRICULA)] for row in rows]
        tables.append(markdown(["seconds of steps", *(f"{name}: training loss" for name in CURRICULA)], lines))
    ended = {row["run"]: row["validations"] for row in data["pretrained"] if row["steps"] == row["of_steps"]}
    if names := [name for name in ATTEND if name in ended]:
        # They have validations after the same steps.
        lines = [
            [f"{of_step[0]['step']}", *(f"{one['loss']:.3f}, {100 * one['right']:.1f} %" for one in of_step)]
            for of_step in zip(*(ended[name] for name in names), strict=True)
        ]
        tables.append(markdown(["steps", *(f"{name}: validation loss, right" for name in names)], lines))
        if runs.is_dir():
            draw_curves([read_curve(runs / name) for name in names], RESULTS / "attend.png")
    studies.write_page(RESULTS / "home.md", *tables)


def switches(runs: Path) -> Rows:
    """Validation loss of a softmax encoder with other attentions, and after training with them."""
    rows = [row for path in sorted(runs.glob("switch-*.json")) for row in studies.read_json(path)["rows"]]
    return sorted(rows, key=lambda row: row["attention"] != "softmax")


def pretrainings(runs: Path) -> Rows:
    """Of each pretraining here: the loss of its first step, before any update, of its last, and on validation rows."""
    rows = []
    for folder in sorted(path.parent for path in runs.glob("*/config.json")):
        log = folder / "model" / "log.jsonl"
        records = read_log(log) if log.is_file() else []
        steps = [one for one in records if one["type"] == "train"]
        scores = [one for one in records if one["type"] == "validation"]
        if scores:
            rows.append({
                "run": folder.name,
                "steps": scores[-1]["step"],
                "of_steps": records[0]["num_steps"],
                "first_loss": _loss(steps[0]),
                "last_loss": _loss(steps[-1]),
                "validation": _loss(scores[-1]),
                "right": scores[-1]["mlm_accuracy"],
                "training_seconds": losses_of(folder)[-1][0],
                "validations": [
                    {"step": one["step"], "loss": _loss(one), "right": one["mlm_accuracy"]} for one in scores
                ],
            })  # fmt: skip
    return rows


def _loss(record: dict[str, Any]) -> float:
    """Of masked tokens; of a run with one objective it is the whole loss."""
    return record.get("mlm_loss", record["loss"])


def losses_of(folder: Path) -> list[tuple[float, float]]:
    """Of each report on training: the seconds of all steps until then, by the speed that each report tells, and the
    loss of masked tokens. The phases of a curriculum, which have logs of their own, come one after another."""
    seconds, points = 0.0, []
    for path in (*sorted((folder / "model").glob("stage-*/log.jsonl")), folder / "model" / "log.jsonl"):
        step = 0
        for one in read_log(path):
            if one["type"] == "train":
                seconds += (one["step"] - step) * TOKENS / one["tokens_per_second"]
                step = one["step"]
                points.append((seconds, _loss(one)))
    return points


def losses_by_seconds(runs: Path) -> Rows:
    """Short rows before long ones, and long ones alone: the training loss of masked tokens, the mean of the last
    `SMOOTHED` steps, after equal times; the last one is when the first of the two has ended."""
    if not all((runs / name / "model" / "log.jsonl").is_file() for name in CURRICULA):
        return []
    curves = {name: losses_of(runs / name) for name in CURRICULA}
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
    data = studies.read_json(path)
    layers: dict[tuple[str, int | None], list[float]] = {}
    for one in data["output_errors"]:
        if one["layer"] != "random":
            layers.setdefault((one["method"], one["width"]), []).append(one["output_error"])
    rows = [
        {"attention": name, "width": width, "error": sum(each) / len(each)} for (name, width), each in layers.items()
    ]
    return {"machine": data["machine"], "validation_rows": data["settings"]["rows"], "rows": rows}
