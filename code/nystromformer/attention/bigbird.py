"""BigBird's attention (Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020): window, random, global.

Shapes: B batch, H heads, N tokens, Q of them that attend, S tokens of a block, A blocks, C of them that attend, R
random blocks, W blocks that each attends to, X marked tokens, K keys, D head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.global_tokens import GlobalTokens
from nystromformer.attention.grid import Grid
from nystromformer.attention.redrawn import generator_of, own_seed
from nystromformer.attention.rows import GlobalRowsAttention, attend_to_all
from nystromformer.attention.scores import infinite_bias, written_out
from nystromformer.attention.tracing import is_exporting
from nystromformer.config.attention.methods import BigBirdConfig


class BigBirdAttention(GlobalRowsAttention):
    """Softmax attention of blocks of valid tokens to the blocks around them, to random ones and to global tokens: O(N).

    The tokens of a block attend to those of `num_window_blocks` blocks, its own in their middle, of
    `num_random_blocks` others, and to the global tokens, each once. The global tokens attend to all, and all attend to
    them (their section 2): the first `num_global_blocks` blocks of a row, and those that the mask marks (BIGBIRD-ITC).

    Random blocks are others than the window's and the global ones, and each another: at most as many as there are. They
    go by a block's number, the head, the number of blocks of its row, and salts, which are drawn once and saved with
    the weights. A row of few blocks gets exact softmax attention: no block is left out.
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
        if not is_exporting() and q.shape[2] <= self.config.longest_exact:
            return attend_to_all(q, k, v, lengths_B)
        if tokens is None:
            return self._attend_by_blocks(q, k, v, lengths_B, None)
        own = attend_to_all(tokens.taken(q), k, v, lengths_B)
        if is_exporting():
            return tokens.placed(own, self._attend_by_blocks(q, k, v, lengths_B, tokens))
        # A row's first blocks have their output by now, and N is more than they are.
        first = self.config.num_global_tokens
        others = self._attend_by_blocks(q[:, :, first:], k, v, lengths_B, tokens)
        out = torch.cat([own[:, :, :first], others], 2) if first else others
        return out if tokens.places_BG.shape[1] == first else tokens.placed(own, out)

    def _attend_by_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, tokens: GlobalTokens | None
    ) -> Tensor:
        """What the last tokens of a row get, as many as q has."""
        queries, grid = Grid(q, None, self.config.block_size), Grid(k, lengths_B, self.config.block_size)
        numbers_C = torch.arange(grid.num_blocks - queries.num_blocks, grid.num_blocks, device=q.device)
        blocks, allowed = self._listed(grid, numbers_C, None if tokens is None else tokens.is_global_BN)
        marked = None
        if tokens is not None and tokens.places_BG.shape[1] > self.config.num_global_tokens:
            slots = slice(self.config.num_global_tokens, None)
            marked = tokens._replace(places_BG=tokens.places_BG[:, slots], there_BG=tokens.there_BG[:, slots])
        return _attend_to_blocks(q, k, v, blocks, allowed, queries, marked)

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


def _attend_to_blocks(
    q_BHQD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    blocks_BHCW: Tensor,
    allowed_BHCK: Tensor,
    queries: Grid,
    marked: GlobalTokens | None,
) -> Tensor:
    """softmax over the tokens of the blocks that are listed for a token's block, and over marked tokens, (B, H, Q, D):
    in time and memory linear in what is listed.

    Args:
        blocks_BHCW: (B or 1, H, C, W), for each block of the queries the numbers of blocks of the keys.
        allowed_BHCK: (B or 1, H, C, W·S) bool, which of their tokens are attended to. Each block attends to something.
    """
    B, H = q_BHQD.shape[:2]
    bias_BHCK = infinite_bias(allowed_BHCK, q_BHQD.dtype).expand(B, -1, -1, -1)
    common_k = common_v = None
    if marked is not None:
        common_k, common_v, there_BX = marked.taken(k_BHND), marked.taken(v_BHND), marked.there_BG
        if not is_exporting():
            # Whole blocks of them are gathered with the others.
            short = -there_BX.shape[1] % queries.size
            common_k, common_v = (
                F.pad(x.flatten(0, 1), (0, 0, 0, short)).unflatten(0, (B, H)) for x in (common_k, common_v)
            )
            there_BX = F.pad(there_BX, (0, short))
        bias_BX = infinite_bias(there_BX, q_BHQD.dtype)
        bias_BHCK = torch.cat([bias_BHCK, bias_BX[:, None, None].expand(-1, H, bias_BHCK.shape[2], -1)], 3)
    blocks_BHCW = blocks_BHCW.expand(B, -1, -1, -1)
    gathered = _gathered_by_token if is_exporting() else _gathered
    keys_BHCKD = gathered(k_BHND, common_k, blocks_BHCW, queries.size)
    values_BHCKD = gathered(v_BHND, common_v, blocks_BHCW, queries.size)
    q_BHCSD, bias_BHC1K = queries.of(q_BHQD), bias_BHCK[:, :, :, None]
    if is_exporting():
        return queries.flat(written_out(q_BHCSD, keys_BHCKD, values_BHCKD, bias_BHC1K))
    # Of four sizes the fused kernels take it.
    q, k, v, bias = (x.flatten(0, 1) for x in (q_BHCSD, keys_BHCKD, values_BHCKD, bias_BHC1K))
    return queries.flat(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).unflatten(0, (B, H)))


def _gathered(x_BHND: Tensor, common_BHXD: Tensor | None, blocks_BHCW: Tensor, size: int) -> Tensor:
    """(B, H, C, W·S + X, D): the listed blocks, and the common tokens behind them."""
    B, H, N, D = x_BHND.shape
    x_XLD = F.pad(x_BHND.flatten(0, 1), (0, 0, 0, -N % size))
    first_common, count = -(-N // size), 0
    if common_BHXD is not None:
        x_XLD = torch.cat([x_XLD, common_BHXD.flatten(0, 1)], 1)
        count = common_BHXD.shape[2] // size
        common_X = torch.arange(first_common, first_common + count, device=x_BHND.device)
        blocks_BHCW = torch.cat([blocks_BHCW, common_X.expand(*blocks_BHCW.shape[:3], -1)], 3)
    # Rows of whole blocks: a gather by tokens would read and write in small pieces.
    starts_BH11 = torch.arange(B * H, device=x_BHND.device).view(B, H, 1, 1) * (first_common + count)
    x_YZ = x_XLD.reshape(-1, size * D).index_select(0, (blocks_BHCW + starts_BH11).flatten())
    return x_YZ.view(B, H, blocks_BHCW.shape[2], -1, D)


def _gathered_by_token(x_BHND: Tensor, common_BHXD: Tensor | None, blocks_BHCW: Tensor, size: int) -> Tensor:
    """The same for exported programs, which have no whole blocks to count on."""
    B, H, N, _ = x_BHND.shape
    device = x_BHND.device
    tokens_BHCK = (blocks_BHCW[..., None] * size + torch.arange(size, device=device)).flatten(3).clamp(max=N - 1)
    rows_B111 = torch.arange(B, device=device)[:, None, None, None]
    x_BHCKD = x_BHND[rows_B111, torch.arange(H, device=device)[:, None, None], tokens_BHCK]
    if common_BHXD is not None:
        common = common_BHXD[:, :, None].expand(-1, -1, blocks_BHCW.shape[2], -1, -1)
        x_BHCKD = torch.cat([x_BHCKD, common], 3)
    return x_BHCKD
