"""`run_benchmark.py approximation`: how far attentions are from softmax on the queries, keys and values of a checkpoint
or of a file, and what they cost a checkpoint's loss.

Shapes: B rows, H heads, N tokens, D head dim.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import Attention, AttentionMask, create_attention
from nystromformer.benchmark.checkpoints import watch_attention
from nystromformer.benchmark.findings import Findings, Record, new_figure
from nystromformer.benchmark.methods import EQUAL_KEYS, expand, parse_at
from nystromformer.benchmark.questions.shipped import Approximation
from nystromformer.benchmark.timing import quartiles, repeats_at, time_side_by_side
from nystromformer.config import ATTENTIONS, AttentionConfig, ModelConfig, attention_config
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel
from nystromformer.tables import markdown
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.run import run_device
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.tasks.pretraining.validation import OpenedScoring, open_scoring
from nystromformer.training import Group
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.device import choose_device

logger = logging.getLogger(__name__)

SOFTMAX, RANDOM = "softmax", "random"
USUAL = (
    *("bigbird,block_size=16/32/64,num_global_blocks=1", "local,block_size=16/32/128", "longformer,window=32/64/256"),
    *("mra,num_blocks=2/4/8", "near_far,num_landmarks=16,num_selected=0/16/32/64", "performer,num_features=64/256"),
    *("nystrom,num_landmarks=8/16/32/128/256", "nystrom,landmarks=strided/kmeans,num_landmarks=16/64/256"),
    *("sinkhorn,block_size=16/32/64/128", "sparse,stride=8/16/32"),
    *EQUAL_KEYS,
)
"""What is tried where no attention is asked for; of those that are not here, the defaults."""


@dataclass(frozen=True)
class Inputs:
    """What one attention sees."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: AttentionMask | None


def measure_tensors(settings: Approximation, device: str, folder: Path) -> str:
    """Errors on the queries, keys and values of files; writes `approximation.json`, `.md` and `.png`.

    Raises:
        UserError: a file without such tensors; an unknown attention, or one that cannot be tried.
    """
    at = choose_device(device, mixed_precision=False).device
    sources = {path.stem: _read_tensors(path, at) for path in settings.tensors}
    chosen = {name: choose_candidates(settings.attentions, inputs[0].q.shape[2]) for name, inputs in sources.items()}
    found = Findings.begin("approximation", settings, folder)
    for name, inputs in sources.items():
        _measure(name, inputs[0].q.shape[2], inputs, *chosen[name], settings, found)
    return found.publish(folder / "approximation.json")


def measure_checkpoint(
    settings: Approximation, model: Path, overrides: Sequence[str], dataset: Path | None, device: str, folder: Path
) -> str:
    """The same of a checkpoint's attentions over validation rows, and its loss with each attention in softmax's place.

    Args:
        dataset: the rows; None: config.json's `data_folder`.

    Raises:
        UserError: no such checkpoint or rows, an unknown attention, or one that cannot be tried.
    """
    experiment = open_experiment(model, overrides)
    at = run_device(experiment, device, Group())
    opened = open_scoring(experiment, dataset, at, "last")
    if "loss" in settings.parts:
        check_is_softmax(opened.config.model, experiment.config_file)
    name, length = f"{experiment.name}, {opened.checkpoints[0].stem}", opened.dataset.length
    candidates, missing = choose_candidates(settings.attentions, length)  # before the minutes of computing
    inputs = []
    if "errors" in settings.parts:
        inputs = capture_inputs(opened, settings.rows)
        inputs.append(draw_like(inputs[0]))
    found = Findings.begin("approximation", settings, folder)
    _measure(name, length, inputs, candidates, missing, settings, found)
    if "loss" in settings.parts:
        records = {record["method"]: record for record in found.records}
        for method, loss in score_untrained(opened, candidates, settings.score_rows):
            records[method] |= loss
    return found.publish(folder / "approximation.json")


def _measure(
    source: str,
    length: int,
    inputs: Sequence[Inputs],
    candidates: Mapping[str, AttentionConfig],
    missing: Mapping[str, str],
    settings: Approximation,
    found: Findings,
) -> None:
    """Errors and times on inputs of one length, such as those of all layers of a checkpoint."""
    torch.set_num_threads(settings.threads)
    records: dict[str, Record] = {name: {"source": source, "tokens": length, "method": name} for name in candidates}
    times = forward_times(candidates, inputs[0], settings.repeats) if inputs else {}
    for name, time in times.items():
        records[name] |= {"forward": asdict(time), "errors": {}}
    for each in inputs:
        for name, error in output_errors(candidates, each).items():
            records[name]["errors"][each.name] = error
        logger.info("%s, %s compared", source, each.name)
    found.records += records.values()
    found.left_out += [f"{name}, {length} tokens: {why}" for name, why in missing.items()]


def _read_tensors(path: Path, device: torch.device) -> list[Inputs]:
    """A file's `q`, `k`, `v` and, where tokens are masked, `mask`; or several such sets, as `NAME.q` and so on."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path, str(device))
    except (OSError, SafetensorError) as error:
        raise UserError(f"--tensors {path}: expected a safetensors file ({error})") from None
    sets: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        name, _, part = key.rpartition(".")
        sets[name][part] = tensor
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    (B, H, N, D), *_ = [*(shape for shape in shapes.values() if len(shape) == 4), (0, 0, 0, 0)]
    wanted: dict[str, tuple[int, ...]] = {**dict.fromkeys("qkv", (B, H, N, D)), "mask": (B, N)}
    inputs = []
    for name, own in sorted(sets.items()):
        if not {*"qkv"} <= {*own} <= {*wanted} or any(x.shape != wanted[part] for part, x in own.items()):
            raise UserError(
                f"--tensors {path}: expected tensors q, k and v of one shape (rows, heads, tokens, head dim), "
                f"and maybe mask of (rows, tokens), or several such sets named NAME.q and so on, found {shapes}"
            )
        mask = AttentionMask(own["mask"].bool()) if "mask" in own else None
        q, k, v = (own[part].float() for part in "qkv")
        inputs.append(Inputs(name or path.stem, q, k, v, mask))
    return inputs


def choose_candidates(attentions: Sequence[str], length: int) -> tuple[dict[str, AttentionConfig], dict[str, str]]:
    """Softmax and all that can stand in its place at a length, by name, and of what cannot, why.

    Args:
        attentions: as `--attention` takes them; none: all.

    Raises:
        UserError: an unknown attention; one that is asked for and cannot be tried; none that can.
    """
    found: dict[str, AttentionConfig] = {SOFTMAX: attention_config(SOFTMAX)}
    missing: dict[str, str] = {}
    covered = {text.partition(",")[0] for text in USUAL}
    for text in dict.fromkeys(expand(attentions or sorted({*USUAL, *(set(ATTENTIONS) - covered)}))):
        config, _, name = parse_at(text, length)
        if (reason := why_not(config)) is not None:
            reason = f"it cannot replace softmax without training: {reason}"
        reason = reason or next((f"{key}: {why}" for key, why in config.impossible_at(length)), None)
        if reason is None:
            found[name] = config
        elif attentions:
            raise UserError(f"--attention {text} at {length} tokens: {reason}")
        else:
            missing[name] = reason
    return found, missing


def why_not(config: AttentionConfig) -> str | None:
    """Why an attention cannot take softmax's place without training; None where it can."""
    core = create_attention(config, num_heads=2, head_dim=8, max_length=64)
    if core.needs.shared_query_key:
        return "its queries and keys are tied"
    if core.needs.no_query or core.needs.no_key or any(True for _ in core.parameters()):
        return "it has learned parts of its own"
    return None


def capture_inputs(opened: OpenedScoring, rows: int) -> list[Inputs]:
    """What the attentions of all layers see on masked validation rows, drawn once and for all."""
    seen: dict[int, list[tuple[Tensor, ...]]] = defaultdict(list)

    def see(layer: int, core: Attention, arguments: tuple[Any, ...]) -> None:
        seen[layer].append(tuple(x.detach().float() for x in arguments[:3]))

    batches = watch_attention(opened, rows, see)
    keep_BN = torch.cat([batch.get("mask_BN", torch.ones_like(batch["tokens_BN"]).bool()) for batch in batches])
    mask = None if keep_BN.all() else AttentionMask(keep_BN)
    joined = {layer: [torch.cat(parts) for parts in zip(*mine, strict=True)] for layer, mine in seen.items()}
    return [Inputs(f"layer {layer}", q, k, v, mask) for layer, (q, k, v) in sorted(joined.items())]


def draw_like(inputs: Inputs) -> Inputs:
    """Standard normal ones of the same shape, no token masked."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(inputs.q.shape, generator=generator).to(inputs.q.device) for _ in range(3))
    return Inputs(RANDOM, q, k, v, None)


def _core(config: AttentionConfig, inputs: Inputs) -> Attention:
    """The module, for inputs of this shape; random numbers are the same for all layers."""
    torch.manual_seed(0)
    _, H, N, D = inputs.q.shape
    return create_attention(config, num_heads=H, head_dim=D, max_length=N).to(inputs.q.device).eval()


@torch.no_grad()
def output_errors(candidates: Mapping[str, AttentionConfig], inputs: Inputs) -> dict[str, float]:
    """‖out − softmax's‖ / ‖softmax's‖ of each candidate, over all rows and heads (Frobenius)."""
    arguments = inputs.q, inputs.k, inputs.v, inputs.mask
    wanted = _core(attention_config(SOFTMAX), inputs)(*arguments)
    return {
        name: float((_core(config, inputs)(*arguments) - wanted).norm() / wanted.norm())
        for name, config in candidates.items()
    }


@torch.no_grad()
def forward_times(candidates: Mapping[str, AttentionConfig], inputs: Inputs, repeats: int) -> Mapping[str, Any]:
    """Of a forward pass over one layer's input, all in turn."""
    arguments = inputs.q, inputs.k, inputs.v, inputs.mask
    works = {name: partial(_core(config, inputs), *arguments) for name, config in candidates.items()}
    return time_side_by_side(works, repeats_at(inputs.q.shape[2], repeats))


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


def score_untrained(
    opened: OpenedScoring, candidates: Mapping[str, AttentionConfig], rows: int
) -> Iterator[tuple[str, Record]]:
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
        yield name, {"loss": loss, "accuracy": metrics["mlm_accuracy"]}


def mean_error(record: Record) -> float:
    """Over all inputs but the random ones."""
    return fmean(error for name, error in record["errors"].items() if name != RANDOM)


def blocks(found: Findings) -> list[str]:
    """Tables of errors and losses, of each source."""
    settings = ", ".join(f"{key} {value}" for key, value in found.settings.items())
    parts = ["How far from softmax", f"{settings}."]
    for source, records in _by_source(found).items():
        parts.append(f"**{source}**")
        (softmax,) = (record for record in records if record["method"] == SOFTMAX)
        if "errors" in softmax:
            lines = []
            for record in records:
                time = record["forward"]
                shown = f"{quartiles(time)} ({time['median'] / softmax['forward']['median']:.2f})"
                errors = (mean_error(record), *record["errors"].values())
                lines.append([record["method"], shown, *(f"{error:.3f}" for error in errors)])
            parts += [
                "‖out − softmax's‖ / ‖softmax's‖; time of a forward pass over one input, in brackets over softmax's.",
                markdown(["attention", "ms", "mean but random", *softmax["errors"]], lines),
            ]
        if lines := [[e["method"], f"{e['loss']:.3f}", f"{100 * e['accuracy']:.2f}"] for e in records if "loss" in e]:
            heading = ["attention in softmax's place, untrained", "loss", "masked-token accuracy, %"]
            parts.append(markdown(heading, lines))
    return parts


def draw(found: Findings) -> Any:
    """The mean error against the time of a forward pass, a panel for each source, a colour for each attention; None
    where losses alone were measured.
    """
    sources = _by_source(found) if any("errors" in record for record in found.records) else {}
    if not sources:
        return None
    from matplotlib.ticker import LogLocator

    picture, colours = new_figure(max(7.0, 6.5 * len(sources)), 5.2), dict[str, str]()
    for axis, (source, records) in zip(
        picture.subplots(1, len(sources), squeeze=False)[0], sources.items(), strict=True
    ):
        for record in records:
            method, time = record["method"], record["forward"]["median"]
            if method == SOFTMAX:
                axis.axvline(time, color="black", linewidth=0.8, linestyle=":", label="softmax's time")
                continue
            colour = colours.setdefault(method.split()[0].rstrip(","), f"C{len(colours) % 10}")
            axis.plot(time, mean_error(record), "o", color=colour, markersize=4)
            axis.annotate(method, (time, mean_error(record)), (4, 2), textcoords="offset points", fontsize=6)
        axis.legend(frameon=False, fontsize=7, loc="upper right")
        times = [record["forward"]["median"] for record in records]
        # Room for the names to the right of the last point.
        axis.set(title=source, xlabel="ms, forward", ylabel="error against softmax", xscale="log", ylim=(0, None))
        axis.set(xlim=(min(times) * 0.8, max(times) ** 1.4 / min(times) ** 0.4))
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    return picture


def _by_source(found: Findings) -> Mapping[str, list[Record]]:
    sources = defaultdict[str, list[Record]](list)
    for record in found.records:
        sources[f"{record['source']}, {record['tokens']} tokens"].append(record)
    return sources
