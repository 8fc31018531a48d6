"""What a question of `run_benchmark.py` has found: records in a file, and the tables and the picture made of them.

A question writes `NAME.json` as it measures. Its module, `benchmark/questions/NAME.py`, makes paragraphs and tables of
that file alone (`blocks`) and, where it has one, a picture (`draw`); `run_benchmark.py again` makes both anew.
"""

import importlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nystromformer.command_line.runtime import this_command
from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, checked, read_checked, write_checked
from nystromformer.files.writing import write_figure, write_text

Record = dict[str, Any]
"""A row of what was measured, plain data."""


@dataclass
class Findings:
    """All that is known of a question so far."""

    __pydantic_config__ = STRICT

    question: str
    settings: dict[str, Any]
    commands: list[str]
    """What makes the records again."""
    machine: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What was not measured, and why."""
    failed: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, question: str, settings: Any, folder: Path) -> "Findings":
        """Of a new measurement by this command with these settings, a dataclass; makes the folder, before the minutes
        that it takes.
        """
        from nystromformer.machine import machine_facts  # imports torch

        folder.mkdir(parents=True, exist_ok=True)
        plain = json.loads(json.dumps(asdict(settings), default=str))
        return cls(question, plain, [this_command()], machine_facts())

    @classmethod
    def read(cls, path: Path) -> "Findings":
        """Of a file."""
        try:
            if (data := read_checked(path)) is None:
                raise UserError(f"{path}: no such file")
            return checked(cls, data)
        except ValueError as error:
            raise UserError(f"{path}: expected the file of a benchmark, found something else ({error})") from None

    def publish(self, path: Path) -> str:
        """Write the file, and what is made of it beside it; returns what to print."""
        write_checked(path, asdict(self))
        module: Any = importlib.import_module(f"nystromformer.benchmark.questions.{self.question}")
        title, *blocks = module.blocks(self)
        for heading, lines in (("Left out", self.left_out), ("Failed", self.failed)):
            blocks += [f"**{heading}**:\n\n" + "\n".join(f"- {line}" for line in lines)] if lines else []
        commands = "\n".join(f"`{command}`" for command in self.commands)
        facts = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        write_text(path.with_suffix(".md"), "\n\n".join([f"# {title}", f"{facts}.", commands, *blocks]) + "\n")
        if (picture := module.draw(self) if hasattr(module, "draw") and self.records else None) is not None:
            picture.suptitle(facts, fontsize=8)
            write_figure(path.with_suffix(".png"), picture, dpi=110)
        return "\n\n".join([*blocks, f"results: {path.parent}"])


def new_figure(width: float, height: float) -> Any:
    """A picture of so many inches, for `files.write_figure`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
