"""Finished fine-tuning runs beside the paper's Table 2."""

from collections.abc import Sequence
from pathlib import Path

from nystromformer.report.families import (
    Columns,
    Family,
    check_out,
    read_families,
    rows_of,
    say_power,
    write_report,
)
from nystromformer.runs.figures import MARKS
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
_DETAILS = ("task", "training rows", "length", "seeds", "batch", "learning rate", "epochs", "best", "last", "exact")


def write_table2(folders: Sequence[Path], out: Path) -> str:
    """Write the table as Markdown with how each figure was reached, and the same figures as JSON beside it; returns the
    table and its notes.

    Args:
        folders: of experiments.
        out: the Markdown's file, NAME.md.

    Raises:
        UserError: another ending, a file that cannot be written, or as `read_families`.
    """
    check_out(out)
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
    headings = _headings(families)
    origins, attentions = {each.first.origin for each in families}, {each.attention for each in families}
    order = list(dict.fromkeys(family.experiment for family in families))
    found: dict[str, dict[str, Family]] = {}

    def rank(each: Family) -> tuple[int, float]:
        return len(each.runs), each.best(each.first.main_metric).mean

    for family in sorted(families, key=lambda each: (order.index(each.experiment), each.first.origin.step)):
        parts = [family.experiment, *([str(family.first.origin)] if len(origins) > 1 else [])]
        name = ", ".join([*parts, *([family.attention] if len(attentions) > 1 else [])])
        own = found.setdefault(headings[family.first.folder], {})
        own[name] = max(own.get(name, family), family, key=rank)
    places = {heading: place for place, heading in enumerate(PAPER)}
    return {heading: found[heading] for heading in sorted(found, key=lambda each: (places.get(each, len(PAPER)), each))}


def _headings(families: Sequence[Family]) -> dict[Path, str]:
    """Each family's column by its first run's folder: the task, and what tells apart runs of the same that were asked
    different things or, where these are the same, are on different data.
    """
    aspects = {each.first.folder: _aspects(each) for each in families}
    values: dict[tuple[str, str], set[str]] = {}
    for family in families:
        for aspect, value in aspects[family.first.folder].items():
            values.setdefault((family.first.task, aspect), set()).add(value)
    differing: dict[Path, list[str]] = {}
    data: dict[tuple[str, ...], set[str]] = {}
    for family in families:
        run, usual = family.first, family.task.usual_length
        own = [f"n={run.length}"] if usual is not None and run.length > usual else []
        own += [
            text
            for aspect, text in aspects[run.folder].items()
            if (text and len(values[run.task, aspect]) > 1) or (aspect == "objective" and run.settings.objective)
        ]
        differing[run.folder] = own
        data.setdefault((run.task, *own), set()).add(run.data)
    headings = {}
    for family in families:
        run, task, own = family.first, family.task, differing[family.first.folder]
        own += [f"data {run.data[:8]}"] if len(data[run.task, *own]) > 1 else []
        measures = "" if run.settings.objective is not None else task.measures(run.choices)
        headings[run.folder] = f"{', '.join([task.name(run.choices), *own])} {measures}".rstrip()
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
    families = [family for own in columns.values() for family in own.values()]
    parts = [f"{_LEGEND} {_which_data(columns)}", *([_PROTOCOL] if PAPER.keys() & columns.keys() else [])]
    parts += [MARKS] if any(family.measured for family in families) else []
    parts += [note] if (note := say_power(columns)) else []
    unmeasured = []
    for heading, own in columns.items():
        for name, each in own.items():
            parts += [f"† {heading}: {text}" for text in each.first.every_warning]
            if (weights := tested_weights(each.on_test)) != "the best epoch's":
                parts.append(f"{heading} of {name}: tested with {weights} weights")
            unmeasured += [heading] if each.task.has_baselines and not each.measured and not each.is_untested else []
    if unmeasured:
        parts.append(
            f"No baselines of the same data for {', '.join(dict.fromkeys(unmeasured))}: the runs' commands with "
            "--baselines measure them and train nothing again."
        )
    return list(dict.fromkeys(parts))


def _which_data(columns: Columns) -> str:
    """Which columns, and with them their baselines, are of test data."""
    tested = [name for name, own in columns.items() if all(each.on_test or each.is_untested for each in own.values())]
    if not tested:
        return "Columns show validation data."
    data = "test data, by which nothing was chosen"
    if len(tested) == len(columns):
        return f"Columns show {data}."
    return f"{', '.join(tested)}: {data}; the other columns: validation data."


def _how(columns: Columns) -> list[str]:
    """How each figure was reached, model by model, and the baselines."""
    parts = [
        "## How each figure was reached",
        "Best and last: the best and the last epoch on the validation data, in percent. Exact: the share of validation "
        "rows that are short enough for exact attention in every layer.",
    ]
    for name in dict.fromkeys(name for own in columns.values() for name in own):
        families = {heading: own[name] for heading, own in columns.items() if name in own}
        family = next(iter(families.values()))
        origin = family.first.origin
        commands = "\n".join(dict.fromkeys(command for each in families.values() for command in each.commands))
        parts += [
            f"### {name}",
            f"From {origin}{f', step {origin.step}' if origin.checkpoint else ''}; {family.attention}.",
            markdown(_DETAILS, [_details(heading, each) for heading, each in families.items()]),
            f"```sh\n{commands}\n```",
        ]
    measured = []
    for heading, own in columns.items():
        for found in filter(None, (each.measured for each in own.values())):
            rows = ", ".join(f"{count:,} rows of {name}" for name, count in found.rows.items())
            facts = ", ".join(f"{key} {value}" for key, value in found.machine.items())
            measured.append(f"{heading}: {rows}; {facts}\n\n```sh\n{found.command}\n```")
    return [*parts, *(["### Baselines", *dict.fromkeys(measured)] if measured else [])]


def _details(heading: str, family: Family) -> list[str]:
    first, settings = family.first, family.first.settings
    return [
        heading + (" †" if first.every_warning else ""),
        f"{first.rows['train']:,}",
        str(first.length),
        ",".join(map(str, family.seeds)),
        str(settings.batch_size),
        f"{settings.learning_rate:g}",
        str(settings.epochs),
        " / ".join(str(family.best(name)) for name in family.metrics),
        " / ".join(str(family.last(name)) for name in family.metrics),
        f"{100 * first.exact_share['validation']:.0f} %",
    ]
