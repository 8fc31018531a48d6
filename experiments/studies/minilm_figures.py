"""The tables and the picture of results/minilm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer import studies
from nystromformer.files import write_figure, write_json
from nystromformer.runs.figures import Spread
from nystromformer.runs.record import find_runs
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "minilm"
SHOWN = (0, 25, 100, 400)
"""Steps of both stages together that the table has."""
ALL = ("near_far", "nystrom", "mra", "linear", "local")
"""What is converted."""


def collect(runs: Path = Path("runs/minilm")) -> None:
    """Write minilm.json, minilm.md and curves.png. What an earlier call gathered stays until a run of the same name
    takes its place.
    """
    data = studies.read_json(RESULTS / "minilm.json")
    for name, one in conversions(runs, "untrained").items():
        layers = one["before"]["attention_errors"]
        data["untrained"][name] = {
            "machine": facts_of(one),
            "attention": one["settings"]["attention"],
            "error": one["before"]["hidden_errors"][-1],
            "cosine": one["before"]["cosine"],
            "layers": sum(layers) / len(layers),
            "time": one["before"]["time_ratio"],
        }
    for name, one in conversions(runs, "converted").items():
        data["converted"][name] = {
            "machine": facts_of(one),
            "attention": one["settings"]["attention"],
            "command": one["command"],
            "points": points(one),
            "before": one["before"],
            "after": one["after"],
        }
    data["finetuned"] |= accuracies(runs)
    write_json(RESULTS / "minilm.json", data)
    where = studies.described(one["machine"] for kind in ("untrained", "converted") for one in data[kind].values())
    studies.write_page(RESULTS / "minilm.md", *page(data, where))
    draw(data["converted"], where)


def facts_of(one: Mapping[str, Any]) -> dict[str, str]:
    """What a run says of its machine, as text."""
    return {key: str(one["machine"][key]) for key in studies.MACHINE}


def conversions(runs: Path, kind: str) -> dict[str, dict[str, Any]]:
    """By name: every conversion.json of a kind that is there; unfinished conversions lie beside them."""
    found = [path for path in sorted(runs.glob(f"{kind}-*/conversion.json")) if path.parent.suffix != ".conversion"]
    return {path.parent.name.removeprefix(f"{kind}-"): studies.read_json(path) for path in found}


def points(one: Mapping[str, Any]) -> list[tuple[int, float, float]]:
    """Steps, error of the last hidden vectors and cosine, from the beginning on."""
    found = [(0, one["before"]["hidden_errors"][-1], one["before"]["cosine"])]
    for history in one["curves"].values():
        before = found[-1][0]
        for each in history:
            found.append((before + each["step"], each["metrics"]["hidden_error"], each["metrics"]["cosine"]))
    return found


def accuracies(runs: Path) -> dict[str, list[float]]:
    """By name: the accuracy on other reviews of every finished fine-tuning, in the order of seeds."""
    found: dict[str, list[float]] = {}
    for folder in (runs / "softmax", *sorted(runs.glob("converted-*"))):
        for run in find_runs(folder / "model", "classify"):
            if run.test_metrics:
                found.setdefault(folder.name.removeprefix("converted-"), []).append(run.test_metrics["accuracy"])
    return found


def page(data: Mapping[str, Any], where: str) -> list[str]:
    """All tables."""
    untrained = [
        [f"`{one['attention']}`", *(f"{one[key]:.3f}" for key in ("error", "cosine", "layers")), f"{one['time']:.2f}"]
        for one in data["untrained"].values()
    ]
    converted = []
    for one in data["converted"].values():
        by_step = {step: f"{error:.3f} / {cosine:.3f}" for step, error, cosine in one["points"]}
        converted.append([f"`{one['attention']}`", *(by_step.get(step, "") for step in SHOWN)])
    missing = [name for name in ALL if name not in data["converted"]]
    finetuned = [[name, str(Spread.of(values)), str(len(values))] for name, values in data["finetuned"].items()]
    parts = [
        "# Attentions in the place of all-MiniLM-L6-v2's softmax",
        "Reviews of IMDB, rows of 512 tokens. Error: ‖new − original‖ / ‖original‖ of the last hidden vectors, over "
        "all tokens of 48 rows that no training saw; cosine: of the rows' mean vectors. Each figure is one run's.",
        f"{where}. `python experiments/studies/minilm.py run --data DIR`",
        "## Untrained",
        "Time: of the encoder for these rows, over that of the original's softmax.",
        markdown(["attention", "error", "cosine", "mean error of a layer's attention", "time"], untrained),
        "## Converted",
        "Error / cosine after so many steps of 8 rows, of both stages together.",
        markdown(["attention", *map(str, SHOWN)], converted),
        f"Not measured yet: {', '.join(missing)}." if missing else "",
    ]
    if finetuned:
        parts += ["## Fine-tuned", "Accuracy on 1,000 reviews in %, after three epochs on 1,800."]
        parts.append(markdown(["attention", "accuracy", "seeds"], finetuned))
    return parts


def draw(converted: Mapping[str, Any], where: str) -> None:
    """curves.png: error and cosine over the steps."""
    figure, axes = studies.new_figure(2, 10, 4, grid=0.25)
    for number, (axis, title) in enumerate(zip(axes, ("error", "cosine"), strict=True), start=1):
        for one in converted.values():
            steps, values = ([each[place] for each in one["points"]] for place in (0, number))
            axis.plot(steps, values, label=one["attention"])
        axis.set(xlabel="steps of 8 rows of 512 tokens", title=title)
    axes[0].legend(fontsize=7, frameon=False)
    figure.suptitle(where, fontsize=8)
    write_figure(RESULTS / "curves.png", figure, dpi=110)
