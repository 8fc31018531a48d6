"""Multi-resolution attention, with the N x N weights written out.

Shapes: B batch, H heads, N tokens, n valid tokens of a row, D head dim.
"""

from typing import Literal

import torch
from torch import Tensor

from nystromformer.attention.reference.rows import per_row


def mra_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    block_size: int,
    num_blocks: int,
    neighbours: int,
    num_first: int,
    choice: Literal["head", "block", "query"],
) -> Tensor:
    """Zeng et al. 2022, MRA-2: exact scores in chosen blocks, elsewhere those of the blocks' means."""

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        n, dim = qs.shape
        of_token = [token // block_size for token in range(n)]
        blocks = range(of_token[-1] + 1)
        members = [[token for token in range(n) if of_token[token] == block] for block in blocks]
        query_means, key_means, value_means = (torch.stack([x[m].mean(0) for m in members]) for x in (qs, ks, vs))
        per_block = query_means @ key_means.T / dim**0.5
        # Of each query, what stands for it where it meets a block as a whole.
        means = qs @ key_means.T / dim**0.5 if choice == "query" else per_block[of_token]
        chosen = _chosen(means.tolist() if choice == "query" else per_block.tolist(), of_token)
        weights = []
        exact = torch.exp(qs @ ks.T / dim**0.5)
        for token in range(n):
            row = chosen[token if choice == "query" else of_token[token]]
            near = torch.tensor([of_token[other] in row for other in range(n)])
            far = torch.tensor([block not in row for block in blocks])
            sizes = torch.tensor([len(m) for m in members]).double()
            weights.append(torch.cat([exact[token] * near, torch.exp(means[token]) * sizes * far]))
        weight = torch.stack(weights)
        return weight @ torch.cat([vs, value_means]) / weight.sum(1, keepdim=True)

    def _chosen(scores: list[list[float]], of_token: list[int]) -> list[set[int]]:
        rows, blocks = range(len(scores)), range(len(scores[0]))
        own = of_token if choice == "query" else list(rows)
        always = [{b for b in blocks if abs(b - own[row]) <= neighbours or b < num_first} for row in rows]
        best = [max(scores[row]) for row in rows]
        order = sorted(
            ((row, block) for row in rows for block in blocks),
            key=lambda pair: (pair[1] not in always[pair[0]], best[pair[0]] - scores[pair[0]][pair[1]], pair),
        )
        if choice == "head":
            taken = order[: num_blocks * len(blocks)]
        else:
            taken = [pair for row in rows for pair in [each for each in order if each[0] == row][:num_blocks]]
        return [{block for one, block in taken if one == row} for row in rows]

    return per_row(attend, q, k, v, keep_BN)
