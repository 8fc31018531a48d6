"""Finished fine-tuning runs beside the paper's Table 2."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from nystromformer.report.families import (
    Columns,
    Family,
    commands_of,
    read_families,
    rows_of,
    say_power,
    warnings_of,
    write_report,
)
from nystromformer.runs.record import tested_weights
from nystromformer.tables import markdown

# Table 2 of the paper (Xiong et al. 2021, arXiv 2102.03902), in percent.
PAPER = {
    "SST-2": ("90.0", "91.4"),
    "MRPC (F1 / accuracy)": ("88.4 / –", "88.1 / –"),
    "QNLI": ("90.3", "88.7"),
    "QQP (F1 / accuracy)": ("87.3 / –", "86.3 / –"),
    "MNLI m / mm": ("82.4 / 82.4", "80.9 / 82.2"),
    "IMDB": ("93.3", "93.2"),
    "IMDB, n=1024": ("", "93.0"),
}
"""By the heading of a column: of BERT-base, and of Nyströmformer."""
_LEGEND = (
    "In percent: mean ± sample standard deviation over the seeds, each run at its best epoch. If there are several "
    "settings, the table shows those with the most finished seeds, then the highest mean of the main metric on the "
    "validation data."
)
_PROTOCOL = (
    "The paper: batch 32, learning rate 3e-5, 4 epochs (MRPC: searched over batch 8, 16, 32 and 2e-5 to 5e-5); it "
    "gives F1 alone for MRPC and QQP."
)


def write_table2(folders: Sequence[Path], out: Path) -> str:
    """Write the table as Markdown with how each figure was reached, and the same figures as JSON beside it; returns the
    table and its notes.
    """
    columns = choose(read_families(folders, "table2", f"code/run_glue.py --task SST-2 --model {folders[-1]}"))
    header, (models, guessers) = ["model", *columns], rows_of(columns)
    # The paper knows nothing of tables that people bring.
    names = ("BERT-base (paper)", "Nyströmformer (paper)") if PAPER.keys() & columns.keys() else ()
    paper = [[name, *(PAPER.get(each, ("", ""))[place] for each in columns)] for place, name in enumerate(names)]
    rows = [*paper, *models, *guessers]
    text = "\n\n".join([markdown(header, rows), *_below(columns)])
    figures = [
        {"column": heading, "model": name, **each.record}
        for heading, own in columns.items()
        for name, each in own.items()
    ]
    data = {"table": {"header": header, "rows": rows}, "figures": figures}
    write_report(out, "\n\n".join(["# Fine-tuning", text, *_how(columns)]) + "\n", data)
    return text


def choose(families: Sequence[Family]) -> Columns:
    """What the table shows, the paper's tasks first: of each task the best settings of each model, those of early
    checkpoints first.
    """
    several_origins = len({each.first.origin for each in families}) > 1
    several_attentions = len({each.first.attention_text for each in families}) > 1
    order = list(dict.fromkeys(family.experiment for family in families))
    found: dict[str, dict[str, Family]] = {}

    def rank(each: Family) -> tuple[int, float]:
        return len(each.runs), each.best(each.first.main_metric).mean

    def place(pair: tuple[str, Family]) -> tuple[int, int]:
        return order.index(pair[1].experiment), pair[1].first.origin.step

    for heading, family in sorted(zip(_headings(families), families, strict=True), key=place):
        parts = [family.experiment, *([str(family.first.origin)] if several_origins else [])]
        name = ", ".join([*parts, *([family.first.attention_text] if several_attentions else [])])
        own = found.setdefault(heading, {})
        own[name] = max(own.get(name, family), family, key=rank)
    return {heading: found[heading] for heading in [*PAPER, *sorted(found.keys() - PAPER.keys())] if heading in found}


def _headings(families: Sequence[Family]) -> list[str]:
    """Of each family's column: the task, and what tells apart runs of the same that were asked different things or,
    where these are the same, are on different data.
    """
    aspects = pd.DataFrame([_aspects(each) for each in families]).fillna("")
    differs = aspects.groupby(pd.Series([each.first.task for each in families])).transform("nunique") > 1
    names = []
    for family, texts, flags in zip(families, aspects.to_dict("records"), differs.to_dict("records"), strict=True):
        run, usual = family.first, family.task.usual_length
        own = [f"n={run.length}"] if usual is not None and run.length > usual else []
        flags["objective"] |= run.settings.objective is not None
        own += [text for aspect, text in texts.items() if text and flags[aspect]]
        names.append(", ".join([family.task.name(run.choices), *own]))
    data = pd.Series([each.first.data for each in families])
    headings = []
    for name, family, several in zip(
        names, families, data.groupby(pd.Series(names)).transform("nunique") > 1, strict=True
    ):
        run = family.first
        measures = "" if run.settings.objective is not None else family.task.measures(run.choices)
        headings.append(f"{name}{f', data {run.data[:8]}' if several else ''} {measures}".rstrip())
    return headings


def _aspects(family: Family) -> dict[str, str]:
    """What tells runs of one name apart, as it is shown."""
    run, tells_apart = family.first, family.task.tells_apart
    share = run.choices.get("held_out")
    found = {
        "objective": str(run.settings.objective or "cross_entropy"),
        "encoder": "frozen encoder" if run.settings.freeze else "trained encoder",
        "held_out": f"chosen on {100 * share:g} % of train" if share else "",
    }
    if tells_apart is not None and run.texts is not None:
        found |= {name: f"{name} {text}" for name, text in tells_apart(run.texts).items()}
        found |= {"length": f"n={run.length}"}
    return found


def _below(columns: Columns) -> list[str]:
    """Paragraphs: how to read the table, what it could have shown, and what limits it, each once."""
    tested = [name for name, own in columns.items() if all(each.on_test or each.is_untested for each in own.values())]
    places = "Columns show validation data."
    if tested:
        others = "" if len(tested) == len(columns) else "; the other columns: validation data"
        places = f"Test data, by which nothing was chosen: {', '.join(tested)}{others}."
    parts = [f"{_LEGEND} {places}", *([_PROTOCOL] if PAPER.keys() & columns.keys() else [])]
    parts += [note] if (note := say_power(columns)) else []
    unmeasured = []
    for heading, own in columns.items():
        parts += [f"† {heading}: {text}" for text in warnings_of(own.values())]
        for name, each in own.items():
            if (weights := tested_weights(each.on_test)) != "the best epoch's":
                parts.append(f"{heading} of {name}: tested with {weights} weights")
            unmeasured += [heading] if each.task.has_baselines and not each.measured and not each.is_untested else []
    if unmeasured:
        parts.append(
            f"No baselines of the same data for {', '.join(dict.fromkeys(unmeasured))}: the runs' commands with "
            "--baselines measure them and train nothing again."
        )
    return parts


def _how(columns: Columns) -> list[str]:
    """How each figure was reached."""
    lines: list[dict[str, str]] = []
    for heading, own in columns.items():
        for name, family in own.items():
            first, settings = family.first, family.first.settings
            lines.append(
                {
                    "model": name,
                    "task": heading + (" †" if first.every_warning else ""),
                    "from": f"{first.origin}{f', step {first.origin.step}' if first.origin.checkpoint else ''}",
                    "attention": first.attention_text,
                    "training rows": f"{first.rows['train']:,}",
                    "length": str(first.length),
                    "seeds": ",".join(map(str, family.seeds)),
                    "batch": str(settings.batch_size),
                    "learning rate": f"{settings.learning_rate:g}",
                    "epochs": str(settings.epochs),
                    "best": " / ".join(str(family.best(metric)) for metric in family.metrics),
                    "last": " / ".join(str(family.last(metric)) for metric in family.metrics),
                    "exact": f"{100 * first.exact_share['validation']:.0f} %",
                }
            )
    commands = "\n".join(commands_of(family for own in columns.values() for family in own.values()))
    return [
        "## How each figure was reached",
        "Best and last: the best and the last epoch on the validation data, in percent. Exact: the share of validation "
        "rows that are short enough for exact attention in every layer.",
        markdown(list(lines[0]), [list(line.values()) for line in lines]),
        f"```sh\n{commands}\n```",
    ]
