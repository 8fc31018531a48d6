"""Gathers what run.py has reached into this folder: minilm.json, minilm.md and curves.png.

`python results/minilm/collect.py [--runs runs/minilm]`: what an earlier call gathered stays until a run of the same
name takes its place.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nystromformer.files import write_figure, write_json, write_text
from nystromformer.runs.figures import Spread
from nystromformer.runs.record import find_runs
from nystromformer.tables import markdown

HERE = Path(__file__).resolve().parent
SHOWN = (0, 25, 100, 400)
"""Steps of both stages together that the table has."""
MACHINE = ("date", "commit", "processor", "threads", "torch")
ALL = ("near_far", "nystrom", "mra", "linear", "local")
"""What run.py converts."""


def conversions(runs: Path, kind: str) -> dict[str, dict[str, Any]]:
    """By name: every conversion.json of a kind that is there; unfinished conversions lie beside them."""
    found = [path for path in sorted(runs.glob(f"{kind}-*/conversion.json")) if path.parent.suffix != ".conversion"]
    return {path.parent.name.removeprefix(f"{kind}-"): json.loads(path.read_text()) for path in found}


def points(one: Mapping[str, Any]) -> list[tuple[int, float, float]]:
    """Steps, error of the last hidden vectors and cosine, from the beginning on."""
    reached = [(0, one["before"]["hidden_errors"][-1], one["before"]["cosine"])]
    before = 0
    for history in one["curves"].values():
        steps = [(before + each["step"], each["metrics"]) for each in history]
        reached += [(step, metrics["hidden_error"], metrics["cosine"]) for step, metrics in steps]
        before = reached[-1][0]
    return reached


def accuracies(runs: Path) -> dict[str, list[float]]:
    """By name: the accuracy on other reviews of every finished fine-tuning, in the order of seeds."""
    found: dict[str, list[float]] = {}
    for folder in (runs / "softmax", *sorted(runs.glob("converted-*"))):
        for result in find_runs(folder / "model", "classify"):
            if result.test_metrics:
                found.setdefault(folder.name.removeprefix("converted-"), []).append(result.test_metrics["accuracy"])
    return found


def page(data: Mapping[str, Any], header: str) -> str:
    """All tables."""
    parts = [
        "# Attentions in the place of all-MiniLM-L6-v2's softmax",
        "Reviews of IMDB, rows of 512 tokens. Error: ‖new − original‖ / ‖original‖ of the last hidden vectors, over "
        "all tokens of 48 rows that no training saw; cosine: of the rows' mean vectors. Each figure is one run's.",
        f"{header}. `python results/minilm/run.py --data DIR`",
    ]
    if untrained := data["untrained"]:
        parts += ["## Untrained", "Time: of the encoder for these rows, over that of the original's softmax."]
        columns = ["attention", "error", "cosine", "mean error of a layer's attention", "time"]
        lines = [
            [f"`{one['attention']}`", f"{one['error']:.3f}", f"{one['cosine']:.3f}", f"{one['layers']:.3f}",
             f"{one['time']:.2f}"]
            for one in untrained.values()
        ]  # fmt: skip
        parts.append(markdown(columns, lines))
    if converted := data["converted"]:
        parts += ["## Converted", "Error / cosine after so many steps of 8 rows, of both stages together."]
        lines = [[f"`{one['attention']}`", *_shown(one["points"])] for one in converted.values()]
        parts.append(markdown(["attention", *map(str, SHOWN)], lines))
        if missing := [name for name in ALL if name not in converted]:
            parts.append(f"Not measured yet: {', '.join(missing)}.")
    if finetuned := data["finetuned"]:
        parts += ["## Fine-tuned", "Accuracy on 1,000 reviews in %, after three epochs on 1,800."]
        lines = [[name, str(Spread.of(values)), str(len(values))] for name, values in finetuned.items()]
        parts.append(markdown(["attention", "accuracy", "seeds"], lines))
    return "\n\n".join(parts) + "\n"


def _shown(reached: Sequence[tuple[int, float, float]]) -> list[str]:
    by_step = {step: f"{error:.3f} / {cosine:.3f}" for step, error, cosine in reached}
    return [by_step.get(step, "") for step in SHOWN]


def draw(converted: Mapping[str, Any], path: Path, header: str) -> None:
    """Error and cosine over the steps."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (axis, title) in enumerate(zip(figure.subplots(1, 2), ("error", "cosine"), strict=True), start=1):
        for one in converted.values():
            axis.plot(
                [each[0] for each in one["points"]], [each[number] for each in one["points"]], label=one["attention"]
            )
        axis.set(xlabel="steps of 8 rows of 512 tokens", title=title)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=7, frameon=False)
    figure.suptitle(header, fontsize=8)
    write_figure(path, figure, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/minilm"), help="default: %(default)s")
    runs = parser.parse_args().runs
    path = HERE / "minilm.json"
    data = json.loads(path.read_text())
    for name, one in conversions(runs, "untrained").items():
        data["untrained"][name] = {
            "machine": facts(one),
            "attention": one["settings"]["attention"],
            "error": one["before"]["hidden_errors"][-1],
            "cosine": one["before"]["cosine"],
            "layers": sum(one["before"]["attention_errors"]) / len(one["before"]["attention_errors"]),
            "time": one["before"]["time_ratio"],
        }
    for name, one in conversions(runs, "converted").items():
        data["converted"][name] = {
            "machine": facts(one),
            "attention": one["settings"]["attention"],
            "command": one["command"],
            "points": points(one),
            "before": one["before"],
            "after": one["after"],
        }
    data["finetuned"] |= accuracies(runs)
    machines = [one["machine"] for one in (*data["untrained"].values(), *data["converted"].values())]
    header = "; ".join(f"{key} {', '.join(dict.fromkeys(each[key] for each in machines))}" for key in MACHINE)
    write_json(path, data)
    write_text(HERE / "minilm.md", page(data, header))
    if data["converted"]:
        draw(data["converted"], HERE / "curves.png", header)


def facts(one: Mapping[str, Any]) -> dict[str, str]:
    """What a run says of its machine, as text."""
    return {key: str(one["machine"][key]) for key in MACHINE}


if __name__ == "__main__":
    main()
