"""Every combination of the tasks, lengths, pairs, attentions and seeds that are asked for, in processes side by side;
each cell is written as soon as it is measured.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from nystromformer.benchmark.abilities.learning import HEADS, Cell, Setting, learn
from nystromformer.benchmark.abilities.report import draw_table, tabulate, to_read
from nystromformer.benchmark.abilities.tasks import MOST_PAIRS, TASKS
from nystromformer.benchmark.efficiency.methods import parse_method
from nystromformer.benchmark.pieces import MEASURED, Piece, measure_in_processes
from nystromformer.benchmark.questions.abilities import Abilities
from nystromformer.benchmark.results import on_one_line, with_place
from nystromformer.config import ATTENTIONS, attention_config
from nystromformer.errors import UserError
from nystromformer.files.checked_json import checked, read_checked, write_checked
from nystromformer.files.writing import write_text
from nystromformer.machine import commit_of, machine_facts

logger = logging.getLogger(__name__)

_SHARES: Mapping[str, Mapping[str, int]] = {
    "bigbird": {"block_size": 16},
    "linformer": {"projected_length": 4},
    "local": {"block_size": 16},
    "longformer": {"window": 4},
    "mra": {"block_size": 16},
    "near_far": {"block_size": 16, "num_landmarks": 16, "num_selected": 32},
    "nystrom": {"num_landmarks": 4},
    "performer": {"num_features": 1},
    "reformer": {"chunk_length": 8},
    "sinkhorn": {"block_size": 8},
    "sparse": {"stride": 8},
}
_FIXED: Mapping[str, Mapping[str, int]] = {
    "bigbird": {"num_random_blocks": 1, "num_global_blocks": 1},
    "conv_linformer": {"stride": 4},
    "mra": {"num_blocks": 4},
}
"""Of an attention that is given by its name alone: parameters for which the length is divided by these, and others.
So a query meets about a quarter of the keys, or as many means of them.
"""
_OTHERS = ("near_far,num_blocks=1", "nystrom,num_landmarks=1")
"""Measured, too, where no attention is asked for: one of near_far's keys by search, and a single landmark."""


def measure_abilities(flags: Abilities, folder: Path, command: str) -> str:
    """Measure what the folder does not have yet, and write `abilities.json`, `.md` and a picture of all that it has.

    Args:
        command: what repeats it.

    Raises:
        UserError: as of `list_combinations`; `abilities.json` is invalid.
    """
    settings = list_combinations(flags)
    folder.mkdir(parents=True, exist_ok=True)  # before the hours of measuring
    path = folder / "abilities.json"
    cells, commands, earlier = read_cells(path)
    commands = list(dict.fromkeys([*commands, command]))
    done = {cell.setting.key: cell for cell in cells if cell.solved or cell.setting.seconds >= flags.seconds}
    missing = [setting for setting in settings if setting.key not in done]
    if len(missing) < len(settings):
        logger.info("%d of %d cells are already measured", len(settings) - len(missing), len(settings))
    facts = {key: str(value) for key, value in machine_facts().items()} if missing else earlier
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
    return with_place(f"{to_read(table, '', []).strip()}\n", folder)


def read_cells(path: Path) -> tuple[list[Cell], list[str], dict[str, str]]:
    """The cells of a file, the commands that made them, and the machine's facts; none where there is no file.

    Raises:
        UserError: the file is invalid.
    """
    try:
        data = read_checked(path)
        if data is None:
            return [], [], {}
        return checked(list[Cell], data["cells"]), data["commands"], data["machine"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: expected the cells of an earlier run: {error}. Move the file away") from None


def _learn(commit: str, setting: Setting) -> Sequence[Cell]:
    torch.set_num_threads(1)
    return [learn(setting, commit)]


def _title(setting: Setting) -> str:
    taps = f", convolution {setting.taps}" if setting.taps else ""
    return f"{setting.column}, at {setting.length} tokens, {setting.label}{taps}, seed {setting.seed}"


def list_combinations(flags: Abilities) -> list[Setting]:
    """Each once: all attentions of a task before the next task, all of a seed before the next seed.

    Raises:
        UserError: an unknown task or attention; a parameter that the attention does not have; a length or a number of
            pairs that one of them refuses.
    """
    for task in flags.tasks:
        if task not in TASKS:
            raise UserError(f"--task: expected one or more of {', '.join(TASKS)}, found {task!r}")
    for taps in flags.taps:
        if taps and not taps % 2:
            raise UserError(f"--conv_kernel_size: expected 0 for no convolution, or odd numbers, found {taps}")
    found = [
        Setting(task, length, pairs, _parameters_at(each, length, taps), seed, flags.seconds)
        for seed in range(flags.seeds)
        for length in flags.lengths
        for task in flags.tasks or TASKS
        for pairs in _pairs(flags, task, length)
        for text in flags.attentions or (*ATTENTIONS, *_OTHERS)
        for each in _each_value(text)
        for taps in flags.taps
    ]
    return list({one.key: one for one in found}.values())


def _pairs(flags: Abilities, task: str, length: int) -> Sequence[int | None]:
    if task not in MOST_PAIRS or not flags.pairs:
        return [None]
    most = MOST_PAIRS[task](length)
    if wrong := [each for each in flags.pairs if each > most]:
        raise UserError(f"--pairs: expected numbers from 1 to {most} for {task} at {length} tokens, found {wrong}")
    return flags.pairs


def _each_value(text: str) -> list[str]:
    """`local,block_size=4/8` is `local,block_size=4` and `local,block_size=8`."""
    if text.startswith("{"):
        return [text]
    parts = []
    for part in text.split(","):
        key, sign, values = part.partition("=")
        parts.append([f"{key}={value}" for value in values.split("/")] if sign else [part])
    return [",".join(chosen) for chosen in itertools.product(*parts)]


def _parameters_at(text: str, length: int, taps: int) -> dict[str, Any]:
    """The attention's name, and what it is parameters at the length."""
    given = parse_method(text).config
    assert given is not None
    name = given.name
    own = {key: getattr(given, key) for key in sorted(given.model_fields_set - {"name"})}
    shares = {key: max(1, length // divisor) for key, divisor in _SHARES.get(name, {}).items()}
    parameters = {**shares, **_FIXED.get(name, {}), **own}
    if taps:
        parameters["conv_kernel_size"] = taps
    try:
        config = attention_config(name, **parameters)
    except ValueError as error:
        raise UserError(f"--attention {text} at {length} tokens: {error}") from None
    if reason := config.why_not_length(length):
        raise UserError(f"--attention {text}: {name} does not accept inputs of {length} tokens: {reason}")
    for key, problem in (*config.impossible_at(length), *config.impossible_with(HEADS)):
        wrong = problem.replace("max_seq_len", "--length").replace("num_head ", "the encoder's heads ")
        raise UserError(f"--attention {text} at {length} tokens: {key}: {wrong}")
    return {"name": name, **parameters}
