"""What a benchmark leaves: its files, its pictures' canvas, and what it says at its end."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts

R = TypeVar("R")


def on_one_line(facts: Mapping[str, Any]) -> str:
    """Such as the machine's facts above a table or a picture."""
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def measure_and_write(
    folder: Path,
    name: str,
    measure: Callable[[], list[R]],
    table: Callable[[list[R]], str],
    settings: Mapping[str, Any],
) -> str:
    """Measure, write `<name>.json` and `<name>.md`, both with the facts of the machine, and return what to print.

    Args:
        measure: gives dataclasses.
        table: of these, in Markdown.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    rows, facts = measure(), machine_facts()
    text = table(rows)
    data = {"machine": facts, "settings": settings, "rows": [asdict(row) for row in rows]}  # type: ignore[call-overload]
    write_json(folder / f"{name}.json", data)
    write_text(folder / f"{name}.md", f"{on_one_line(facts)}\n\n{on_one_line(settings)}\n\n{text}\n")
    return with_place(text, folder)


def with_place(table: str, folder: Path) -> str:
    """What a command says at its end."""
    return f"{table}\nresults: {folder}"


def new_figure(width: float, height: float) -> Any:
    """A picture of so many inches, for `files.write_figure`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
