"""What a benchmark leaves: its files, and what it says at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nystromformer.files import write_json, write_text


def write_figures(
    folder: Path, name: str, facts: Mapping[str, Any], settings: Mapping[str, Any], rows: Sequence[Any], table: str
) -> str:
    """Write `<name>.json` and `<name>.txt`, both with the facts of the machine; returns these on one line.

    Args:
        rows: dataclasses.
    """
    data = {"machine": facts, "settings": settings, "rows": [asdict(row) for row in rows]}
    write_json(folder / f"{name}.json", data)
    header, chosen = (", ".join(f"{key} {value}" for key, value in part.items()) for part in (facts, settings))
    write_text(folder / f"{name}.txt", f"{header}\n{chosen}\n\n{table}\n")
    return header


def told(table: str, folder: Path) -> str:
    """What a command says at its end."""
    return f"{table}\nresults: {folder}"
