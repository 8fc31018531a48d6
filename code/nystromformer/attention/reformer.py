"""Reformer attention (Kitaev et al., "Reformer: The Efficient Transformer", ICLR 2020): locality-sensitive hashing.

Shapes: B batch, H heads, N tokens, D head dim, R rounds of hashing, S tokens of a chunk, K columns of a rotation.
"""

from dataclasses import replace

import torch
from torch import Tensor

from nystromformer.attention.base import Holds, Needs
from nystromformer.attention.chunks import attend_in_chunks
from nystromformer.attention.decisions import decided
from nystromformer.attention.hashing import MOST_COLUMNS, buckets_of, chunk_count, chunks_of, sort_by_buckets
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.redrawn import RedrawnAttention, generator_of
from nystromformer.attention.scores import default_scale
from nystromformer.attention.tracing import without_autocast
from nystromformer.config.attention.methods import ReformerConfig


class ReformerAttention(RedrawnAttention):
    """softmax(QK̂ᵀ/√D) V among the tokens of a token's bucket, K̂ = Q/‖Q‖: O(N · S · R) (section 2, Appendix A).

    Queries and keys are one tensor: `k` must be `q`. In each round a row's valid tokens are sorted by their bucket,
    then by position, and cut into chunks; a token attends to those of its bucket that stand in its own chunk and in the
    one before, the first chunk's being the row's own last. A token that hashes into another's bucket in several rounds
    counts once, and itself only where nothing else is there. A row of at most `chunk_length` valid tokens has one
    bucket and gets exact attention, with these keys. A row of c chunks has 2c buckets in each round; more than 128 are
    products of two hashes.

    The paper divides a weight by the number of rounds in which the two tokens have one bucket (N of eq. 8), which
    counts rounds in which chunks part them, too; here the first round in which they meet counts, and no other.

    `holds.export` is False: how many chunks, columns of rotations and hashes are computed is chosen by the length,
    which one exported program for every length cannot do.
    """

    config: ReformerConfig
    needs = Needs(shared_query_key=True, random_numbers=True)
    numbers = "rotations_RDK"
    rotations_RDK: Tensor

    @property
    def holds(self) -> Holds:
        return replace(super().holds, export=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        B, _, N, _ = q.shape
        size, dtype = self.config.chunk_length, torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            with torch.no_grad():
                lengths_B = torch.full((B,), N, device=q.device) if mask is None else mask.lengths_B
                chunks, _ = chunk_count(N, size)
                own_B = None if mask is None else chunks_of(lengths_B, size)
                queries_BNHD = q.detach().to(dtype).transpose(1, 2)
                # Kept in 16 bits, which are enough for (2 · MOST_COLUMNS)².
                decision = decided(lambda: buckets_of(queries_BNHD, self.rotations_RDK, own_B, chunks).short())
                keep_BN = None if mask is None else mask.keep_BN
                places = sort_by_buckets(decision.long(), lengths_B, keep_BN, size, self.config.across_buckets)
            return attend_in_chunks(q.to(dtype), v.to(dtype), places, size, default_scale(self.head_dim)).to(q.dtype)

    def drawn(self, seed: int, draw: int) -> Tensor:
        """R (section 2, "Locality sensitive hashing") of each round, float32."""
        shape = (self.config.num_hashes, self.head_dim, 2 * MOST_COLUMNS)
        return torch.randn(shape, generator=generator_of(seed, draw), dtype=torch.float32, device="cpu")
