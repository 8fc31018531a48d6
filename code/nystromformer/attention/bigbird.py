"""BigBird's attention (Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020): window, random, global.

Shapes: B batch, H heads, N tokens, S tokens of a block, A blocks, C of them that attend, R random blocks, W blocks that
each attends to, K keys, D head dim.
"""

import torch
from torch import Tensor

from nystromformer.attention.block_sparse import Common, attend_to_blocks
from nystromformer.attention.global_tokens import GlobalTokens, attend_from_global
from nystromformer.attention.grid import Grid
from nystromformer.attention.random_blocks import random_blocks
from nystromformer.attention.randomness import generator_of, own_seed
from nystromformer.attention.rows import GlobalRowsAttention
from nystromformer.attention.tracing import is_exporting
from nystromformer.config.attention.bigbird import BigBirdConfig


class BigBirdAttention(GlobalRowsAttention):
    """Softmax attention of blocks of valid tokens to the blocks around them, to random ones and to global tokens: O(N).

    The tokens of a block attend to those of `num_window_blocks` blocks, its own in their middle, of
    `num_random_blocks` others, and to the global tokens, each once. The global tokens attend to all, and all attend to
    them (their section 2): the first `num_global_blocks` blocks of a row, and those that the mask marks (BIGBIRD-ITC).

    Random blocks are others than the window's and the global ones, and each another: at most as many as there are. They
    go by a block's number, the head, the number of blocks of its row, and salts, which are drawn once and saved with
    the weights. A row of few blocks gets exact softmax attention: no block is left out.

    Args:
        config, num_heads, head_dim: as for every attention.
    """

    config: BigBirdConfig
    salts_HR: Tensor

    def __init__(self, config: BigBirdConfig, num_heads: int, head_dim: int) -> None:
        super().__init__(config, num_heads, head_dim)
        shape = (num_heads, config.num_random_blocks)
        salts = torch.randint(2**32, shape, generator=generator_of(own_seed()), device="cpu")
        self.register_buffer("salts_HR", salts)

    def attend_rows(
        self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, tokens: GlobalTokens | None
    ) -> Tensor:
        if not is_exporting() and q.shape[2] <= self._longest_whole:
            return attend_from_global(q, k, v, lengths_B)
        if tokens is None:
            return self._attend_by_blocks(q, k, v, lengths_B, None)
        own = attend_from_global(tokens.taken(q), k, v, lengths_B)
        if is_exporting():
            return tokens.placed(own, self._attend_by_blocks(q, k, v, lengths_B, tokens))
        # A row's first blocks have their output by now, and N is more than they are.
        first = self.config.num_global_tokens
        others = self._attend_by_blocks(q[:, :, first:], k, v, lengths_B, tokens)
        out = torch.cat([own[:, :, :first], others], 2) if first else others
        return out if tokens.places_BG.shape[1] == first else tokens.placed(own, out)

    @property
    def _longest_whole(self) -> int:
        """Tokens of the longest row of which no block attends to less than all."""
        blocks = self.config.num_global_blocks + self.config.num_window_blocks // 2 + 1 + self.config.num_random_blocks
        return blocks * self.config.block_size

    def _attend_by_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, tokens: GlobalTokens | None
    ) -> Tensor:
        """What the last tokens of a row get, as many as q has."""
        queries, grid = Grid(q, None, self.config.block_size), Grid(k, lengths_B, self.config.block_size)
        numbers_C = torch.arange(grid.num_blocks - queries.num_blocks, grid.num_blocks, device=q.device)
        blocks, allowed = self._listed(grid, numbers_C, None if tokens is None else tokens.is_global_BN)
        common = None
        if tokens is not None and tokens.places_BG.shape[1] > self.config.num_global_tokens:
            slots = slice(self.config.num_global_tokens, None)
            marked = tokens._replace(places_BG=tokens.places_BG[:, slots], there_BG=tokens.there_BG[:, slots])
            common = Common(marked.taken(k), marked.taken(v), marked.there_BG)
        return attend_to_blocks(q, k, v, blocks, allowed, self.config.block_size, common)

    def _listed(self, grid: Grid, numbers_C: Tensor, is_global_BN: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each block's window, random and global blocks, (B or 1, H, C, W), and which of their tokens it attends to,
        (B or 1, H, C, W·S) bool: a global one as that alone.
        """
        ends_B, around, size = grid.ends_B, self.config.num_window_blocks // 2, self.config.block_size
        B, H, C = ends_B.shape[0], self.num_heads, numbers_C.shape[0]
        places_AS = grid.places()
        usable_BAS = places_AS < ends_B[:, None, None]
        if is_global_BN is not None:
            usable_BAS = usable_BAS & ~is_global_BN[:B, places_AS.clamp(max=grid.length - 1)]
        offsets_W = torch.arange(-around, around + 1, device=grid.device)
        window_CW = numbers_C[:, None] + offsets_W
        inside_CW = (window_CW >= 0) & (window_CW < grid.num_blocks)
        window_CW = window_CW.clamp(0, grid.num_blocks - 1)
        # What stands behind a row's end attends to itself, since a softmax over nothing is no number.
        beyond_BC = numbers_C * size >= ends_B[:, None]
        itself_BCW = beyond_BC[..., None] & (offsets_W == 0)
        window_BCWS = (usable_BAS[:, window_CW] & inside_CW[..., None]) | itself_BCW[..., None]
        blocks, allowed = [window_CW[None, None]], [window_BCWS[:, None].flatten(3)]
        if self.config.num_random_blocks:
            counts_B = (ends_B + size - 1) // size
            random_BHCR, there = random_blocks(
                self.salts_HR, numbers_C, counts_B, self.config.num_global_blocks, around
            )
            random_BHCR = random_BHCR.clamp(0, grid.num_blocks - 1)
            rows_B111 = torch.arange(B, device=grid.device)[:, None, None, None]
            blocks.append(random_BHCR)
            allowed.append((usable_BAS[rows_B111, random_BHCR] & there[..., None]).flatten(3))
        if self.config.num_global_blocks:
            first_G = torch.arange(self.config.num_global_blocks, device=grid.device)
            blocks.append(first_G.clamp(max=grid.num_blocks - 1)[None, None, None])
            first_K = torch.arange(self.config.num_global_tokens, device=grid.device)
            allowed.append((first_K < ends_B[:, None])[:, None, None])
        return _joined(blocks, B, H, C), _joined(allowed, B, H, C)


def _joined(parts: list[Tensor], *sizes: int) -> Tensor:
    return torch.cat([part.expand(*sizes, -1) for part in parts], -1)
