"""Gathers what run.py has reached into this folder: home.json and home.md.

`python results/home/collect.py [--runs runs/home]`: what is not there yet is left out.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from nystromformer.files import write_json, write_text
from nystromformer.tables import markdown
from nystromformer.training.log import read_log

HERE = Path(__file__).resolve().parent


def switched(runs: Path) -> list[dict[str, Any]]:
    """Validation loss of a softmax encoder with other attentions, and after training with them."""
    found = [json.loads(path.read_text()) for path in sorted(runs.glob("switch-*.json"))]
    return [row for each in found for row in each["rows"]]


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
        # The phases of a curriculum have logs of their own.
        before = [read_log(path) for path in sorted((folder / "model").glob("stage-*/log.jsonl"))]
        spent = [one for each in (*before, records) for one in each if one["type"] == "train"]
        rows.append({
            "run": folder.name,
            "steps": scores[-1]["step"],
            "first_loss": steps[0].get("mlm_loss", steps[0]["loss"]),
            "last_loss": steps[-1].get("mlm_loss", steps[-1]["loss"]),
            "validation": scores[-1]["mlm_loss"],
            "training_seconds": sum(8192 / one["tokens_per_second"] for one in spent),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/home"))
    runs = parser.parse_args().runs
    began = [json.loads(line) for line in (runs / "stages.jsonl").read_text().splitlines()]
    switches, pretrained = switched(runs), trained(runs)
    write_json(HERE / "home.json", {"began": began, "switched": switches, "pretrained": pretrained})
    tables = [
        markdown(
            ["attention", "steps of training with it", "loss of masked tokens", "right, %"],
            [[row["attention"], str(row["steps"]), f"{row['mlm_loss']:.3f}", f"{100 * row['mlm_accuracy']:.1f}"]
             for row in switches],
        ),
        markdown(
            ["run", "steps", "first loss", "last loss", "masked tokens of the validation rows", "seconds of steps"],
            [[row["run"], str(row["steps"]), f"{row['first_loss']:.3f}", f"{row['last_loss']:.3f}",
              f"{row['validation']:.3f}", f"{row['training_seconds']:.0f}"] for row in pretrained],
        ),
    ]  # fmt: skip
    write_text(HERE / "home.md", "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
