"""Finished fine-tuning runs beside the paper's Table 2."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files import NewFile, write_json
from nystromformer.report.finetuning import Finished, Repeats, Row, collect

_COLUMNS = {
    "glue/SST-2": "SST-2",
    "glue/MRPC": "MRPC (F1)",
    "glue/QNLI": "QNLI",
    "glue/QQP": "QQP (F1)",
    "glue/MNLI": "MNLI m/mm",
    "imdb": "IMDB",
    "imdb (n=1024)": "IMDB, n=1024",
    "glue/CoLA": "CoLA (Matthews)",
    "glue/STS-B": "STS-B (correlation)",
    "glue/RTE": "RTE",
    "glue/WNLI": "WNLI",
    "wikihop": "WikiHop",
}
_TESTED = ("imdb", "imdb (n=1024)")
"""What is always measured on test data; the others are where the task says so."""

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
_PAPER_TASKS = tuple(PAPER["Nyströmformer"])

_LEGEND = (
    "In percent: mean ± sample standard deviation over the seeds, each run at its best epoch. Of several settings "
    "those on the most complete data, then on the most training rows, then with the most seeds, then those with the "
    "highest mean of the main metric on the validation data. Columns show validation data; IMDB, and WikiHop where "
    "dev.json is kept for the end, data that nothing was chosen by. † on partial data, see below. The paper: batch 32, "
    "learning rate 3e-5, 4 epochs (MRPC: searched over batch 8, 16, 32 and 2e-5 to 5e-5)."
)

_DETAILS = (
    "model",
    "task",
    "checkpoint",
    "attention",
    "training rows",
    "length",
    "seeds",
    "batch",
    "learning rate",
    "epochs",
    "best",
    "last",
    "exact",
    "command",
)


def write_table2(folders: Sequence[Path], out: Path) -> str:
    """Write the table as Markdown, and the same figures as JSON beside it.

    Args:
        folders: of experiments.
        out: the Markdown's file, NAME.md.

    Returns:
        The Markdown.

    Raises:
        UserError: another ending, a file that cannot be written, or as `collect`.
    """
    if out.suffix != ".md":
        raise UserError(f"--out {out}: expected a name that ends in .md")
    finished = collect(folders)
    text = markdown(finished)
    with NewFile(out) as file:
        file.write(text.encode())
    write_json(out.with_suffix(".json"), _plain(finished))
    return text


def markdown(finished: Finished) -> str:
    """The table, how each figure was reached, and what limits it."""
    tasks = _tasks(finished)
    figures = [(row, task, row.tasks[task]) for row in finished.rows for task in tasks if task in row.tasks]
    lines = [
        [f"{name} (paper)", "", "", *("/".join(map(str, values.get(task, ()))) for task in tasks)]
        for name, values in PAPER.items()
    ]
    for row in finished.rows:
        cells = [_cell(row.tasks[task]) if task in row.tasks else "" for task in tasks]
        lines.append([row.name, row.origin, row.attention, *cells])
    notes = [f"† {row.name}, {_short(task)}: {text}" for row, task, runs in figures for text in runs.first.warnings]
    if finished.unfinished:
        count = len(finished.unfinished)
        notes.append(f"{count} {'run is' if count == 1 else 'runs are'} not finished: {', '.join(finished.unfinished)}")
    parts = [
        "# Fine-tuning beside the paper's Table 2",
        _markdown_table(["model", "checkpoint", "attention", *(_COLUMNS.get(task, task) for task in tasks)], lines),
        _LEGEND,
        "## How each figure was reached",
        _markdown_table(_DETAILS, [_detail(*figure) for figure in figures]),
        "Best and last: of the epochs on the validation data, in percent. Exact: validation rows that are short enough "
        "for exact attention in every layer.",
        *notes,
    ]
    return "\n\n".join(parts) + "\n"


def _tasks(finished: Finished) -> list[str]:
    """The paper's, then further ones that there are runs of."""
    found = {task for row in finished.rows for task in row.tasks}
    known = [task for task in _COLUMNS if task in _PAPER_TASKS or task in found]
    return known + sorted(found - set(known))


def _cell(runs: Repeats) -> str:
    mark = " †" if runs.first.warnings else ""
    if runs.num_tested:
        share = f" ({runs.num_tested} of {len(runs.runs)} seeds)" if runs.num_tested < len(runs.runs) else ""
        return f"{runs.tested[runs.first.main_metric]}{share}{mark}"
    if runs.first.task in _TESTED:
        return f"not tested{mark}"
    return " / ".join(str(runs.best(name)) for name in runs.metrics) + mark


def _detail(row: Row, task: str, runs: Repeats) -> list[str]:
    settings = runs.first.run
    return [
        row.name,
        _short(task) + (" †" if runs.first.warnings else ""),
        row.origin,
        row.attention,
        f"{runs.first.rows['train']:,}",
        str(runs.first.length),
        ",".join(map(str, runs.seeds)),
        str(settings.batch_size),
        f"{settings.learning_rate:g}",
        str(settings.epochs),
        " / ".join(str(runs.best(name)) for name in runs.metrics),
        " / ".join(str(runs.last(name)) for name in runs.metrics),
        f"{100 * runs.first.exact_share['validation']:.0f} %",
        f"`{runs.command}`",
    ]


def _plain(finished: Finished) -> dict[str, Any]:
    """The same figures as plain data: fractions, but the paper's in percent."""
    rows = []
    for row in finished.rows:
        facts = {key: value for key, value in vars(row).items() if key != "tasks"}
        rows.append(facts | {"tasks": {task: _plain_runs(runs) for task, runs in row.tasks.items()}})
    return {"paper_percent": PAPER, "rows": rows, "unfinished": finished.unfinished}


def _plain_runs(runs: Repeats) -> dict[str, Any]:
    return {
        "main_metric": runs.first.main_metric,
        "best": {name: asdict(runs.best(name)) for name in runs.metrics},
        "last": {name: asdict(runs.last(name)) for name in runs.metrics},
        "test": {name: asdict(spread) for name, spread in runs.tested.items()},
        "settings": {key: value for key, value in runs.first.settings.items() if key != "seed"},
        "seeds": runs.seeds,
        "best_epochs": [run.best.epoch for run in runs.runs],
        "attention": runs.first.attention,
        "rows": runs.first.rows,
        "exact_share": runs.first.exact_share,
        "warnings": runs.first.warnings,
        "command": runs.command,
        "folders": [run.folder for run in runs.runs],
    }


def _short(task: str) -> str:
    return task.removeprefix("glue/") if task.startswith("glue/") else _COLUMNS.get(task, task)


def _markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
