"""Near tokens exactly, all others by the means of groups.

Shapes: B batch, H heads, N tokens, n valid tokens of a row, D head dim.
"""

import torch
from torch import Tensor

from nystromformer.attention.reference.nystrom import segment_bounds
from nystromformer.attention.reference.rows import per_row, softmax_matrix


def near_far_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    block_size: int,
    neighbours: int,
    num_groups: int,
    num_selected: int,
    num_blocks: int,
    probes: int = 32,
) -> Tensor:
    """One softmax over what each token sees one by one, and over the means of near-equal segments of all else."""

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        n = len(qs)
        selected = set(_most_drawing(qs, ks, probes, num_selected))
        groups = [list(range(*bounds)) for bounds in segment_bounds(n, min(num_groups, n))]
        outs = []
        for block, seen_blocks in enumerate(_seen_blocks(qs, ks, block_size, neighbours, num_blocks)):
            seen = {token for token in range(n) if token // block_size in seen_blocks} | selected
            keys, values, bonus = [], [], []
            for members in [*([token] for token in sorted(seen)), *([t for t in g if t not in seen] for g in groups)]:
                if members:
                    keys.append(ks[members].mean(0))
                    values.append(vs[members].mean(0))
                    bonus.append(len(members))
            queries = qs[block * block_size : (block + 1) * block_size]
            scores = queries @ torch.stack(keys).T / qs.shape[1] ** 0.5 + torch.tensor(bonus).double().log()
            outs.append(torch.softmax(scores, dim=-1) @ torch.stack(values))
        return torch.cat(outs)

    return per_row(attend, q, k, v, keep_BN)


def _most_drawing(qs: Tensor, ks: Tensor, probes: int, count: int) -> list[int]:
    means = torch.stack([qs[start:end].mean(0) for start, end in segment_bounds(len(qs), min(probes, len(qs)))])
    drawn = softmax_matrix(means, ks).sum(0).tolist()
    return sorted(range(len(ks)), key=lambda token: (-drawn[token], token))[:count]


def _seen_blocks(qs: Tensor, ks: Tensor, size: int, neighbours: int, further: int) -> list[set[int]]:
    starts = range(0, len(qs), size)
    query_means, key_means = (torch.stack([x[s : s + size].mean(0) for s in starts]) for x in (qs, ks))
    scores = (query_means @ key_means.T).tolist()
    seen = []
    for block in range(len(starts)):
        near = {other for other in range(len(starts)) if abs(other - block) <= neighbours}
        others = [other for other in range(len(starts)) if other not in near]
        best = sorted(others, key=lambda other: (-scores[block][other], other))[:further]
        seen.append(near | set(best))
    return seen
