"""Softmax of chunks of sorted tokens over themselves and the chunk before, the rounds of hashing in one sum.

Shapes: B batch, H heads, N tokens, D head dim, R rounds, S tokens of a chunk, W tokens that a chunk attends to (2S, or
S where a row has but one chunk), T = X·P places of a round (see hashing.py), C chunks of these, J that attend, all or
a piece of them, M = B·N·H vectors.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nystromformer.attention.hashing import Sorted, chunk_count
from nystromformer.attention.tracing import is_plain, once_differentiable, without_autocast

_SELF = -1e5
"""A token's score with itself (Appendix A): beside any other it weighs nothing."""
_NEVER = -1e6
"""The same in all rounds but the first, beside which they weigh nothing."""
_LEAST_NORM = 1e-12
_PIECE = {"cpu": 2**18}
"""Scores that are held at a time, where a cache holds them; elsewhere a round's at once."""


def attend_in_chunks(q_BHND: Tensor, v_BHND: Tensor, places: Sorted, size: int, scale: float) -> Tensor:
    """One softmax over all that a token meets in some round (eq. 4, 6 and Appendix A), (B, H, N, D).

    Args:
        q_BHND: queries, and keys when each is divided by its length.
        places: where these stand in each round.
        size: S.
        scale: of the scores.
    """
    B, H, N, D = q_BHND.shape
    # Views, of what projections give.
    q_MD, v_MD = (x.transpose(1, 2).reshape(-1, D) for x in (q_BHND, v_BHND))
    k_MD = q_MD * (scale / q_MD.norm(dim=1, keepdim=True).clamp(min=_LEAST_NORM))
    before = chunk_count(N, size)[1]
    if is_plain():
        out_MD = _plain(q_MD, k_MD, v_MD, places, size, before)
    else:
        out_MD = _Chunks.apply(q_MD, k_MD, v_MD, *places, size, before)
    return out_MD.view(B, N, H, D).transpose(1, 2)


class _Round:
    """What stands where in one round, and what must not be attended to: what stands in another bucket, does not count,
    or was met in an earlier round.
    """

    def __init__(self, places: Sorted, number: int, size: int, before: int) -> None:
        self.vectors_T = places.vectors_RP[number]
        self.places_M = places.places_RM[number]
        self.itself = _NEVER if number else _SELF
        self.width = (1 + before) * size
        self.size, self.before = size, before
        codes_T = places.codes_RP[number]
        # What does not count is -1 as a key and -2 as a query, as are copies, which stand at a row's first places.
        is_query_T = codes_T >= 0
        if before:
            length = len(codes_T) // len(places.copied_X)
            is_query_T = is_query_T & (torch.arange(len(codes_T), device=codes_T.device) % length >= size)
        self._codes = self._queries(torch.where(is_query_T, codes_T, -2)), self._keys(codes_T)
        self._earlier = []
        for earlier in range(number):
            here_T, next_T = (x[earlier].index_select(0, self.vectors_T) for x in (places.here_RM, places.next_RM))
            self._earlier.append((self._queries(here_T), self._keys(here_T), self._keys(next_T)))

    def windows(self, x_TD: Tensor) -> Tensor:
        """(J, W, D): what each chunk attends to, a view."""
        return x_TD.unfold(0, self.width, self.size).mT

    def chunks(self, x_TD: Tensor) -> Tensor:
        """(J, S, D): the chunks that attend, a view."""
        return x_TD.view(-1, self.size, x_TD.shape[1])[self.before :]

    def forbidden(self, piece: slice = slice(None)) -> Tensor:
        """(J, S, W)."""
        queries_JS1, keys_J1W = self._codes
        forbidden = queries_JS1[piece] != keys_J1W[piece]
        for own_JS1, here_J1W, next_J1W in self._earlier:
            forbidden |= own_JS1[piece] == here_J1W[piece]
            forbidden |= own_JS1[piece] == next_J1W[piece]
        return forbidden

    def _queries(self, x_T: Tensor) -> Tensor:
        return x_T.view(-1, self.size, 1)[self.before :]

    def _keys(self, x_T: Tensor) -> Tensor:
        return x_T.unfold(0, self.width, self.size)[:, None]


def _plain(q_MD: Tensor, k_MD: Tensor, v_MD: Tensor, places: Sorted, size: int, before: int) -> Tensor:
    outs, sums = [], []
    for number in range(len(places.codes_RP)):
        each = _Round(places, number, size, before)
        q_JSD, k_JWD, v_JWD = (
            view(x[each.vectors_T]) for view, x in ((each.chunks, q_MD), (each.windows, k_MD), (each.windows, v_MD))
        )
        scores_JSW = (q_JSD @ k_JWD.mT).masked_fill(each.forbidden(), float("-inf"))
        itself_SW = torch.arange(size, device=q_MD.device)[:, None] + before * size == torch.arange(
            each.width, device=q_MD.device
        )
        scores_JSW = scores_JSW.masked_fill(itself_SW, each.itself)
        chosen_M = each.places_M - before * size
        sums.append(torch.logsumexp(scores_JSW, -1).flatten()[chosen_M])
        outs.append((torch.softmax(scores_JSW, -1) @ v_JWD).flatten(0, 1)[chosen_M])
    weights_RM = torch.softmax(torch.stack(sums), 0)
    return (weights_RM[:, :, None] * torch.stack(outs)).sum(0)


class _Chunks(torch.autograd.Function):
    """The same by pieces, of which no score is kept: the backward pass computes them again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        places, (size, before) = Sorted(*rest[:-2]), rest[-2:]
        sums = _sums(_Round(places, 0, size, before), q, k, v)
        for number in range(1, len(places.codes_RP)):
            sums = sums.plus(_sums(_Round(places, number, size, before), q, k, v))
        out_MD = sums.values_MD.div_(sums.weights_M1)
        ctx.save_for_backward(q, k, v, out_MD, sums.most_M1 + sums.weights_M1.log_(), *places)
        ctx.sizes = size, before
        return out_MD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k, v, out_MD, sums_M1, *rest = ctx.saved_tensors
        places, (size, before) = Sorted(*rest), ctx.sizes
        with without_autocast(q):
            mean_M1 = (grad * out_MD).sum(1, keepdim=True)
            totals: list[Tensor] = []
            for number in range(len(places.codes_RP)):
                each = _Round(places, number, size, before)
                of_round = _gradients(each, places, q, k, v, grad.contiguous(), mean_M1, sums_M1)
                totals = [a.add_(b) for a, b in zip(totals, of_round, strict=True)] if totals else of_round
        return (*totals, *[None] * (len(rest) + 2))


class _Sums(NamedTuple):
    """What each token met: Σ exp(s − most)·v, Σ exp(s − most) and the greatest score."""

    values_MD: Tensor
    weights_M1: Tensor
    most_M1: Tensor

    def plus(self, other: "_Sums") -> "_Sums":
        """In the place of both."""
        most_M1 = torch.maximum(self.most_M1, other.most_M1)
        own_M1, others_M1 = (x.most_M1.sub_(most_M1).exp_() for x in (self, other))
        values_MD = self.values_MD.mul_(own_M1).addcmul_(other.values_MD, others_M1)
        return _Sums(values_MD, self.weights_M1.mul_(own_M1).addcmul_(other.weights_M1, others_M1), most_M1)


def _sums(each: _Round, q: Tensor, k: Tensor, v: Tensor) -> _Sums:
    q_TD, k_TD, v_TD = (x.index_select(0, each.vectors_T) for x in (q, k, v))
    q_JSD, k_JWD, v_JWD = each.chunks(q_TD), each.windows(k_TD), each.windows(v_TD)
    # The places of copies stay unset, and are not taken.
    values_TD, weights_T1, most_T1 = torch.empty_like(q_TD), *(q_TD.new_empty(len(q_TD), 1) for _ in range(2))
    values_JSD, weights_JS1, most_JS1 = (each.chunks(x) for x in (values_TD, weights_T1, most_T1))
    for piece in _pieces(each, q_JSD):
        scores_JSW = _scores(each, piece, q_JSD, k_JWD)
        torch.amax(scores_JSW, -1, keepdim=True, out=most_JS1[piece])
        exponentials_JSW = scores_JSW.sub_(most_JS1[piece]).exp_()
        torch.sum(exponentials_JSW, -1, keepdim=True, out=weights_JS1[piece])
        torch.bmm(exponentials_JSW, v_JWD[piece], out=values_JSD[piece])
    return _Sums(*(x.index_select(0, each.places_M) for x in (values_TD, weights_T1, most_T1)))


def _gradients(
    each: _Round, places: Sorted, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, mean_M1: Tensor, sums_M1: Tensor
) -> list[Tensor]:
    """Of queries, keys and values, (M, D) each, what one round gives."""
    q_TD, k_TD, v_TD, grad_TD, mean_T1, sums_T1 = (
        x.index_select(0, each.vectors_T) for x in (q, k, v, grad, mean_M1, sums_M1)
    )
    size, before, width = each.size, each.before, each.width
    if before:  # the copies are keys alone
        grad_TD.view(len(places.copied_X), -1, size * grad.shape[1])[:, 0] = 0
    q_JSD, k_JWD, v_JWD, grad_JSD = each.chunks(q_TD), each.windows(k_TD), each.windows(v_TD), each.chunks(grad_TD)
    mean_JS1, sums_JS1 = each.chunks(mean_T1), each.chunks(sums_T1)
    of_q_TD, of_k_TD, of_v_TD = torch.zeros_like(q_TD), torch.zeros_like(q_TD), torch.zeros_like(q_TD)
    of_q_JSD = each.chunks(of_q_TD)
    of_k_CSD, of_v_CSD = (x.view(-1, size, x.shape[1]) for x in (of_k_TD, of_v_TD))
    for piece in _pieces(each, q_JSD):
        weights_JSW = _scores(each, piece, q_JSD, k_JWD).sub_(sums_JS1[piece]).exp_()
        of_scores_JSW = torch.bmm(grad_JSD[piece], v_JWD[piece].mT).sub_(mean_JS1[piece]).mul_(weights_JSW)
        # A token's score with itself is a constant.
        of_scores_JSW.diagonal(width - size, 1, 2).zero_()
        torch.bmm(of_scores_JSW, k_JWD[piece], out=of_q_JSD[piece])
        for of_CSD, left_JSW, right_JSD in (
            (of_k_CSD, of_scores_JSW, q_JSD[piece]),
            (of_v_CSD, weights_JSW, grad_JSD[piece]),
        ):
            for part in range(1 + before):
                chunks = slice(piece.start + part, piece.stop + part)
                left_JSS = left_JSW[:, :, part * size : (part + 1) * size]
                of_CSD[chunks].baddbmm_(left_JSS.mT, right_JSD)
    if before:
        for of_CSD in (of_k_CSD, of_v_CSD):
            copies = of_CSD.view(len(places.copied_X), -1, *of_CSD.shape[1:])[:, 0].clone()
            of_CSD.index_add_(0, places.copied_X, copies)
    return [x.index_select(0, each.places_M) for x in (of_q_TD, of_k_TD, of_v_TD)]


def _scores(each: _Round, piece: slice, q_JSD: Tensor, k_JWD: Tensor) -> Tensor:
    scores_JSW = torch.bmm(q_JSD[piece], k_JWD[piece].mT)
    scores_JSW.masked_fill_(each.forbidden(piece), float("-inf"))
    scores_JSW.diagonal(each.width - each.size, 1, 2).fill_(each.itself)
    return scores_JSW


def _pieces(each: _Round, q_JSD: Tensor) -> Iterator[slice]:
    chunks = len(q_JSD)
    most = _PIECE.get(q_JSD.device.type, chunks * each.size * each.width)
    step = max(1, most // (each.size * each.width))
    for start in range(0, chunks, step):
        yield slice(start, min(start + step, chunks))
