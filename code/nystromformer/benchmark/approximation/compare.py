"""`run_benchmark.py approximation`: how far attentions are from softmax on a checkpoint's queries, keys and values, and
what that costs the checkpoint's loss.

Shapes: B rows, H heads, N tokens, D head dim.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

from nystromformer.attention import Attention, create_attention
from nystromformer.benchmark.approximation.candidates import choose_candidates
from nystromformer.benchmark.checkpoints import RANDOM, Inputs, capture_inputs, draw_like, open_one_checkpoint
from nystromformer.benchmark.questions.approximation import Approximation
from nystromformer.benchmark.results import on_one_line, with_place
from nystromformer.benchmark.timing import Timing, time_side_by_side
from nystromformer.config import AttentionConfig, ModelConfig, attention_config
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.model import PretrainingModel
from nystromformer.tables import markdown
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.tasks.pretraining.validation import OpenedScoring, load_checkpoint
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.device import Device

logger = logging.getLogger(__name__)

SOFTMAX = "softmax"


@dataclass(frozen=True)
class Loss:
    """Of a checkpoint with one attention in all layers, untrained."""

    method: str
    mlm_loss: float
    mlm_accuracy: float


@dataclass
class Findings:
    """What there is so far; as in `approximation.json`."""

    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    """By method and layer: ‖out − softmax's‖ / ‖softmax's‖ over all rows and heads (Frobenius)."""
    forward_ms: Mapping[str, Timing] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Attentions that were not tried, and why."""


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
    length, weights = opened.dataset.length, opened.checkpoints[0]
    if wrong := [count for count in settings.landmarks if count >= length]:
        raise UserError(f"--landmarks: expected fewer than the {length} tokens of a row, found {wrong}")
    if "loss" in settings.parts:
        check_is_softmax(opened.config.model, experiment.config_file)
    chosen, missing = choose_candidates(settings.attentions, settings.landmarks, length)
    chosen = {SOFTMAX: attention_config(SOFTMAX)} | chosen
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of computing
    facts, found = machine_facts(), Findings(left_out=missing)
    header = [
        "# How far from softmax",
        f"Queries, keys and values of `{experiment.name}`, {weights.stem}, over {settings.rows} validation rows of "
        f"{length} tokens, and random (standard normal) ones of that shape; losses on {settings.score_rows} validation "
        f"rows. {on_one_line(facts)}.",
        f"`{command}`",
    ]
    described = {"model": str(experiment.folder), "checkpoint": weights.name, "length": length, "command": command}
    described |= asdict(settings) | {"dataset": opened.dataset.fingerprint}
    if "errors" in settings.parts:
        model, _ = load_checkpoint(opened, weights)
        layers = capture_inputs(opened, model, settings.rows)
        found.forward_ms = forward_times(chosen, layers[0], settings.repeats)
        for inputs in [*layers, draw_like(layers[0])]:
            for name, error in output_errors(chosen, inputs).items():
                found.errors.setdefault(name, {})[inputs.name] = error
            logger.info("%s compared", inputs.name)
    if "loss" in settings.parts:
        found.losses += score_untrained(opened, chosen, settings.score_rows)
    write_json(folder / "approximation.json", {"machine": facts, "settings": described} | asdict(found))
    write_text(folder / "approximation.md", to_read(found, header))
    return with_place(to_read(found, []), folder)


def core_of(config: AttentionConfig, inputs: Inputs) -> Attention:
    """The module, for inputs of this shape; random numbers are the same for all layers."""
    torch.manual_seed(0)
    _, H, N, D = inputs.q.shape
    return create_attention(config, num_heads=H, head_dim=D, max_length=N).to(inputs.q.device).eval()


@torch.no_grad()
def output_errors(candidates: Mapping[str, AttentionConfig], inputs: Inputs) -> dict[str, float]:
    """Of each candidate on a layer's input."""
    arguments = inputs.q, inputs.k, inputs.v, inputs.mask
    wanted = core_of(attention_config(SOFTMAX), inputs)(*arguments)
    return {
        name: float((core_of(config, inputs)(*arguments) - wanted).norm() / wanted.norm())
        for name, config in candidates.items()
    }


@torch.no_grad()
def forward_times(candidates: Mapping[str, AttentionConfig], inputs: Inputs, repeats: int) -> Mapping[str, Timing]:
    """Milliseconds of a forward pass over one layer's input, all in turn."""
    arguments = inputs.q, inputs.k, inputs.v, inputs.mask
    works = {name: partial(core_of(config, inputs), *arguments) for name, config in candidates.items()}
    return time_side_by_side(works, repeats)


def check_is_softmax(config: ModelConfig, path: Path) -> None:
    """Check that there is a softmax to replace, and one convolution, which what replaces it has, too.

    Raises:
        UserError: an attention of the model is another.
    """
    found = {(attention.name, attention.conv_kernel_size) for attention in config.attentions}
    if len(found) > 1 or {name for name, _ in found} != {SOFTMAX}:
        shown = ", ".join(f"{name} with a convolution of {taps}" for name, taps in found)
        raise UserError(
            f"{path}: expected softmax in all layers, with the same convolution, found {shown}; --parts errors "
            "accepts any model"
        )


def score_untrained(opened: OpenedScoring, candidates: Mapping[str, AttentionConfig], rows: int) -> Iterator[Loss]:
    """Losses of a checkpoint with each candidate in softmax's place."""
    (path,) = opened.checkpoints
    weights = read_checkpoint(path)["model"]
    before = opened.config.model
    data = before.model_dump(mode="json", by_alias=True) | {"num_landmarks": None, "conv_kernel_size": None}
    taps = before.attentions[0].conv_kernel_size
    for name, attention in candidates.items():
        torch.manual_seed(0)
        config = ModelConfig.model_validate(
            data | {"attn_type": attention.model_dump(mode="json") | {"conv_kernel_size": taps}}
        )
        model = PretrainingModel(config, opened.config.pretraining_setting.objectives)
        # What they draw themselves, such as random features, is not the checkpoint's.
        model.load_state_dict(model.state_dict() | weights)
        model.to(opened.device.device).eval()
        with torch.no_grad(), opened.device.autocast():
            metrics = Pretraining(model, opened.config, opened.dataset, opened.device).score(rows)
        loss = metrics.get("mlm_loss", metrics["loss"])
        logger.info("%s: loss %.4f", name, loss)
        yield Loss(name, loss, metrics["mlm_accuracy"])


def to_read(found: Findings, header: Sequence[str]) -> str:
    """Markdown.

    Args:
        header: paragraphs on what was measured, and on what.
    """
    blocks = list(header)
    if found.errors:
        lines = []
        for name, errors in found.errors.items():
            mean = fmean(error for layer, error in errors.items() if layer != RANDOM)
            time = found.forward_ms[name]
            shown = f"{time} ({time.median / found.forward_ms[SOFTMAX].median:.2f})"
            lines.append([name, shown, *(f"{error:.3f}" for error in (mean, *errors.values()))])
        blocks += [
            "‖out − softmax's‖ / ‖softmax's‖; time of a forward pass over a layer's input, in brackets over softmax's.",
            markdown(["attention", "ms", "mean over layers", *found.errors[SOFTMAX]], lines),
        ]
    if found.left_out:
        blocks.append("Left out: " + "; ".join(f"`{name}` ({why})" for name, why in found.left_out.items()) + ".")
    if found.losses:
        lines = [[each.method, f"{each.mlm_loss:.3f}", f"{100 * each.mlm_accuracy:.2f}"] for each in found.losses]
        heading = ["attention in softmax's place, untrained", "loss", "masked-token accuracy, %"]
        blocks.append(markdown(heading, lines))
    return "\n\n".join(blocks) + "\n"
