"""Weights of one size made to fit another: longer position tables, wider convolution kernels, more sentence types.

Shapes: P positions, E width, H heads, K taps, T sentence types.
"""

import torch
from torch import Tensor


def fit_positions(source_PE: Tensor, source_offset: int, table_PE: Tensor, offset: int) -> Tensor:
    """The source's positions, repeated to fill the table or cut to it (Beltagy et al. 2020, section 5).

    Position n of the result is position n mod length of the source, so that input which the source takes is embedded
    as by the source. The rows before the offset, which no token takes, come from the source where both have them.

    Args:
        source_PE: (source_offset + length, E).
        source_offset: rows of it that no token takes.
        table_PE: the new model's initial table, (offset + its length, E).
        offset: rows of it that no token takes.

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
    result_PE[offset:] = repeat_rows(source_PE[source_offset:], len(table_PE) - offset)
    return result_PE


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
