"""Token, position and sentence-type embeddings.

Shapes: B batch, N tokens, E width.
"""

import torch
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.model.dropout import Dropout
from nystromformer.model.norm import build_norm


class Embeddings(nn.Module):
    """Sum of the embeddings, projected where `embedding_dim` is not the layers' width, as the authors do, then
    normalised where `embedding_norm` says so; (B, N) int64 -> (B, N, E).

    Learned positions start at `position_offset` (RoBERTa's 2: its first two rows are never used), whatever the padding;
    rotary ones are the layers' affair, and none are added here.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, out = config.embedding_dim, config.transformer_dim
        self.max_seq_len = config.max_seq_len
        self.position_offset = config.position_offset
        self.word = nn.Embedding(config.vocab_size, width)
        rows = config.max_seq_len + config.position_offset
        self.position = nn.Embedding(rows, width) if config.positions == "learned" else None
        self.sentence_type = nn.Embedding(config.num_sen_type, width)
        self.projection = nn.Identity() if width == out else nn.Linear(width, out, config.bias)
        self.norm = build_norm(config, out) if config.embedding_norm else nn.Identity()
        apart = config.embedding_dropout_prob
        self.dropout = Dropout(config.dropout_prob if apart is None else apart)

    def forward(self, tokens_BN: Tensor, types_BN: Tensor | None = None) -> Tensor:
        """Embed token ids; without sentence types all are of type 0."""
        return self.finish(self.word(tokens_BN), types_BN)

    def finish(self, x_BNE: Tensor, types_BN: Tensor | None = None) -> Tensor:
        """Add positions and types to what stands for the tokens, project, normalise and drop; (B, N, `embedding_dim`)
        -> (B, N, E). ValueError: more tokens than `max_seq_len`, or none."""
        length = x_BNE.shape[1]
        if not torch.compiler.is_exporting() and length == 0:
            raise ValueError("expected at least one token per row, found none; pad empty rows and mask them")
        if not torch.compiler.is_exporting() and length > self.max_seq_len:
            raise ValueError(f"expected at most max_seq_len = {self.max_seq_len} tokens, found {length}")
        if self.position is not None:
            x_BNE = x_BNE + self.position.weight[self.position_offset : self.position_offset + length]
        x_BNE = x_BNE + (self.sentence_type.weight[0] if types_BN is None else self.sentence_type(types_BN))
        embedded: Tensor = self.dropout(self.norm(self.projection(x_BNE)))
        return embedded
