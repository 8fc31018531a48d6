"""Models of rows of events, such as a client's card transactions: what an event is, is said by categories and numbers
in the place of a token.

Rows begin with the newest event. Shapes: B rows, N events, E width, C categorical and F numerical features.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.embeddings import Embeddings
from nystromformer.model.encoder import Encoder, initialize, mean_of_rows
from nystromformer.model.heads import ClassificationHead

Network = Literal["encoder", "lstm", "gru"]


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

    def embed(self, categories_BNC: Tensor, numbers_BNF: Tensor) -> Tensor:
        """Embed events, (B, N, E).

        Args:
            categories_BNC: ids within each feature, int64.
            numbers_BNF: float32; NaN where one is missing, which has an embedding of its own.
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
        return self.finish(x_BNE)


class EventEncoder(Encoder):
    """An encoder of events by any of the attentions."""

    embeddings: EventEmbeddings

    def __init__(self, config: ModelConfig, categories: Sequence[int], numbers: int) -> None:
        super().__init__(config, EventEmbeddings(config, categories, numbers))

    def encode(self, categories_BNC: Tensor, numbers_BNF: Tensor, mask_BN: Tensor) -> Tensor:
        """(B, N, E); arguments as of EventEmbeddings, and which events are valid."""
        x_BNE = self.embeddings.embed(categories_BNC, numbers_BNF)
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

    def encode(self, categories_BNC: Tensor, numbers_BNF: Tensor, mask_BN: Tensor) -> Tensor:
        """As EventEncoder."""
        x_BNE = self.embeddings.embed(categories_BNC, numbers_BNF)
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


class EventModel(nn.Module):
    """Class logits of a row of events, from the newest event's vector or the mean, as `pooling` says."""

    def __init__(
        self, config: ModelConfig, categories: Sequence[int], numbers: int, network: Network, classes: int
    ) -> None:
        super().__init__()
        self.encoder = (
            EventEncoder(config, categories, numbers)
            if network == "encoder"
            else RecurrentEncoder(config, categories, numbers, network)
        )
        self.head = ClassificationHead(config.transformer_dim, classes, config.dropout_prob)

    def forward(self, categories_BNC: Tensor, numbers_BNF: Tensor, mask_BN: Tensor) -> Tensor:
        """Logits (B, classes); arguments as of EventEncoder."""
        hidden_BNE = self.encoder.encode(categories_BNC, numbers_BNF, mask_BN)
        logits: Tensor = self.head(self.encoder.pool(hidden_BNE, mask_BN))
        return logits
