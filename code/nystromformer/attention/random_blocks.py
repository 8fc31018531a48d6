"""Random blocks of block-sparse attention: a function of salts, the block and its row's number of blocks.

Shapes: B batch, H heads, C blocks, R random blocks of each.
"""

import torch
from torch import Tensor


def random_blocks(
    salts_HR: Tensor, blocks_C: Tensor, counts_B: Tensor, num_first: int, around: int
) -> tuple[Tensor, Tensor]:
    """R different blocks of the row, each set as likely as any other, for each of some blocks.

    Blocks to choose from are those of the row but the first `num_first` and those at most `around` away. Their number
    n may be less than R: then all are chosen. With r = min(R, n) the t-th choice, from 0, is that of Floyd's sampling:
    number t modulo n - r + t + 1, and n - r + t where that was chosen before. Whatever does not count in a row (blocks
    behind its last) has no influence.

    Args:
        salts_HR: int64, from 0 to 2³² - 1.
        blocks_C: int64, the numbers of the blocks that choose.
        counts_B: int64, blocks of each row.

    Returns:
        (B, H, C, R) int64, from 0, and bool: which are chosen. Where a row has no such block both have no meaning.
    """
    low_C = (blocks_C - around).clamp_min(num_first)
    near_BC = (torch.minimum(counts_B[:, None], blocks_C + around + 1) - low_C).clamp_min(0)
    others_BC = (counts_B[:, None] - num_first - near_BC).clamp_min(0)
    least_BC = (others_BC - salts_HR.shape[1]).clamp_min(0)
    chosen: list[Tensor] = []
    there = []
    for turn in range(salts_HR.shape[1]):
        last_B1C = (least_BC + turn)[:, None]
        pick_BHC = _numbers(salts_HR[:, turn, None], blocks_C) % (last_B1C + 1)
        for before_BHC in tuple(chosen):
            pick_BHC = torch.where(pick_BHC == before_BHC, last_B1C, pick_BHC)
        chosen.append(pick_BHC)
        there.append((turn < others_BC)[:, None].expand_as(pick_BHC))
    picks_BHCR = torch.stack(chosen, -1) + num_first
    picks_BHCR = picks_BHCR + torch.where(picks_BHCR >= low_C[:, None], near_BC[:, None, :, None], 0)
    return picks_BHCR, torch.stack(there, -1)


def _numbers(salts_H1: Tensor, blocks_C: Tensor) -> Tensor:
    """(H, C), from 0 to 2³² - 1: a hash of both, whose products fit 63 bits."""
    x_HC = (blocks_C * 0x9E3779B1 % 2**32) ^ salts_H1
    for _ in range(2):
        x_HC = ((x_HC >> 16) ^ x_HC) * 0x45D9F3B % 2**32
    return (x_HC >> 16) ^ x_HC
