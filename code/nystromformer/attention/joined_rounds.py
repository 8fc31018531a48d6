"""Locality-sensitive hashing as transformers' LSHSelfAttention evaluates it, which the paper's Table 3 has as Reformer.

Shapes: B batch, H heads, N tokens, D head dim, R rounds of hashing, S tokens of a chunk, C chunks of all rounds, K
columns of a rotation.
"""

import torch
from torch import Tensor

from nystromformer.attention.hashing import MOST_COLUMNS

_MASKED, _ITSELF = -1e9, -1e5
"""Scores of masked tokens, and of the token itself, which counts where nothing else is there."""
_EPSILON = 1e-6


def bucket_sizes(length: int, chunk_length: int, num_buckets: int | None) -> list[int]:
    """Buckets of a round: one number, or two whose product they are.

    Args:
        num_buckets: where it is given.
    """
    if num_buckets is not None:
        return [num_buckets]
    power = (2 * (length // chunk_length)).bit_length() - 1
    most = 2 * max(int((length // chunk_length) ** 0.5), chunk_length)
    if 2**power <= min(most, 4 * MOST_COLUMNS):  # of more there are no columns
        return [2**power]
    return [2 ** (power // 2), 2 ** (power - power // 2)]


def joined_buckets(q_BHND: Tensor, rotations_RDK: Tensor, sizes: list[int]) -> Tensor:
    """argmax([xR; -xR]) in each round, of two numbers of buckets the two together; (B, H, R, N) int64."""
    rotated_BHRNK = q_BHND[:, :, None] @ rotations_RDK
    first, product = 0, 1
    buckets_BHRN = torch.zeros(rotated_BHRNK.shape[:-1], dtype=torch.int64, device=q_BHND.device)
    for size in sizes:
        part = rotated_BHRNK[..., first : first + size // 2]
        buckets_BHRN = buckets_BHRN + product * torch.cat([part, -part], -1).argmax(-1)
        first, product = first + size // 2, product * size
    return buckets_BHRN


def attend_in_joined_rounds(
    q_BHND: Tensor, v_BHND: Tensor, buckets_BHRN: Tensor | None, keep_BN: Tensor | None, size: int
) -> Tensor:
    """softmax(Q K̂ᵀ) V, K̂ = Q/‖Q‖, without 1/√D.

    The tokens of all rounds stand in one row of chunks, by round, bucket and position. A token attends to all of its
    own chunk and the one before, which for the first chunk of a round is the last of another round. Rounds are weighed
    by their sums of exponentials, so that a pair that meets in several rounds counts in each.

    Args:
        buckets_BHRN: of each round; None: all tokens are one chunk.
        keep_BN: which tokens count; the others have a bucket of their own, the last one of each round.
        size: S, a divisor of N.
    """
    B, H, N, D = q_BHND.shape
    lengths_BHN1 = (q_BHND.square().mean(-1, keepdim=True) + _EPSILON).sqrt() * D**0.5
    keys_BHND = q_BHND / lengths_BHN1
    if buckets_BHRN is None:
        places_BHN = torch.arange(N, device=q_BHND.device).expand(B, H, N)
        return _attend(q_BHND, keys_BHND, v_BHND, places_BHN, places_BHN, keep_BN)[0]
    R = buckets_BHRN.shape[2]
    if keep_BN is not None:
        buckets_BHRN = buckets_BHRN.masked_fill(~keep_BN[:, None, None], torch.iinfo(torch.int64).max)
    order_BHRN = buckets_BHRN.argsort(dim=-1, stable=True)

    def chunks(x_BHND: Tensor) -> Tensor:
        index = order_BHRN.flatten(2)[..., None].expand(-1, -1, -1, x_BHND.shape[3])
        return x_BHND.gather(2, index).unflatten(2, (-1, size))

    def with_before(x_BHCS: Tensor) -> Tensor:
        return torch.cat([x_BHCS.roll(1, 2), x_BHCS], 3)

    places_BHCS = order_BHRN.flatten(2).unflatten(2, (-1, size))
    keys, values = with_before(chunks(keys_BHND)), with_before(chunks(v_BHND))
    out, logs = _attend(chunks(q_BHND), keys, values, places_BHCS, with_before(places_BHCS), keep_BN)
    back_BHRN1 = order_BHRN.argsort(-1)[..., None]
    out_BHRND = out.reshape(B, H, R, N, D).gather(3, back_BHRN1.expand(-1, -1, -1, -1, D))
    logs_BHRN1 = logs.reshape(B, H, R, N, 1).gather(3, back_BHRN1)
    return (out_BHRND * torch.softmax(logs_BHRN1, 2)).sum(2)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, places: Tensor, key_places: Tensor, keep_BN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each query's sum of exponentials, (…, 1)."""
    scores = q @ keys.mT
    if keep_BN is not None:
        B, H = key_places.shape[:2]
        kept = keep_BN[:, None].expand(B, H, -1).gather(2, key_places.flatten(2)).view(key_places.shape)
        scores = scores.masked_fill(~kept[..., None, :], _MASKED)
    scores = scores.masked_fill(places[..., None] == key_places[..., None, :], _ITSELF)
    return torch.softmax(scores, -1) @ values, scores.logsumexp(-1, keepdim=True)
