"""Finished fine-tuning runs beside the paper's Table 2."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nystromformer.report.families import Family, check_out, read_families, write_report
from nystromformer.runs.figures import MARKS, SmallestDifference, Spread, power_note, smallest_difference
from nystromformer.runs.record import tested_weights
from nystromformer.tables import markdown

_OF_PAPER = " (paper)"
_GUESSERS = ("majority class", "tf-idf")
"""What there would be a row of, where no baselines were measured."""

# Table 2 of the paper (Xiong et al. 2021, arXiv 2102.03902), in percent: F1 for MRPC and QQP, accuracy for the rest,
# MNLI matched and mismatched.
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "BERT-base": {
        "glue/SST-2": (90.0,),
        "glue/MRPC": (88.4,),
        "glue/QNLI": (90.3,),
        "glue/QQP": (87.3,),
        "glue/MNLI": (82.4, 82.4),
        "imdb": (93.3,),
    },
    "Nyströmformer": {
        "glue/SST-2": (91.4,),
        "glue/MRPC": (88.1,),
        "glue/QNLI": (88.7,),
        "glue/QQP": (86.3,),
        "glue/MNLI": (80.9, 82.2),
        "imdb": (93.2,),
        "imdb (n=1024)": (93.0,),
    },
}
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


@dataclass(frozen=True)
class Column:
    """A task on the same data; read in longer rows than usual it is another one, as IMDB in the paper."""

    key: str
    """The runs' task, and what tells them from others of the same."""
    heading: str
    name: str
    """The heading without what its figures are."""


@dataclass(frozen=True)
class Shown:
    """The best settings of a model in a column."""

    column: Column
    model: str
    """Its label."""
    family: Family
    others: tuple[int, ...]
    """Finished seeds of each other settings."""

    @property
    def is_untested(self) -> bool:
        """Whether the task is one that is measured on test data, and it was not."""
        return self.family.task.on_test and not self.family.on_test


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
    example = f"such as python code/run_glue.py --task SST-2 --model {folders[-1]}"
    families, unfinished = read_families(folders, "table2", example=example)
    figures, models = choose(families)
    header, rows = _table(figures, models)
    text = "\n\n".join([markdown(header, rows), *_below(figures, unfinished)])
    title = "# Fine-tuning" + (" beside the paper's Table 2" if rows[0][0].endswith(_OF_PAPER) else "")
    write_report(
        out,
        "\n\n".join([title, text, *_how(figures)]) + "\n",
        {
            "table": {"header": header, "rows": rows},
            "paper_percent": PAPER,
            "figures": [{"column": e.column.key, "model": e.model, **e.family.record} for e in figures],
            "unfinished": unfinished,
        },
    )
    return text


def choose(families: Sequence[Family]) -> tuple[list[Shown], list[str]]:
    """What the table shows, the paper's tasks first; and its models, those of early checkpoints first."""
    columns = _columns(families)
    origins, attentions = {each.first.origin for each in families}, {each.attention for each in families}
    order = list(dict.fromkeys(family.experiment for family in families))
    found: dict[tuple[Column, str], list[Family]] = {}
    for family in sorted(families, key=lambda each: (order.index(each.experiment), each.first.origin.step)):
        parts = [family.experiment, *([str(family.first.origin)] if len(origins) > 1 else [])]
        parts += [family.attention] if len(attentions) > 1 else []
        found.setdefault((columns[family.first.folder], ", ".join(parts)), []).append(family)
    shown = []
    for (column, label), alike in found.items():
        best = max(alike, key=lambda each: (len(each.runs), each.best(each.first.main_metric).mean))
        others = tuple(len(each.runs) for each in alike if each is not best)
        shown.append(Shown(column, label, best, others))
    of_paper = list(dict.fromkeys(task for figures in PAPER.values() for task in figures))

    def place(each: Shown) -> tuple[int, str]:
        key = each.column.key
        return of_paper.index(key) if key in of_paper else len(of_paper), key

    return sorted(shown, key=place), list(dict.fromkeys(each.model for each in shown))


def _columns(families: Sequence[Family]) -> dict[Path, Column]:
    """Each family's column, by its first run's folder: the task, and what tells apart runs of the same that were asked
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
    columns = {}
    for family in families:
        run, task, own = family.first, family.task, differing[family.first.folder]
        own += [f"data {run.data[:8]}"] if len(data[run.task, *own]) > 1 else []
        key = run.task + (f" ({', '.join(own)})" if own else "")
        name = ", ".join([task.name(run.choices), *own])
        measures = "" if run.settings.objective is not None else task.measures(run.choices)
        columns[run.folder] = Column(key, f"{name} {measures}".rstrip(), name)
    return columns


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


def _by_column(figures: Sequence[Shown]) -> dict[Column, list[Shown]]:
    columns: dict[Column, list[Shown]] = {}
    for each in figures:
        columns.setdefault(each.column, []).append(each)
    return columns


def _table(figures: Sequence[Shown], models: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the paper's figures, ours, and those of the guessers, for the tasks that there are runs of."""
    columns = _by_column(figures)
    rows = []
    if _is_compared(figures):
        for name, values in PAPER.items():
            rows.append([f"{name}{_OF_PAPER}", *(_paper_cell(values, column) for column in columns)])
    cells = {(each.model, each.column): _cell(each) for each in figures}
    rows += [[model, *(cells.get((model, column), "") for column in columns)] for model in models]
    guessers = {
        column: next((e.family.baselines for e in several if e.family.measured and not e.is_untested), None)
        for column, several in columns.items()
    }
    for name in dict.fromkeys(name for found in guessers.values() for name in found or ()) or _GUESSERS:
        row = [name]
        for column, several in columns.items():
            found = guessers[column]
            missing = "not measured" if any(map(_lacks_baselines, several)) else ""
            row.append(missing if found is None else " / ".join(map(str, found.get(name, {}).values())))
        rows.append(row)
    return ["model", *(column.heading for column in columns)], rows


def _is_compared(figures: Sequence[Shown]) -> bool:
    """The paper knows nothing of tables that people bring."""
    return not all(each.family.task.tells_apart for each in figures)


def _lacks_baselines(shown: Shown) -> bool:
    """Whether nobody measured those that the task has."""
    return shown.family.task.has_baselines and shown.family.measured is None and not shown.is_untested


def _paper_cell(values: Mapping[str, tuple[float, ...]], column: Column) -> str:
    shown = list(map(str, values.get(column.key, ())))
    return " / ".join([*shown, "–"] if shown and "F1" in column.heading else shown)


def _cell(shown: Shown) -> str:
    family, partial = shown.family, " †" if shown.family.first.every_warning else ""
    if shown.is_untested:
        return f"not tested{partial}"
    text = " / ".join(f"{spread} {family.mark(name)}".rstrip() for name, spread in family.shown.items())
    if 0 < len(family.on_test) < len(family.runs):
        text += f" ({len(family.on_test)} of {len(family.runs)} seeds)"
    return text + partial


def _below(figures: Sequence[Shown], unfinished: Sequence[str]) -> list[str]:
    """Paragraphs: how to read the table, what it could have shown, and what limits it, each once."""
    columns = _by_column(figures)
    parts = [f"{_LEGEND} {_which_data(columns)}", *([_PROTOCOL] if _is_compared(figures) else [])]
    parts += [MARKS] if any(each.family.measured for each in figures) else []
    parts += [note] if (note := power_note(_smallest(columns))) else []

    def those(says: Callable[[Shown], Iterable[str]]) -> list[str]:
        """What is said of some figures, with the task, and the models where it does not hold of all of the task."""
        said: dict[tuple[Column, str], list[str]] = {}
        for each in figures:
            for text in says(each):
                said.setdefault((each.column, text), []).append(each.model)
        return [
            f"{column.name}{'' if len(models) == len(columns[column]) else ' of ' + ' and '.join(models)}: {text}"
            for (column, text), models in said.items()
        ]

    parts += [f"† {text}" for text in those(lambda each: each.family.first.every_warning)]
    parts += those(_fewer_seeds) + those(_other_weights)
    if unmeasured := dict.fromkeys(each.column.name for each in figures if _lacks_baselines(each)):
        parts.append(
            f"No baselines of the same data for {', '.join(unmeasured)}: the runs' commands with --baselines measure "
            "them and train nothing again."
        )
    if unfinished:
        are = "1 run is" if len(unfinished) == 1 else f"{len(unfinished)} runs are"
        parts.append(f"{are} not finished: {', '.join(unfinished)}")
    return parts


def _which_data(columns: Mapping[Column, Sequence[Shown]]) -> str:
    """Which columns, and with them their baselines, are of test data."""
    tested = [c.heading for c, several in columns.items() if all(e.family.on_test or e.is_untested for e in several)]
    if not tested:
        return "Columns show validation data."
    data = "test data, by which nothing was chosen"
    if len(tested) == len(columns):
        return f"Columns show {data}."
    return f"{', '.join(tested)}: {data}; the other columns: validation data."


def _smallest(columns: Mapping[Column, Sequence[Shown]]) -> dict[str, SmallestDifference | None]:
    """Of each metric of each column, over the models whose figures are of as many examples."""
    found: dict[str, SmallestDifference | None] = {}
    for column, several in columns.items():
        alike: dict[tuple[str, int], list[tuple[Spread, int]]] = {}
        for family in (each.family for each in several if not each.is_untested):
            for name, spread in family.shown.items():
                seeds = len(family.on_test or family.runs)
                alike.setdefault((name, family.examples(name)), []).append((spread, seeds))
        has_several = len({name for name, _ in alike}) > 1
        for (name, rows), spreads in alike.items():
            found[f"{column.name} {name}" if has_several else column.name] = smallest_difference(name, spreads, rows)
    return found


def _fewer_seeds(shown: Shown) -> list[str]:
    fewer = sum(count < len(shown.family.runs) for count in shown.others)
    return (
        [f"of {len(shown.others) + 1} settings, {fewer} with fewer finished seeds than the one shown"] if fewer else []
    )


def _other_weights(shown: Shown) -> list[str]:
    weights = tested_weights(shown.family.on_test)
    return [] if weights == "the best epoch's" else [f"tested with {weights} weights"]


def _how(figures: Sequence[Shown]) -> list[str]:
    """How each figure was reached, model by model, and the baselines."""
    parts = [
        "## How each figure was reached",
        "Best and last: the best and the last epoch on the validation data, in percent. Exact: the share of validation "
        "rows that are short enough for exact attention in every layer.",
    ]
    for model in dict.fromkeys(each.model for each in figures):
        own = [each for each in figures if each.model == model]
        family, origin = own[0].family, own[0].family.first.origin
        commands = "\n".join(each.family.command for each in own)
        parts += [
            f"### {model}",
            f"From {origin}{f', step {origin.step}' if origin.checkpoint else ''}; {family.attention}.",
            markdown(_DETAILS, map(_details, own)),
            f"```sh\n{commands}\n```",
        ]
    measured = []
    for each in figures:
        if (found := each.family.measured) is not None:
            rows = ", ".join(f"{count:,} rows of {name}" for name, count in found.rows.items())
            facts = ", ".join(f"{key} {value}" for key, value in found.machine.items())
            measured.append(f"{each.column.name}: {rows}; {facts}\n\n```sh\n{found.call}\n```")
    return [*parts, *(["### Baselines", *dict.fromkeys(measured)] if measured else [])]


def _details(shown: Shown) -> list[str]:
    family, first, settings = shown.family, shown.family.first, shown.family.first.settings
    return [
        shown.column.name + (" †" if first.every_warning else ""),
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
