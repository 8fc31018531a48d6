"""Weights of one size made to fit another: longer position tables, wider convolution kernels, more sentence types.

Shapes: P positions, E width, H heads, K taps, T sentence types.
"""

import torch
from torch import Tensor

from nystromformer.config import Positions


def fit_positions(
    source_PE: Tensor, source_offset: int, table_PE: Tensor, offset: int, way: Positions = "repeat"
) -> Tensor:
    """The source's positions made to fill a longer table, or cut to a shorter one.

    - "repeat" (Beltagy et al. 2020, section 5): position n is position n mod length of the source, so that input which
      the source takes is embedded as by the source.
    - "continue": the source's stay where they are, and those beyond begin with the table's initial values.
    - "interpolate": the source's are spread over the table, and what is between two of them is their mean, weighted by
      how near they are (Chen et al. 2023, arXiv 2306.15595, of rotary positions): all input is embedded otherwise. A
      shorter table is cut, as by the others.

    The rows before the offset, which no token takes, come from the source where both have them.

    Args:
        source_PE: (source_offset + length, E).
        source_offset: rows of it that no token takes.
        table_PE: the new model's initial table, (offset + its length, E).
        offset: rows of it that no token takes.
        way: how.

    Returns:
        A new table of `table_PE`'s shape.

    Raises:
        ValueError: other widths, or no row after an offset.
    """
    if source_PE.shape[1] != table_PE.shape[1]:
        raise ValueError(f"expected positions of width {table_PE.shape[1]}, found {source_PE.shape[1]}")
    if len(source_PE) <= source_offset or len(table_PE) <= offset:
        raise ValueError(
            f"expected rows after the offsets {source_offset} and {offset}, found {len(source_PE)} and {len(table_PE)}"
        )
    unused = min(source_offset, offset)
    result_PE = table_PE.clone()
    result_PE[:unused] = source_PE[:unused]
    learned_PE, count = source_PE[source_offset:], len(table_PE) - offset
    if way == "interpolate" and count > len(learned_PE):
        result_PE[offset:] = _interpolated(learned_PE, count)
    elif way == "continue":
        result_PE[offset : offset + len(learned_PE)] = learned_PE[:count]
    else:
        result_PE[offset:] = repeat_rows(learned_PE, count)
    return result_PE


def _interpolated(source_PE: Tensor, count: int) -> Tensor:
    """(count, E): the first and last row stay first and last."""
    places_C = torch.linspace(0, len(source_PE) - 1, count, dtype=torch.float64, device=source_PE.device)
    before_C = places_C.floor().long()
    after_C = (before_C + 1).clamp(max=len(source_PE) - 1)
    share_C1 = (places_C - before_C)[:, None]
    return ((1 - share_C1) * source_PE[before_C] + share_C1 * source_PE[after_C]).to(source_PE.dtype)


def repeat_rows(source_TE: Tensor, count: int) -> Tensor:
    """(count, E): the rows over and over, the first ones where there are more than `count`."""
    return source_TE[torch.arange(count, device=source_TE.device) % len(source_TE)]


def fit_kernel(source_H1K1: Tensor, size: int) -> Tensor:
    """Convolution kernels with zeros around their taps, or without their outer taps; (H, 1, size, 1).

    More taps leave the convolution the same function; fewer do not.

    Raises:
        ValueError: an even number of taps, which has no centre.
    """
    taps = source_H1K1.shape[2]
    if taps % 2 == 0 or size % 2 == 0:
        raise ValueError(f"expected odd numbers of taps, found {taps} and {size}")
    margin = abs(size - taps) // 2
    if size <= taps:
        return source_H1K1[:, :, margin : margin + size].clone()
    result_H1K1 = source_H1K1.new_zeros(*source_H1K1.shape[:2], size, *source_H1K1.shape[3:])
    result_H1K1[:, :, margin : margin + taps] = source_H1K1
    return result_H1K1
