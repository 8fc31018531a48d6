"""What a conversion reached, to read."""

from collections.abc import Mapping, Sequence
from typing import Any

from nystromformer.tables import markdown

_GOALS = {"layers": "each attention", "hidden": "hidden vectors", "loss": "own loss"}


def report(data: Mapping[str, Any]) -> str:
    """Markdown of a `conversion.json`."""
    said, before, after = data["settings"], data["before"], data["after"]
    facts = ", ".join(f"{key} {value}" for key, value in data["machine"].items())
    parts = [
        f"# {data['source']} with {said['attention']}",
        f"Errors are relative, ‖converted − source‖ / ‖source‖ over all tokens of {said['held_out']} held-out rows of "
        f"at most {said['length']} tokens. The cosine is that of the rows' mean vectors with the source's. {facts}.",
        f"`{data['command']}`",
        # The attention stands in the title.
        *(f"- {note}" for note in data["notes"] if not note.startswith("model.attn_type:")),
        _curve(data),
        f"Its encoder takes {after['time_ratio']:.2f} of the source's time for these rows.",
        "Each layer: its attention given the source's input, and its output in the whole model.",
        _layers(before, after),
    ]
    return "\n\n".join(parts) + "\n"


def _curve(data: Mapping[str, Any]) -> str:
    rows = [["before", "0", *_last(data["before"])]]
    for goal, history in data["curves"].items():
        for one in history:
            metrics = one["metrics"]
            figures = [f"{metrics[key]:.3f}" for key in ("loss", "hidden_error", "cosine")]
            rows.append([_GOALS[goal], str(one["step"]), *figures])
    header = ["trained towards", "steps", "mean error of the attentions", "error of the last hidden vectors", "cosine"]
    return markdown(header, rows)


def _last(figures: Mapping[str, Any]) -> list[str]:
    attentions: Sequence[float] = figures["attention_errors"]
    mean = sum(attentions) / len(attentions)
    return [f"{mean:.3f}", f"{figures['hidden_errors'][-1]:.3f}", f"{figures['cosine']:.3f}"]


def _layers(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    parts = list(after["part_errors"])
    header = ["layer", "attention before", "after", *(f"{part} keys alone, after" for part in parts)]
    header += ["output before", "after"]
    rows = []
    for layer in range(len(after["attention_errors"])):
        cells = [f"{each['attention_errors'][layer]:.3f}" for each in (before, after)]
        cells += [f"{after['part_errors'][part][layer]:.3f}" for part in parts]
        cells += [f"{each['hidden_errors'][layer]:.3f}" for each in (before, after)]
        rows.append([str(layer), *cells])
    return markdown(header, rows)
