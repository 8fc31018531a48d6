"""What a benchmark leaves: its files, its pictures' canvas, and what it says at its end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.tables import Column, aligned

R = TypeVar("R")


def on_one_line(facts: Mapping[str, Any]) -> str:
    """Such as the machine's facts above a table or a picture."""
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def write_figures(
    folder: Path, name: str, facts: Mapping[str, Any], settings: Mapping[str, Any], rows: Sequence[Any], table: str
) -> None:
    """Write `<name>.json` and `<name>.txt`, both with the facts of the machine.

    Args:
        rows: dataclasses.
    """
    data = {"machine": facts, "settings": settings, "rows": [asdict(row) for row in rows]}
    write_json(folder / f"{name}.json", data)
    write_text(folder / f"{name}.txt", f"{on_one_line(facts)}\n{on_one_line(settings)}\n\n{table}\n")


def measure_and_write(
    folder: Path,
    name: str,
    measure: Callable[[], list[R]],
    table: Callable[[list[R]], str],
    settings: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Measure, write as `write_figures`, and return what to print.

    Args:
        table: of the rows.
        facts: of the machine; None: all.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    rows = measure()
    text = table(rows)
    write_figures(folder, name, machine_facts() if facts is None else facts, settings, rows, text)
    return with_place(text, folder)


def table_of(rows: Iterable[R], *columns: tuple[Column, Callable[[R], str]]) -> list[str]:
    """Lines, the headings first: columns, each with what it shows of a row."""
    return aligned([column for column, _ in columns], [[show(row) for _, show in columns] for row in rows])


def with_place(table: str, folder: Path) -> str:
    """What a command says at its end."""
    return f"{table}\nresults: {folder}"


def new_figure(width: float, height: float) -> Any:
    """A picture of so many inches, for `files.write_figure`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
