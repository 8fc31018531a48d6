"""Gathers what run.py has reached into this folder: attend.json, attend.md, curves.png, and the tables of `put-in`.

`python results/attend/collect.py [--runs runs/attend]`: what an earlier call gathered stays until a run of the same
name takes its place.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.files import write_json, write_text
from nystromformer.report.curves import Curve, draw_curves, read_curve
from nystromformer.side_by_side import read_stages
from nystromformer.tables import markdown

HERE = Path(__file__).resolve().parent
PUT_IN = ("approximation.json", "approximation.md")
SOURCE = "softmax-source"
"""The softmax encoder that other attentions are put into; it was trained for more steps."""


def validations(run: Curve) -> dict[str, dict[str, float]]:
    """By step: accuracy in percent, and loss."""
    steps, right = run.series("validation", "mlm_accuracy")
    _, losses = run.series("validation", "loss")
    rows = zip(steps, right, losses, strict=True)
    return {str(step): {"mlm_accuracy": accuracy, "loss": loss} for step, accuracy, loss in rows}


def page(data: Mapping[str, Any]) -> str:
    """The table."""
    encoders = data["encoders"]
    steps = sorted({int(step) for one in encoders.values() for step in one})
    lines = [
        [name, *(f"{one[str(step)]['mlm_accuracy']:.1f}" if str(step) in one else "" for step in steps)]
        for name, one in sorted(encoders.items())
    ]
    keys = ("date", "commit", "processor", "torch")
    header = "; ".join(f"{key} {', '.join(dict.fromkeys(each[key] for each in data['began']))}" for key in keys)
    parts = [
        "# Small encoders that attend",
        "4 layers of width 128, 2 heads, rows of 256 tokens, rotary positions, no dropout, learning rate 2e-3, 8,192 "
        f"tokens a step, one seed. Masked-token accuracy on validation rows in % after so many steps. "
        f"{SOURCE}: softmax without the convolution, for 2,000 steps.",
        markdown(["encoder", *map(str, steps)], lines),
        f"{header}. `python results/attend/run.py --data DIR`, `python results/attend/collect.py`",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/attend"), help="default: %(default)s")
    runs = parser.parse_args().runs
    path = HERE / "attend.json"
    data = json.loads(path.read_text()) if path.exists() else {"began": [], "encoders": {}}
    found = [read_curve(log.parents[1]) for log in sorted(runs.glob("*/model/log.jsonl"))]
    if found:
        data["began"] += [stage for stage in read_stages(runs) if stage not in data["began"]]
        data["encoders"] |= {run.name: validations(run) for run in found}
        draw_curves([run for run in found if run.name != SOURCE], HERE / "curves.png")
    write_json(path, data)
    write_text(HERE / "attend.md", page(data))
    for name in PUT_IN:
        if (runs / "put-in" / name).exists():
            text = (runs / "put-in" / name).read_text(encoding="utf-8")
            write_text(HERE / name, text.replace(str(runs.resolve()), "runs/attend"))


if __name__ == "__main__":
    main()
