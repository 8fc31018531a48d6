"""How far attentions are from softmax on saved queries, keys and values.

Shapes: B rows, H heads, N tokens, D head dim.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nystromformer.attention import Attention, AttentionMask, create_attention
from nystromformer.benchmark.findings import Findings, Record, new_figure
from nystromformer.benchmark.methods import EQUAL_KEYS, expand, parse_at
from nystromformer.benchmark.questions import ATTENTIONS as ATTENTION_HELP
from nystromformer.benchmark.questions import OUT, REPEATS, Out, count, flag, threads
from nystromformer.benchmark.timing import quartiles, repeats_at, time_side_by_side
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.command_line.flags import DeviceName
from nystromformer.config import ATTENTIONS, AttentionConfig, attention_config
from nystromformer.errors import UserError
from nystromformer.tables import markdown, show
from nystromformer.training.device import choose_device

logger = logging.getLogger(__name__)

SOFTMAX = "softmax"


class Inputs(NamedTuple):
    """What one attention sees."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: AttentionMask | None


Candidates = tuple[dict[str, AttentionConfig], dict[str, str]]
"""What is tried, by name, and of what cannot be, why."""


@dataclass(frozen=True)
class Approximation:
    """Attentions beside softmax."""

    tensors: list[Path] = flag(
        [],
        "A safetensors file with q, k and v of (rows, heads, tokens, head dim), and mask of (rows, tokens) where some "
        "are masked; or several such sets, as NAME.q. May be given several times.",
    )
    attentions: list[str] = flag([], f"{ATTENTION_HELP}all.", name="attention")
    repeats: int = count(9, REPEATS)
    threads: int = threads()


@with_flag_groups
def approximation(settings: Approximation, out: Out = OUT, device: DeviceName = "auto") -> None:
    """How far attentions are from softmax on the queries and keys that a file holds."""
    if not settings.tensors:
        raise UserError("expected at least one --tensors: a file of queries, keys and values")
    at = choose_device(device, mixed_precision=False).device
    sources = {path.stem: _read_tensors(path, at) for path in settings.tensors}
    chosen = {name: choose_candidates(settings.attentions, own[0].q.shape[2]) for name, own in sources.items()}
    found = Findings.begin("approximation", settings, out)
    torch.set_num_threads(settings.threads)
    for name, inputs in sources.items():
        (candidates, missing), length = chosen[name], inputs[0].q.shape[2]
        works = {method: partial(_core(config, inputs[0]), *inputs[0][1:]) for method, config in candidates.items()}
        with torch.no_grad():
            times = time_side_by_side(works, repeats_at(length, settings.repeats))
        errors = {each.name: output_errors(candidates, each) for each in inputs}
        for method in candidates:
            record = {"source": name, "tokens": length, "method": method, "forward": times[method]}
            found.records.append(record | {"errors": {each: own[method] for each, own in errors.items()}})
        found.left_out += [f"{method}, {length} tokens: {why}" for method, why in missing.items()]
        logger.info("%s compared", name)
    show(found.publish(out / "approximation.json"))


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


def choose_candidates(attentions: Sequence[str], length: int) -> Candidates:
    """Softmax and all that can stand in its place at a length, by name, and of what cannot, why.

    Args:
        attentions: as `--attention` takes them; none: all.
    """
    found: dict[str, AttentionConfig] = {SOFTMAX: attention_config(SOFTMAX)}
    missing: dict[str, str] = {}
    for text in dict.fromkeys(expand(attentions or sorted({*ATTENTIONS, *EQUAL_KEYS}))):
        config, _, name = parse_at(text, length)
        core = create_attention(config, num_heads=2, head_dim=8, max_length=64)
        reason = next((f"{key}: {why}" for key, why in config.impossible_at(length)), None)
        if core.needs.shared_query_key:
            reason = "it cannot replace softmax without training: its queries and keys are tied"
        elif core.needs.no_key or any(True for _ in core.parameters()):
            reason = "it cannot replace softmax without training: it has learned parts of its own"
        if reason is None:
            found[name] = config
        elif attentions:
            raise UserError(f"--attention {text} at {length} tokens: {reason}")
        else:
            missing[name] = reason
    return found, missing


def _core(config: AttentionConfig, inputs: Inputs) -> Attention:
    """The module, for inputs of this shape; random numbers are the same for all layers."""
    torch.manual_seed(0)
    _, H, N, D = inputs.q.shape
    return create_attention(config, num_heads=H, head_dim=D, max_length=N).to(inputs.q.device).eval()


@torch.no_grad()
def output_errors(candidates: Mapping[str, AttentionConfig], inputs: Inputs) -> dict[str, float]:
    """‖out − softmax's‖ / ‖softmax's‖ of each candidate, over all rows and heads (Frobenius)."""
    wanted = _core(attention_config(SOFTMAX), inputs)(*inputs[1:])
    return {
        name: float((_core(config, inputs)(*inputs[1:]) - wanted).norm() / wanted.norm())
        for name, config in candidates.items()
    }


def blocks(found: Findings) -> list[str]:
    """A table of errors for each source."""
    settings = ", ".join(f"{key} {value}" for key, value in found.settings.items())
    parts = [
        "How far from softmax",
        f"{settings}.",
        "‖out − softmax's‖ / ‖softmax's‖; time of a forward pass over one input, in brackets over softmax's.",
    ]
    for source, records in _by_source(found).items():
        (softmax,) = (record for record in records if record["method"] == SOFTMAX)
        lines = []
        for record in records:
            time = record["forward"]
            shown = f"{quartiles(time)} ({time['median'] / softmax['forward']['median']:.2f})"
            errors = (fmean(record["errors"].values()), *record["errors"].values())
            lines.append([record["method"], shown, *(f"{error:.3f}" for error in errors)])
        parts += [f"**{source}**", markdown(["attention", "ms", "mean", *softmax["errors"]], lines)]
    return parts


def draw(found: Findings) -> Any:
    """The mean error against the time of a forward pass, a panel for each source, a colour for each attention."""
    from matplotlib.ticker import LogLocator

    sources = _by_source(found)
    picture, colours = new_figure(max(7.0, 6.5 * len(sources)), 5.2), dict[str, str]()
    for axis, (source, records) in zip(
        picture.subplots(1, len(sources), squeeze=False)[0], sources.items(), strict=True
    ):
        for record in records:
            method, time, error = record["method"], record["forward"]["median"], fmean(record["errors"].values())
            if method == SOFTMAX:
                axis.axvline(time, color="black", linewidth=0.8, linestyle=":", label="softmax's time")
                continue
            colour = colours.setdefault(method.split()[0].rstrip(","), f"C{len(colours) % 10}")
            axis.plot(time, error, "o", color=colour, markersize=4)
            axis.annotate(method, (time, error), (4, 2), textcoords="offset points", fontsize=6)
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
