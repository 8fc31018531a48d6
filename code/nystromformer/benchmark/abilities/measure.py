"""`run_benchmark.py abilities`: cells in processes side by side, each kept as soon as it is there."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from nystromformer.benchmark.abilities.combinations import combinations
from nystromformer.benchmark.abilities.learning import Cell, Setting, learn
from nystromformer.benchmark.abilities.report import budgets, draw_budgets, draw_table, tabulate, to_read
from nystromformer.benchmark.pieces import MEASURED, Piece, measure_in_processes
from nystromformer.benchmark.questions.abilities import Abilities
from nystromformer.benchmark.results import on_one_line, with_place
from nystromformer.checked_json import checked, read_checked, write_checked
from nystromformer.errors import UserError
from nystromformer.files import write_text
from nystromformer.machine import commit_of, machine_facts

logger = logging.getLogger(__name__)

FILE = "abilities.json"


def measure_abilities(flags: Abilities, folder: Path, command: str) -> str:
    """Measure what the folder does not have yet, and write `abilities.json`, `.md` and pictures of all that it has.

    Args:
        command: what repeats it.

    Raises:
        UserError: as of `combinations`; `abilities.json` is invalid.
    """
    settings = combinations(flags)
    folder.mkdir(parents=True, exist_ok=True)  # before the hours of measuring
    path = folder / FILE
    cells, commands = read_cells(path)
    commands = list(dict.fromkeys([*commands, command]))
    facts = {key: value for key, value in machine_facts().items() if key not in ("commit", "threads")}
    done = {cell.setting.key: cell for cell in cells if cell.solved or cell.setting.seconds >= flags.seconds}
    missing = [setting for setting in settings if setting.key not in done]
    if len(missing) < len(settings):
        logger.info("%d of %d cells are there already", len(settings) - len(missing), len(settings))
    commit = commit_of(Path(__file__).parent)
    pieces = [Piece("abilities", _title(setting), 0.0, _learn, (setting,)) for setting in missing]
    failed = []
    for number, outcome in enumerate(measure_in_processes(pieces, commit, flags.workers), start=1):
        if outcome.status != MEASURED:
            failed.append(f"{outcome.title}: {outcome.reason}")
            continue
        (cell,) = outcome.rows
        # One that was given less time before makes room.
        cells = [*(each for each in cells if each.setting.key != cell.setting.key), cell]
        write_checked(path, {"machine": facts, "commands": commands, "cells": [asdict(each) for each in cells]})
        result = f"{100 * cell.accuracy:.1f} % after {cell.steps} steps, {cell.seconds:.0f} s"
        logger.info("%d of %d: %s: %s", number, len(missing), outcome.title, result)
    if failed:
        raise UserError("\n".join([*failed, "Start the command again: it goes on"]))
    header, table = on_one_line(facts), tabulate(cells)
    write_text(folder / "abilities.md", to_read(table, header, commands))
    draw_table(table, folder / "abilities.png", header)
    if budgets(table):
        draw_budgets(table, folder / "budgets.png", header)
    return with_place(f"{to_read(table, '', []).strip()}\n", folder)


def read_cells(path: Path) -> tuple[list[Cell], list[str]]:
    """The cells of a file and the commands that made them; none where there is no file.

    Raises:
        UserError: the file is invalid.
    """
    try:
        data = read_checked(path)
        if data is None:
            return [], []
        return checked(list[Cell], data["cells"]), checked(list[str], data["commands"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: expected the cells of an earlier run: {error}. Move the file away") from None


def _learn(commit: str, setting: Setting) -> Sequence[Cell]:
    torch.set_num_threads(1)
    return [learn(setting, commit)]


def _title(setting: Setting) -> str:
    pairs = "" if setting.pairs is None else f", {setting.pairs} pairs"
    taps = f", convolution {setting.taps}" if setting.taps else ""
    return f"{setting.task} at {setting.length} tokens{pairs}, {setting.label}{taps}, seed {setting.seed}"
