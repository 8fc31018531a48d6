"""`run_export.py convert`: an experiment with another attention in softmax's place, trained to be like its source."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import Signals
from typing import Any

import torch

import nystromformer
from nystromformer.config import ExperimentConfig
from nystromformer.config.attention_text import parse_attention
from nystromformer.data.tokenizer import sha256_as_saved
from nystromformer.errors import UserError
from nystromformer.exchange.convert.comparison import compare
from nystromformer.exchange.convert.original import build, converted_config, has_head, open_original
from nystromformer.exchange.convert.report import report
from nystromformer.exchange.convert.rows import TextRows, read_text
from nystromformer.exchange.convert.stages import Goal, Stage
from nystromformer.exchange.folders import check_free, write_folder
from nystromformer.exchange.import_model import HEADLESS, initial_checkpoint, write_experiment
from nystromformer.exchange.open_model import Opened
from nystromformer.exchange.settings import Conversion
from nystromformer.files.checked_json import read_checked, write_checked
from nystromformer.files.writing import sha256_of, write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.run import held_folder, newest, resume
from nystromformer.training import Device, Group, Trainer, TrainingSettings, choose_device
from nystromformer.training.run_record import LOCK_FILE, id_of

logger = logging.getLogger(__name__)

WORK = ".conversion"
"""What the folder beside the new experiment is called behind its name, which holds the stages until all is done."""
RECORD = "conversion.json"
_WARM_UP = 0.05


def convert_model(
    source: Path, dest: Path, asked: Conversion, device_name: str, command: str, force: bool
) -> tuple[str, Signals | None]:
    """Convert; returns what to say, and the signal that stopped it, if one did.

    Stopped and started again with the same settings, it continues.

    Args:
        dest: the experiment folder to make, which appears when all is done; until then there is `DEST.conversion`.
        command: what repeats it.

    Raises:
        UserError: a source, an attention, a text or a goal that does not fit; a folder that is not empty; an unfinished
            conversion with other settings beside it.
    """
    attention, _ = parse_attention(asked.attention)
    if asked.end_to_end not in (None, "hidden", "loss"):
        raise UserError(f"--end_to_end: expected hidden or loss, found {asked.end_to_end!r}")
    if asked.end_to_end is None and asked.end_to_end_steps is not None:
        raise UserError("--end_to_end_steps: expected --end_to_end with it")
    if asked.end_to_end is not None and not _steps_of(asked)[1]:
        raise UserError(f"--end_to_end {asked.end_to_end}: expected --end_to_end_steps or --steps of at least 1")
    check_free(dest, force, source)
    machine = machine_facts()
    original = open_original(source)
    assert original.tokenizer is not None, "it was checked"
    if asked.end_to_end == "loss" and not has_head(original):
        raise UserError(f"--end_to_end loss: {source} has no head for masked tokens: use --end_to_end hidden")
    new, old = converted_config(original, attention, asked.overrides or [])
    length = new.model.max_seq_len if asked.length is None else asked.length
    _check_length(asked, new, length)
    student, notes = build(original, new)
    teacher, _ = build(original, old)
    text = read_text(
        asked.text,
        asked.text_column,
        original.tokenizer,
        original.content["tokenizer"],
        length,
        asked.least_tokens,
        asked.held_out,
        asked.seed,
    )
    device = choose_device(device_name, new.model.mixed_precision)
    facts = _facts(original, new, asked, text, length)
    work = dest.resolve().with_name(f"{dest.resolve().name}{WORK}")
    with ExitStack() as stack:
        _begin(work, facts, force)
        stack.enter_context(held_folder(work, Group()))
        stack.enter_context(device.products(new.model.transformer_dim))
        for model in (student, teacher):
            model.to(device.device)
        done, stopped_by = _train(student, teacher, asked, text, device, work, facts)
        if stopped_by is not None:
            return f"stopped; the same command continues from {work}", stopped_by
        data = {"machine": machine, "command": command, "source": source.name, "notes": notes, **done}
        data |= {"settings": facts["conversion"]}
        page = report(data)

        def write(folder: Path) -> None:
            _write(folder, original, new, student, facts)
            write_json(folder / RECORD, data)
            write_text(folder / RECORD.replace(".json", ".md"), page)

        write_folder(dest, write, force, source)
    shutil.rmtree(work)
    return f"{page}\nconverted: {dest}", None


def _steps_of(asked: Conversion) -> tuple[int, int]:
    """Of the two stages."""
    return asked.steps, asked.steps if asked.end_to_end_steps is None else asked.end_to_end_steps


def _stages(asked: Conversion) -> list[tuple[Goal, int]]:
    """The goals and their steps, in order."""
    goals: tuple[Any, ...] = ("layers", asked.end_to_end)
    stages = zip(goals, _steps_of(asked), strict=True)
    return [(goal, steps) for goal, steps in stages if goal is not None and steps]


def _check_length(asked: Conversion, config: ExperimentConfig, length: int) -> None:
    if not 3 <= length <= config.model.max_seq_len:
        raise UserError(
            f"--length: expected from 3 to {config.model.max_seq_len} tokens, the new model's max_seq_len, found "
            f"{length}: --set model.max_seq_len=N extends its positions"
        )
    if asked.least_tokens > length:
        raise UserError(f"--least_tokens: expected at most {length}, the tokens of a row, found {asked.least_tokens}")
    for attention in config.model.attentions:
        if reason := attention.why_not_length(length):
            raise UserError(f"--attention {asked.attention}: it does not accept rows of {length} tokens: {reason}")


def _facts(original: Opened, new: ExperimentConfig, asked: Conversion, text: TextRows, length: int) -> dict[str, Any]:
    """What decides the weights, as plain data."""
    # Which weights are converted: a file, or those of a foreign folder.
    stamp = sha256_of(original.path) if original.path.is_file() else json.dumps(original.content["imported"]["files"])
    said = {key: value for key, value in asdict(asked).items() if key not in ("text", "overrides")}
    return {
        "version": nystromformer.__version__,
        "config": new.model_dump(mode="json", by_alias=True),
        "dataset": text.fingerprint,
        "tokenizer": "",
        "conversion": said | {"text": asked.text.name, "length": length, "source": stamp},
    }


def _begin(work: Path, facts: Mapping[str, Any], force: bool) -> None:
    """Make the folder, or check that it holds this conversion."""
    record, decides = work / RECORD, {"id": id_of(facts)}
    if os.path.lexists(work):
        try:
            found = read_checked(record)
        except ValueError as error:
            raise UserError(f"{record}: {error}: remove {work} to start the conversion again") from None
        if found == decides:
            return
        others = [each.name for each in work.iterdir() if each.suffix != ".tmp" and each.name != LOCK_FILE]
        if found is None and others:
            raise UserError(
                f"{work}: expected nothing, or an unfinished conversion, found something else: move it away"
            )
        if found is not None and not force:
            raise UserError(
                f"{work}: holds an unfinished conversion with other settings: choose another folder, or give --force "
                "to start again"
            )
        with held_folder(work, Group()):  # no other command is at work in it
            shutil.rmtree(work)
    work.mkdir(parents=True)
    write_checked(record, decides)


def _train(
    student: PretrainingModel,
    teacher: PretrainingModel,
    asked: Conversion,
    text: TextRows,
    device: Device,
    work: Path,
    facts: dict[str, Any],
) -> tuple[dict[str, Any], Signals | None]:
    """All stages; returns the figures before, along and after."""
    before = work / "before.json"
    try:
        figures = read_checked(before)
    except ValueError:  # damaged
        figures = None
    if figures is None:
        first = compare(student, teacher, text, asked.rows, device)
        figures = first.as_data()
        write_checked(before, figures)
        logger.info("before: %s", {key: round(value, 4) for key, value in first.metrics().items()})
    curves: dict[str, Any] = {}
    for goal, steps in _stages(asked):
        stage = Stage(student, teacher, goal, text, asked.rows, asked.seed, device)
        folder = work / goal
        folder.mkdir(exist_ok=True)
        trainer = Trainer(stage, _settings(asked, goal, steps), folder, device, facts)
        saved = newest(folder, Group())
        if saved is not None:
            resume(trainer, saved)
        if saved is None or not saved.ends(trainer.settings):
            logger.info("training towards the source's %s: %d steps", _GOALS[goal], steps)
            if (stopped_by := trainer.run()) is not None:
                return {}, stopped_by
        curves[goal] = trainer.state.history
    after = compare(student, teacher, text, asked.rows, device).as_data() if curves else figures
    return {"before": figures, "curves": curves, "after": after}, None


_GOALS = {"layers": "attentions", "hidden": "hidden vectors", "loss": "loss on masked tokens"}


def _settings(asked: Conversion, goal: Goal, steps: int) -> TrainingSettings:
    return TrainingSettings(
        num_steps=steps,
        steps_per_epoch=min(steps, asked.validate_every),
        steps_per_report=min(steps, asked.validate_every),
        learning_rate=asked.learning_rate if goal == "layers" else asked.end_to_end_learning_rate,
        warmup_steps=max(1, round(_WARM_UP * steps)),
        weight_decay=0.0,
        betas=(0.9, 0.999),
        eps=1e-8,
        max_grad_norm=1.0,
        seed=asked.seed,
        minutes_per_checkpoint=10.0,
        keep_checkpoints=1,
        keep_epochs=1,
    )


def _write(
    folder: Path, original: Opened, config: ExperimentConfig, student: PretrainingModel, facts: dict[str, Any]
) -> None:
    """Write the experiment."""
    imported = {"kind": "converted", "files": {}, HEADLESS: not has_head(original)}
    weights = {
        # Random numbers' seeds stay integers.
        name: weight.detach().cpu().to(torch.float32 if weight.is_floating_point() else weight.dtype)
        for name, weight in student.state_dict().items()
    }
    facts = facts | {"tokenizer": sha256_as_saved(original.tokenizer), "imported": imported}
    write_experiment(folder, config, original.tokenizer, initial_checkpoint(facts, weights))
