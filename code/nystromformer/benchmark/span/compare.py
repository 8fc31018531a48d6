"""`run_benchmark.py span`: the span of each model, and the files."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nystromformer.benchmark.questions.span import Span
from nystromformer.benchmark.results import new_figure, on_one_line
from nystromformer.benchmark.span.measure import RowSpan, watch_spans
from nystromformer.benchmark.span.sources import Source, all_sources, compute
from nystromformer.errors import UserError
from nystromformer.files import write_figure, write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.tables import markdown
from nystromformer.training import Device

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Spans:
    """Of one model: means over the rows, each row the mean over heads and queries."""

    name: str
    attention: str
    trained: str
    rows: int
    tokens: float
    """Of a row, on average."""
    span: float
    span_error: float | None
    """Standard error over the rows; None of one."""
    softmax: float
    negative: float
    even: float
    """Where each token attends to all alike."""
    layers: list[dict[str, float]]
    """Of each layer span, softmax and negative."""


def summarise(source: Source, found: Sequence[RowSpan]) -> Spans:
    """What a source's rows amount to."""
    table = pd.DataFrame([vars(each) | {"even": each.even} for each in found])
    layers = table.groupby("layer")
    # A row's layers follow each other in batches, alike in each layer: so the same row is at the same place.
    of_rows = table.groupby(layers.cumcount())[["tokens", "even", "span"]].mean()
    return Spans(
        source.name,
        source.attention,
        source.trained,
        len(of_rows),
        float(of_rows.tokens.mean()),
        float(of_rows.span.mean()),
        float(of_rows.span.sem()) if len(of_rows) > 1 else None,
        float(table.softmax.mean()),
        float(table.negative.mean()),
        float(of_rows.even.mean()),
        layers[["span", "softmax", "negative"]].mean().to_dict("records"),
    )


def measure_spans(settings: Span, dataset: Path | None, device: Device, folder: Path, command: str) -> str:
    """Measure, write `span.json`, `span.md` and `span.png`, and return what to print.

    Args:
        dataset: rows of the pretrained models; None: each config.json's `data_folder`.
        command: what repeats it.

    Raises:
        UserError: nothing was asked for; no such checkpoint, run or data; an attention that has no weights.
    """
    models, runs, checkpoint = settings.models, settings.runs, settings.checkpoint
    if not models and not runs:
        raise UserError("expected at least one --model or --run, trained models to look at")
    if checkpoint == "all":
        raise UserError("--checkpoint: expected last or an epoch's number, found 'all'")
    data = {name: getattr(settings, name) for name in ("glue", "imdb", "wikihop", "lra")}
    facts = machine_facts()
    found: list[Spans] = []
    for source in all_sources(models, runs, dataset, checkpoint, data, device):
        with watch_spans(source.encoder) as seen:
            try:
                compute(source, settings.rows, device)
            except ValueError as error:
                raise UserError(f"{source.name}: {error}") from None
        found.append(summarise(source, seen))
        logger.info("%s: %d rows", source.name, found[-1].rows)
        folder.mkdir(parents=True, exist_ok=True)
        _write(found, folder, facts, command)
    return f"{table(found)}\n\nresults: {folder} (span.json, span.md, span.png)"


def table(found: Iterable[Spans]) -> str:
    """Markdown, a row for each model."""
    header = ["model", "trained on", "attention", "rows", "tokens of a row", "span", "softmax's, same Q and K"]
    header += ["of all alike", "negative weight, %"]
    return markdown(
        header,
        (
            [
                each.name,
                each.trained,
                each.attention,
                str(each.rows),
                f"{each.tokens:.0f}",
                f"{each.span:.1f}" + ("" if each.span_error is None else f" ± {each.span_error:.1f}"),
                f"{each.softmax:.1f}",
                f"{each.even:.1f}",
                f"{100 * each.negative:.1f}",
            ]
            for each in found
        ),
    )


def _write(found: Sequence[Spans], folder: Path, facts: Mapping[str, Any], command: str) -> None:
    write_json(folder / "span.json", {"machine": facts, "command": command, "spans": [asdict(each) for each in found]})
    on = on_one_line(facts)
    text = (
        "# How far attention reaches\n\nThe mean distance, in tokens, between a token and those that it attends to, "
        "weighted by the absolute values of the weights, each query's divided by their sum; means over queries, heads, "
        "layers and rows of validation data (of IMDB, of its test reviews), ± the standard error over rows. Of all "
        "alike: the span where each token attends to all of its row alike. The convolution is left out. "
        f"{on}.\n\n{table(found)}\n\n`{command}`\n"
    )
    write_text(folder / "span.md", text)
    _draw(found, folder / "span.png", on)


def _draw(found: Sequence[Spans], path: Path, header: str) -> None:
    """Of each model the span of its layers, as a share of that of attention to all alike."""

    figure = new_figure(9, 4.8)
    axis = figure.subplots()
    for number, each in enumerate(found):
        places = range(1, len(each.layers) + 1)
        for key, style in (("span", "o-"), ("softmax", "x:")):
            heights = [layer[key] / each.even for layer in each.layers]
            label = f"{each.name}, {each.trained}" if key == "span" else None
            axis.plot(places, heights, style, color=f"C{number}", label=label)
    highest = max(
        1.0, *(layer[key] / each.even for each in found for layer in each.layers for key in ("span", "softmax"))
    )
    axis.axhline(1, color="gray", linewidth=1)
    axis.set_xticks(range(1, 1 + max(len(each.layers) for each in found)))
    axis.set(xlabel="layer", ylabel="span over that of attention to all alike", ylim=(0, 1.1 * highest))
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.suptitle(f"dotted: exact softmax with the same queries and keys\n{header}", fontsize=8)
    write_figure(path, figure, dpi=110)
