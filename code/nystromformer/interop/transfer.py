"""Weights of one model for another that differs in its length, its attention or its heads.

What may differ: the positions, the sentence types, the convolution and everything else of the attentions' own, and the
heads. The rest of the encoder must fit exactly: where it does not, the checkpoint is most likely the wrong one.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nystromformer.config import Positions, Resize
from nystromformer.config.attention import what_decides
from nystromformer.config.network import SHAPE_KEYS
from nystromformer.interop.positions import fit_kernel, fit_positions, repeat_rows

_POSITIONS = "encoder.embeddings.position.weight"
_SENTENCE_TYPES = "encoder.embeddings.sentence_type.weight"
_KERNEL = re.compile(r"encoder\.layers\.\d+\.attention\.core\.skip\.weight")
# Projections of queries and keys are of the attention: there are those that have none.
_OF_THE_ATTENTION = re.compile(r"encoder\.layers\.\d+\.attention\.(core|query|key)\.")
_LAYER = re.compile(r"(.*?(?:\.layers?\.|transformer_))(\d+)(\..+)")

_FIXED = (
    *SHAPE_KEYS,
    *("norm", "norm_type", "embedding_norm", "skip_first_prenorm", "feed_forward", "bias", "head_transform"),
    *("reversible", "positions"),
)
"""Keys of the config that must be alike: on them it depends which weights there are, or what they mean."""
_INTERPOLATED = "interpolated"
_MENTIONED = (
    "attn_type",
    "num_landmarks",
    "rope_theta",
    "rope_theta_local",
    "activation",
    "layer_norm_eps",
    "position_offset",
    "pooling",
)


class DoesNotFit(ValueError):
    """The weights are of another architecture; `problems` lists the keys of the config that differ and must not or,
    where there are none, the weights that differ."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass
class Transfer:
    """Weights that fit, and what was done to them."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    """Every weight of the model."""
    resized: list[str] = field(default_factory=list)
    initial: list[str] = field(default_factory=list)
    """Names that the source has not."""
    left_out: list[str] = field(default_factory=list)
    """Names that the model has not."""
    mentioned: list[str] = field(default_factory=list)
    """Differences that change no shape."""

    @property
    def notes(self) -> list[str]:
        """A line for each kind of thing that was done."""
        lines = [*self.resized]
        if self.initial:
            lines.append(f"not in the checkpoint, initial values: {', '.join(self.initial)}")
        if self.left_out:
            lines.append(f"not in the model, left out: {', '.join(self.left_out)}")
        return lines + self.mentioned


def transfer_weights(
    initial: Mapping[str, Tensor],
    config: Mapping[str, Any],
    source: Mapping[str, Tensor],
    source_config: Mapping[str, Any],
    resize: Resize = "lossless",
    way: Positions = "repeat",
) -> Transfer:
    """The source's weights in the shapes of the model.

    Args:
        initial: the model's state dict; of what the source has not, the values that are taken.
        config: the section "model" of its config.json, as plain data with all defaults.
        source, source_config: the same of the source.
        resize: what may change its size. "none": nothing; "lossless": what leaves input that both models take the
            same output; "lossy": convolution kernels may lose taps too, and positions be interpolated.
        way: how a longer table of positions is filled, see `fit_positions`.

    Raises:
        DoesNotFit: lists each key of the config that differs and must not or, where there are none, each weight.
    """
    if differing := [
        f"model.{key}: {_json(config[key])} in config.json, {_json(source_config[key])} in the checkpoint"
        for key in _FIXED
        if key in config and key in source_config and config[key] != source_config[key]
    ]:
        raise DoesNotFit(differing)
    result = Transfer()
    missing, unexpected, misfits, resized = [], [], [], []
    for name, target in initial.items():
        if name not in source:
            if _is_optional(name):
                missing.append((name, ""))
                result.weights[name] = target
            else:
                misfits.append((name, "missing from the checkpoint"))
            continue
        offsets = source_config.get("position_offset", config["position_offset"]), config["position_offset"]
        change = _change(name, source[name], target, offsets, way)
        forbidden = _forbidden(name, source[name], target, change, resize)
        fitted = None if forbidden else _fit(name, source[name], target, offsets, way)
        if fitted is None:
            shapes = f"the model has {tuple(target.shape)}, the checkpoint {tuple(source[name].shape)}"
            misfits.append((name, shapes + forbidden))
            continue
        result.weights[name] = fitted
        if change:
            resized.append((name, change))
    for name in source:
        if name not in initial:
            if _is_optional(name):
                unexpected.append((name, ""))
            else:
                misfits.append((name, "not in the model"))
    if misfits:
        raise DoesNotFit(grouped(misfits))
    result.resized, result.initial, result.left_out = grouped(resized), grouped(missing), grouped(unexpected)
    result.mentioned = mentioned(source_config, config)
    return result


def mentioned(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What the same weights fit and compute something else with: of two sections "model", a line for each key that
    differs.
    """
    return [
        f"model.{key}: {_json(before[key])} in the checkpoint, {_json(now[key])} now"
        for key in _MENTIONED
        if key in now and key in before and what_decides(now[key]) != what_decides(before[key])
    ]


def grouped(items: Iterable[tuple[str, str]]) -> list[str]:
    """`name: text` lines, those of layers that say the same in one: `encoder.layers.0-11.attention.key.bias`."""
    layers: dict[tuple[str, str, str], list[int]] = {}
    for name, text in items:
        match = _LAYER.fullmatch(name)
        key = (match[1], match[3], text) if match else (name, "", text)
        layers.setdefault(key, []).extend([int(match[2])] if match else [])
    return [
        f"{head}{_ranges(numbers)}{tail}" + (f": {text}" if text else "")
        for (head, tail, text), numbers in layers.items()
    ]


def _is_optional(name: str) -> bool:
    """Whether two models that fit may differ in having this weight: those of heads and of the attentions' own."""
    return not name.startswith("encoder.") or _OF_THE_ATTENTION.match(name) is not None


def _change(name: str, source: Tensor, target: Tensor, offsets: tuple[int, int], way: Positions) -> str:
    """How the one size of a weight that may differ does, whatever the others are; empty where it does not.

    Positions that start at another row of the table count as a difference.
    """
    if source.ndim != target.ndim:
        return ""
    if name == _POSITIONS:
        before, now = (len(table) - offset for table, offset in zip((source, target), offsets, strict=True))
        if before < 1 or (before == now and offsets[0] == offsets[1]):
            return ""
        moved = "" if offsets[0] == offsets[1] else f", from row {offsets[1]} of the table"
        return _filled(before, now, "positions", way) + moved
    if name == _SENTENCE_TYPES and len(source) != len(target):
        return _filled(len(source), len(target), "sentence types")
    if _KERNEL.fullmatch(name) and source.ndim == 4 and source.shape[2] != target.shape[2]:
        before, now = source.shape[2], target.shape[2]
        return f"{before} taps amid {now}, zeros around them" if now > before else f"the middle {now} of {before} taps"
    return ""


def _forbidden(name: str, source: Tensor, target: Tensor, change: str, resize: Resize) -> str:
    """Why `resize` does not allow that change, to be read after the shapes; empty where it does."""
    if change and resize == "none":
        return f'; from_cp_resize "none" refuses {change}'
    if _INTERPOLATED in change and resize != "lossy":
        return f'; from_cp_resize "{resize}" refuses {change}, "lossy" takes it'
    if change and _KERNEL.fullmatch(name) and target.shape[2] < source.shape[2] and resize != "lossy":
        return ': taps would be lost; from_cp_resize "lossy" keeps the middle ones'
    return ""


def _fit(name: str, source: Tensor, target: Tensor, offsets: tuple[int, int], way: Positions) -> Tensor | None:
    """The source in the target's shape; None where that cannot be."""
    same = source.shape == target.shape
    if name == _POSITIONS and source.shape[1:] == target.shape[1:] and not (same and offsets[0] == offsets[1]):
        return fit_positions(source, offsets[0], target, offsets[1], way) if len(source) > offsets[0] else None
    if same:
        return source
    if name == _SENTENCE_TYPES and source.shape[1:] == target.shape[1:]:
        return repeat_rows(source, len(target))
    if _KERNEL.fullmatch(name) and len(source) == len(target) and source.ndim == target.ndim == 4:
        return fit_kernel(source, target.shape[2])
    return None


def _filled(before: int, now: int, what: str, way: Positions = "repeat") -> str:
    if now == before:
        return f"{what}: {now}"
    if now < before:
        return f"{what}: the first {now} of {before}"
    words = {"repeat": "repeated", "continue": "with initial values beyond them", "interpolate": _INTERPOLATED}
    return f"{what}: {before} {words[way]} to {now}"


def _ranges(numbers: Sequence[int]) -> str:
    """0-3,5 for 0, 1, 2, 3, 5."""
    parts: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _json(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
