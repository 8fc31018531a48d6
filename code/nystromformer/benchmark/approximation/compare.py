"""`run_benchmark.py approximation`: what is computed, and the files."""

import logging
from dataclasses import asdict
from pathlib import Path

import torch

from nystromformer.benchmark.approximation.candidates import choose_candidates
from nystromformer.benchmark.approximation.errors import (
    Inverse,
    forward_times,
    nystrom_errors,
    output_errors,
    ridge_name,
)
from nystromformer.benchmark.approximation.losses import check_is_softmax, score_untrained
from nystromformer.benchmark.approximation.report import Findings, to_read
from nystromformer.benchmark.checkpoints import capture_inputs, draw_like, open_one_checkpoint
from nystromformer.benchmark.questions.approximation import Approximation
from nystromformer.benchmark.results import on_one_line, with_place
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedScoring
from nystromformer.tasks.pretraining.validation import load_checkpoint
from nystromformer.training.device import Device

logger = logging.getLogger(__name__)


def measure_approximation(
    experiment: Experiment,
    dataset: Path | None,
    device: Device,
    settings: Approximation,
    folder: Path,
    command: str,
) -> str:
    """Compute all, write `approximation.json` and `.md`, and return what to print.

    Args:
        dataset: the rows; None: config.json's `data_folder`.
        command: what repeats it.

    Raises:
        UserError: no such checkpoint, attention or rows; landmarks that the rows are too short for.
    """
    torch.set_num_threads(settings.threads)
    opened = open_one_checkpoint(experiment, dataset, device, settings.checkpoint)
    length = opened.dataset.length
    if wrong := [count for count in settings.landmarks if count >= length]:
        raise UserError(f"--landmarks: expected fewer than the {length} tokens of a row, found {wrong}")
    if "loss" in settings.parts:
        check_is_softmax(opened.config.model, experiment.config_file)
    chosen, missing = choose_candidates(settings.attentions, settings.landmarks, length)
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of computing
    facts = machine_facts()
    header = f"{experiment.name}, {opened.checkpoints[0].stem}; {on_one_line(facts)}"
    found = Findings(left_out=missing)
    described = asdict(settings) | {
        "model": str(experiment.folder),
        "checkpoint": opened.checkpoints[0].name,
        "dataset": opened.dataset.fingerprint,
        "length": length,
        "command": command,
    }

    def write() -> None:
        write_json(folder / "approximation.json", {"machine": facts, "settings": described} | asdict(found))
        write_text(folder / "approximation.md", to_read(found, _header(opened, settings, header, command)))

    if "errors" in settings.parts:
        model, _ = load_checkpoint(experiment, opened.checkpoints[0], device)
        layers = capture_inputs(opened, model, settings.rows)
        layers.append(draw_like(layers[0]))
        found.forward_ms = forward_times(chosen, layers[0], settings.repeats)
        found.output_errors += output_errors(chosen, layers)
        write()
        if any(one.config.name == "nystrom" for one in chosen):
            inverses: list[Inverse] = [*settings.iterations, *map(ridge_name, settings.ridges)]
            for inputs in layers:
                found.nystrom_errors += nystrom_errors([inputs], settings.landmarks, inverses)
                logger.info("%s: landmarks and inverses compared", inputs.name)
            write()
    if "loss" in settings.parts:
        found.losses += score_untrained(opened, chosen, settings.score_rows)
        write()
    return with_place(to_read(found, []).strip() + "\n", folder)


def _header(opened: OpenedScoring, settings: Approximation, on: str, command: str) -> list[str]:
    return [
        "# How far from softmax",
        f"Queries, keys and values of `{opened.experiment.name}`, {opened.checkpoints[0].stem}, over "
        f"{settings.rows} validation rows of {opened.dataset.length} tokens, and random (standard normal) ones of that "
        f"shape; losses on {settings.score_rows} validation rows. {on}.",
        f"`{command}`",
    ]
