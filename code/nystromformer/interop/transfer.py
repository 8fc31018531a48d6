"""Weights of one model for another that differs in its length, its attention or its heads.

What may differ: the positions, the sentence types, the convolution and everything else of the attentions' own, and the
heads. The rest of the encoder must fit exactly: where it does not, the checkpoint is most likely the wrong one.

Shapes: P positions, E width, H heads, K taps, T sentence types.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.config import Positions, Resize
from nystromformer.config.attention import what_decides
from nystromformer.config.messages import quoted
from nystromformer.config.network import SHAPE_KEYS

_POSITIONS = "encoder.embeddings.position.weight"
_SENTENCE_TYPES = "encoder.embeddings.sentence_type.weight"
_KERNEL = re.compile(r"encoder\.layers\.\d+\.attention\.core\.skip\.weight")
# Projections of queries and keys are of the attention: there are those that have none.
_OF_THE_ATTENTION = re.compile(r"encoder\.layers\.\d+\.attention\.(core|query|key)\.")
_LAYER = re.compile(r"(.*?(?:\.layers?\.|transformer_))(\d+)(\..+)")

FIXED = (
    *SHAPE_KEYS,
    *("norm", "norm_type", "embedding_norm", "skip_first_prenorm", "feed_forward", "bias", "head_transform"),
    *("reversible", "positions"),
)
"""Keys of the config that must be alike: on them it depends which weights there are, or what they mean."""
MENTIONED = (
    *("attn_type", "num_landmarks", "rope_theta", "rope_theta_local", "activation", "layer_norm_eps"),
    *("position_offset", "pooling"),
)
"""Those with which the same weights fit and compute something else."""


class DoesNotFit(ValueError):
    """The weights are of another architecture; the arguments are the keys of the config that differ and must not or,
    where there are none, the weights that differ."""


class Transfer(NamedTuple):
    """Weights that fit, and what was done to them."""

    weights: dict[str, Tensor]
    """Every weight of the model."""
    notes: list[str]
    """A line for each kind of thing that was done, or differs without changing a shape."""


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
        config, source_config: the sections "model", as plain data with all defaults.
        resize: what may change its size. "lossless": what leaves input that both models take the same output; "lossy":
            convolution kernels may lose taps too, and positions be interpolated.
        way: how a longer table of positions is filled, see `fit_positions`.

    Raises:
        DoesNotFit: lists each key of the config that differs and must not or, where there are none, each weight.
    """
    if differing := [
        f"model.{key}: {quoted(config[key])} in config.json, {quoted(source_config[key])} in the checkpoint"
        for key in FIXED
        if key in config and key in source_config and config[key] != source_config[key]
    ]:
        raise DoesNotFit(*differing)
    offsets = source_config.get("position_offset", config["position_offset"]), config["position_offset"]
    weights: dict[str, Tensor] = {}
    misfits, resized = (list[tuple[str, str]]() for _ in range(2))
    for name, target in initial.items():
        if name in source:
            fitted, text = _fit(name, source[name], target, offsets, resize, way)
            if fitted is None:
                shapes = f"the model has {tuple(target.shape)}, the checkpoint {tuple(source[name].shape)}"
                misfits.append((name, shapes + text))
                continue
            weights[name] = fitted
            resized += [(name, text)] if text else []
        elif _is_optional(name):
            weights[name] = target
        else:
            misfits.append((name, "missing from the checkpoint"))
    misfits += [(name, "not in the model") for name in source if name not in initial and not _is_optional(name)]
    if misfits:
        raise DoesNotFit(*grouped(misfits))
    notes = grouped(resized)
    if missing := grouped([(name, "") for name in initial if name not in source]):
        notes.append(f"not in the checkpoint, initial values: {', '.join(missing)}")
    if left_out := grouped([(name, "") for name in source if name not in initial]):
        notes.append(f"not in the model, left out: {', '.join(left_out)}")
    return Transfer(weights, notes + mentioned(source_config, config))


def mentioned(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What the same weights fit and compute something else with: of two sections "model", a line for each key that
    differs.
    """
    return [
        f"model.{key}: {quoted(before[key])} in the checkpoint, {quoted(now[key])} now"
        for key in MENTIONED
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


def _fit(
    name: str, source: Tensor, target: Tensor, offsets: tuple[int, int], resize: Resize, way: Positions
) -> tuple[Tensor | None, str]:
    """The source in the target's shape, and what was done; or None, and why that cannot be, to be read after the
    shapes. Positions that start at another row of the table count as a difference.
    """
    same = source.shape == target.shape
    if name == _POSITIONS and source.shape[1:] == target.shape[1:] and not (same and offsets[0] == offsets[1]):
        before, now = (len(table) - offset for table, offset in zip((source, target), offsets, strict=True))
        change = _filled(before, now, "positions", "repeated" if way == "repeat" else "interpolated")
        change += "" if offsets[0] == offsets[1] else f", from row {offsets[1]} of the table"
        if way == "interpolate" and now > before and resize == "lossless":
            return None, f'; from_cp_resize "lossless" refuses {change}, "lossy" takes it'
        return fit_positions(source, offsets[0], target, offsets[1], way), change
    if same:
        return source, ""
    if name == _SENTENCE_TYPES and source.shape[1:] == target.shape[1:]:
        change = _filled(len(source), len(target), "sentence types", "repeated")
        return repeat_rows(source, len(target)), change
    if _KERNEL.fullmatch(name) and source.ndim == target.ndim == 4 and len(source) == len(target):
        before, now = source.shape[2], target.shape[2]
        if now > before:
            return fit_kernel(source, now), f"{before} taps amid {now}, zeros around them"
        if resize == "lossless":
            return None, ': taps would be lost; from_cp_resize "lossy" keeps the middle ones'
        return fit_kernel(source, now), f"the middle {now} of {before} taps"
    return None, ""


def fit_positions(
    source_PE: Tensor, source_offset: int, table_PE: Tensor, offset: int, way: Positions = "repeat"
) -> Tensor:
    """The source's positions made to fill a longer table, or cut to a shorter one, of the same width. Rows before an
    offset are taken by no token; they come from the source where both have them.

    - "repeat" (Beltagy et al. 2020, section 5): position n is position n mod length of the source, so that input which
      the source takes is embedded as by the source.
    - "interpolate": the source's are spread over the table, each between two their weighted mean (Chen et al. 2023,
      arXiv 2306.15595, of rotary positions): all input is embedded otherwise.
    """
    unused = min(source_offset, offset)
    result_PE = table_PE.clone()
    result_PE[:unused] = source_PE[:unused]
    learned_PE, count = source_PE[source_offset:], len(table_PE) - offset
    if way == "interpolate" and count > len(learned_PE):
        # The first and last row stay first and last.
        spread = F.interpolate(learned_PE.double().T[None], size=count, mode="linear", align_corners=True)
        result_PE[offset:] = spread[0].T.to(learned_PE.dtype)
    else:
        result_PE[offset:] = repeat_rows(learned_PE, count)
    return result_PE


def repeat_rows(source_TE: Tensor, count: int) -> Tensor:
    """(count, E): the rows over and over, the first ones where there are more than `count`."""
    return source_TE[torch.arange(count, device=source_TE.device) % len(source_TE)]


def fit_kernel(source_H1K1: Tensor, size: int) -> Tensor:
    """Convolution kernels of odd numbers of taps with zeros around them, or without their outer taps; (H, 1, size, 1).

    More taps leave the convolution the same function; fewer do not.
    """
    margin = abs(size - source_H1K1.shape[2]) // 2
    if size <= source_H1K1.shape[2]:
        return source_H1K1[:, :, margin : margin + size].clone()
    return F.pad(source_H1K1, (0, 0, margin, margin))


def _filled(before: int, now: int, what: str, how: str) -> str:
    if now <= before:
        return f"{what}: {now}" if now == before else f"{what}: the first {now} of {before}"
    return f"{what}: {before} {how} to {now}"


def _ranges(numbers: Sequence[int]) -> str:
    """0-3,5 for 0, 1, 2, 3, 5."""
    ordered = sorted(numbers)
    gaps = [place for place, (one, other) in enumerate(pairwise(ordered), start=1) if other != one + 1]
    parts = [ordered[begin:end] for begin, end in pairwise([0, *gaps, len(ordered)]) if ordered]
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
