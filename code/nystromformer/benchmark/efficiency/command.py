"""The command: settings, measurement, files."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nystromformer.benchmark.attention import check_memory
from nystromformer.benchmark.efficiency.measure import Found, measure
from nystromformer.benchmark.efficiency.methods import CONTROL, Method, chosen_methods
from nystromformer.benchmark.efficiency.parts import AttentionPart, EncoderPart, Part
from nystromformer.benchmark.efficiency.picture import draw
from nystromformer.benchmark.efficiency.report import as_data, csv_text, for_terminal, to_read
from nystromformer.benchmark.results import on_one_line
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.files import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.resources import check_room, free_memory
from nystromformer.training.device import choose_device

logger = logging.getLogger(__name__)

PARTS = ("attention", "encoder")


@dataclass(frozen=True)
class Efficiency:
    """What is measured.

    Raises:
        UserError: unknown parts, or sizes that cannot be.
    """

    attentions: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    batch: int = 1
    heads: int = 12
    head_dim: int = 64
    encoder_lengths: tuple[int, ...] = (1024, 2048, 3072, 4096)
    encoder_batch: int = 8
    encoder_layers: int = 2
    encoder_heads: int = 2
    encoder_width: int = 64
    repeats: int = 9
    threads: int = 2
    budget: float = 1800.0

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise UserError(f"--parts: expected some of {','.join(PARTS)}, found {part!r}")
        for flag, lengths in (("--lengths", self.lengths), ("--encoder_lengths", self.encoder_lengths)):
            if wrong := [length for length in lengths if not 1 <= length <= MOST]:
                raise UserError(f"{flag}: expected numbers from 1 to {MOST:,}, found {wrong}")
        if self.encoder_width % self.encoder_heads:
            raise UserError(
                f"--encoder_width: expected a multiple of --encoder_heads = {self.encoder_heads}, found "
                f"{self.encoder_width}"
            )


def measure_efficiency(settings: Efficiency, folder: Path, command: str) -> str:
    """Measure, write `efficiency.json`, `.csv`, `.md` and a picture of each part, and return what to print.

    The files are written anew after each length, so that what was measured is there whatever stops the rest.

    Args:
        command: what repeats the measurement.
    """
    methods = [*chosen_methods(settings.attentions), Method(CONTROL, None)]
    torch.set_num_threads(settings.threads)
    if "attention" in settings.parts:
        check_memory(settings.batch, settings.lengths, settings.heads * settings.head_dim)
    if "encoder" in settings.parts:
        size = 4.0 * settings.encoder_batch * max(settings.encoder_lengths) * settings.encoder_width
        check_room(
            f"--encoder_batch {settings.encoder_batch} --encoder_lengths {max(settings.encoder_lengths)}: a step",
            {"what each layer keeps": 8 * settings.encoder_layers * size},
            _free() * 2**20,
            "on the GPU" if torch.cuda.is_available() else "on this machine",
            "lower one of the two",
        )
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    facts, found = machine_facts(), Found()
    for name in settings.parts:
        part, lengths = _part(settings, name)
        seconds = settings.budget / len(settings.parts)
        for more in measure(part, methods, lengths, settings.repeats, seconds, _free()):
            found.cells += more.cells
            found.left_out += more.left_out
            if found.cells:
                _write(settings, found, folder, facts, command)
    names = ", ".join(f"efficiency{ending}" for ending in (".json", ".csv", ".md"))
    return f"{for_terminal(found)}\n\nresults: {folder} ({names}, and a picture of each part)"


def _part(settings: Efficiency, name: str) -> tuple[Part, tuple[int, ...]]:
    device = choose_device("auto", mixed_precision=False)
    if name == "attention":
        return AttentionPart(settings.batch, settings.heads, settings.head_dim, device.device), settings.lengths
    sizes = (settings.encoder_layers, settings.encoder_heads, settings.encoder_width)
    return EncoderPart(settings.encoder_batch, *sizes, device), settings.encoder_lengths


def _free() -> float:
    """MiB."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    device = torch.device("cuda") if torch.cuda.is_available() else None
    return free_memory(device) / 2**20


def _write(settings: Efficiency, found: Found, folder: Path, facts: Mapping[str, Any], command: str) -> None:
    said = asdict(settings) | {"command": command}
    write_json(folder / "efficiency.json", {"machine": facts, "settings": said} | as_data(found))
    write_text(folder / "efficiency.csv", csv_text(found))
    on = on_one_line(facts)
    header = [
        "# What every attention costs",
        f"float32; the attention alone: batch {settings.batch}, {settings.heads} heads of {settings.head_dim}; the "
        f"encoder: batch {settings.encoder_batch}, {settings.encoder_layers} layers of width {settings.encoder_width}, "
        f"{settings.encoder_heads} heads; no convolution; settings are the defaults unless named. Medians of up to "
        f"{settings.repeats} measurements, all methods of a length in turn in one process. {on}.",
        f"`{command}`",
    ]
    write_text(folder / "efficiency.md", to_read(found, header))
    for part in settings.parts:
        if any(cell.part == part for cell in found.cells):
            draw(found, part, folder / f"efficiency-{part}.png", on)
