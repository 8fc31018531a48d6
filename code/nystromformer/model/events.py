"""Models of rows of events, such as a client's card transactions: what an event is, is said by categories and numbers
in the place of a token.

Rows begin with the newest event. Shapes: B rows, N events, E width, C categorical and F numerical features, K masked
events.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.embeddings import Embeddings
from nystromformer.model.encoder import Encoder, initialize, mean_of_rows
from nystromformer.model.heads import ClassificationHead
from nystromformer.model.layers import at_positions

Network = Literal["encoder", "lstm", "gru"]


class Hidden(NamedTuple):
    """Masked events."""

    which_BN: Tensor
    """Bool, True for these."""
    instead_E: Tensor
    """What stands in the place of their features."""


class EventEmbeddings(Embeddings):
    """The sum of the embeddings of an event's categories and of its numbers mapped linearly, then as for tokens.

    Args:
        config: its `vocab_size` is the number of all categories' ids together, at least.
        categories: how many ids each categorical feature has.
        numbers: how many numerical features there are.
    """

    starts: Tensor

    def __init__(self, config: ModelConfig, categories: Sequence[int], numbers: int) -> None:
        super().__init__(config)
        if sum(categories) > config.vocab_size:
            raise ValueError(f"expected vocab_size of at least {sum(categories)}, found {config.vocab_size}")
        self.categories = tuple(categories)
        starts = [sum(categories[:number]) for number in range(len(categories))]
        self.register_buffer("starts", torch.tensor(starts, dtype=torch.int64), persistent=False)
        self.number = nn.Linear(2 * numbers, config.embedding_dim) if numbers else None

    def embed(self, categories_BNC: Tensor, numbers_BNF: Tensor, hidden: Hidden | None = None) -> Tensor:
        """Embed events, (B, N, E).

        Args:
            categories_BNC: ids within each feature, int64.
            numbers_BNF: float32; NaN where one is missing, which has an embedding of its own.
            hidden: events of which nothing may be seen; None: none.
        """
        rows, length, count = categories_BNC.shape
        x_BNE = self.word.weight.new_zeros(rows, length, self.word.embedding_dim)
        if count:
            ids_ZC = (categories_BNC + self.starts).view(-1, count)
            x_BNE = x_BNE + F.embedding_bag(ids_ZC, self.word.weight, mode="sum").view(rows, length, -1)
        if self.number is not None:
            missing_BNF = numbers_BNF.isnan()
            values_BNF = torch.where(missing_BNF, 0.0, numbers_BNF)
            x_BNE = x_BNE + self.number(torch.cat([values_BNF, missing_BNF.to(values_BNF)], dim=2))
        if hidden is not None:
            x_BNE = torch.where(hidden.which_BN[:, :, None], hidden.instead_E.to(x_BNE.dtype), x_BNE)
        return self.finish(x_BNE)


class EventEncoder(Encoder):
    """An encoder of events by any of the attentions."""

    embeddings: EventEmbeddings

    def __init__(self, config: ModelConfig, categories: Sequence[int], numbers: int) -> None:
        super().__init__(config, EventEmbeddings(config, categories, numbers))

    def encode(
        self, categories_BNC: Tensor, numbers_BNF: Tensor, mask_BN: Tensor, hidden: Hidden | None = None
    ) -> Tensor:
        """(B, N, E); arguments as of EventEmbeddings, and which events are valid."""
        x_BNE = self.embeddings.embed(categories_BNC, numbers_BNF, hidden)
        return self.run_layers(x_BNE, AttentionMask(mask_BN), None)


class RecurrentEncoder(nn.Module):
    """An LSTM or GRU over the same embeddings, without positions, from the oldest event to the newest.

    It has `num_layers` layers of `transformer_dim`, which is its width, and the config's dropout between them.
    """

    def __init__(
        self, config: ModelConfig, categories: Sequence[int], numbers: int, network: Literal["lstm", "gru"]
    ) -> None:
        super().__init__()
        self.pooling = config.pooling
        without_positions = config.model_copy(update={"positions": "rotary"})
        self.embeddings = EventEmbeddings(without_positions, categories, numbers)
        self.embeddings.apply(initialize)
        width, layers = config.transformer_dim, config.num_layers
        kind = nn.LSTM if network == "lstm" else nn.GRU
        dropout = config.dropout_prob if layers > 1 else 0.0
        self.cells = kind(width, width, layers, batch_first=True, dropout=dropout)
        self.layers = nn.ModuleList()
        """None of which is a unit of its own to compile or to shard."""

    def encode(
        self, categories_BNC: Tensor, numbers_BNF: Tensor, mask_BN: Tensor, hidden: Hidden | None = None
    ) -> Tensor:
        """As EventEncoder."""
        x_BNE = self.embeddings.embed(categories_BNC, numbers_BNF, hidden)
        length = x_BNE.shape[1]
        lengths_B = mask_BN.sum(1)
        # From the newest event first to the oldest one first, and back. Padding comes last, after all that is used:
        # packed rows would give the same, and take 30 times as long for 1,500 events on a CPU.
        turned_BN1 = (lengths_B[:, None] - 1 - torch.arange(length, device=x_BNE.device)).clamp(min=0)[:, :, None]
        oldest_first_BNE = x_BNE.gather(1, turned_BN1.expand_as(x_BNE))
        hidden_BNE: Tensor = self.cells(oldest_first_BNE)[0]
        return hidden_BNE.gather(1, turned_BN1.expand_as(hidden_BNE))

    def pool(self, hidden_BNE: Tensor, mask_BN: Tensor) -> Tensor:
        """As of Encoder."""
        return hidden_BNE[:, 0] if self.pooling == "first" else mean_of_rows(hidden_BNE, mask_BN)


def build_event_encoder(
    config: ModelConfig, categories: Sequence[int], numbers: int, network: Network
) -> EventEncoder | RecurrentEncoder:
    """The encoder that a network's name stands for."""
    if network == "encoder":
        return EventEncoder(config, categories, numbers)
    return RecurrentEncoder(config, categories, numbers, network)


class EventModel(nn.Module):
    """Class logits of a row of events, from the newest event's vector or the mean, as `pooling` says."""

    def __init__(
        self, config: ModelConfig, categories: Sequence[int], numbers: int, network: Network, classes: int
    ) -> None:
        super().__init__()
        self.encoder = build_event_encoder(config, categories, numbers, network)
        self.head = ClassificationHead(config.transformer_dim, classes, config.dropout_prob)

    def forward(self, categories_BNC: Tensor, numbers_BNF: Tensor, mask_BN: Tensor) -> Tensor:
        """Logits (B, classes); arguments as of EventEncoder."""
        hidden_BNE = self.encoder.encode(categories_BNC, numbers_BNF, mask_BN)
        logits: Tensor = self.head(self.encoder.pool(hidden_BNE, mask_BN))
        return logits


class MaskedEventModel(nn.Module):
    """What masked events were: each category by the embeddings' own weights, each number by a linear map."""

    def __init__(self, config: ModelConfig, categories: Sequence[int], numbers: int, network: Network) -> None:
        super().__init__()
        self.encoder = build_event_encoder(config, categories, numbers, network)
        # Not the embeddings': of a model that masks nothing it would have no gradient, which processes wait for.
        self.masked = nn.Parameter(torch.zeros(config.embedding_dim))
        self.transform = nn.Linear(config.transformer_dim, config.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(sum(categories)))
        self.number = nn.Linear(config.embedding_dim, numbers) if numbers else None
        self.transform.apply(initialize)

    def forward(
        self,
        categories_BNC: Tensor,
        numbers_BNF: Tensor,
        mask_BN: Tensor,
        positions_BK: Tensor,
        counted_BK: Tensor,
    ) -> Tensor:
        """Of each row the loss sum over its masked events (the mean over features of cross-entropies and squared
        errors), the sum over them of the share of features that are right (of a number 1 − squared error), and how many
        they are; (B, 3) float32. Numbers that are missing cost nothing.

        Args:
            positions_BK, counted_BK: which events are masked, so that nothing of them is seen, int64; bool, False in
                the padding, which may name any.
        """
        masked_BN = torch.zeros_like(mask_BN, dtype=torch.float32)
        masked_BN = masked_BN.scatter_add(1, positions_BK, counted_BK.float())
        vectors_BNE = self.encoder.encode(categories_BNC, numbers_BNF, mask_BN, Hidden(masked_BN > 0, self.masked))
        x_BKE = F.gelu(self.transform(at_positions(vectors_BNE, positions_BK)))
        losses, right = [], []
        start = 0
        categories_BKC, numbers_BKF = (at_positions(each, positions_BK) for each in (categories_BNC, numbers_BNF))
        for column, size in enumerate(self.encoder.embeddings.categories):
            weight_VE = self.encoder.embeddings.word.weight[start : start + size]
            logits_BKV = F.linear(x_BKE, weight_VE, self.bias[start : start + size]).float()
            ids_BK = categories_BKC[:, :, column]
            losses.append(F.cross_entropy(logits_BKV.mT, ids_BK, reduction="none"))
            right.append((logits_BKV.detach().argmax(2) == ids_BK).float())
            start += size
        if self.number is not None:
            known_BKF = ~numbers_BKF.isnan()
            guessed_BKF = self.number(x_BKE).float()
            errors_BKF = torch.where(known_BKF, guessed_BKF - numbers_BKF.nan_to_num(), 0.0) ** 2
            losses += list(errors_BKF.unbind(2))
            right += list(((1 - errors_BKF.detach()) * known_BKF).unbind(2))
        means = (torch.stack(each).mean(0) for each in (losses, right))
        each_BK3 = torch.stack([*means, torch.ones_like(losses[0])], 2)
        return (each_BK3 * counted_BK[:, :, None]).sum(1)
