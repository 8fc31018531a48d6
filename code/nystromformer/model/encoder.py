"""The encoder: embeddings and layers, one mask for all of them.

Shapes: B batch, N tokens, K of their positions, E width.
"""

import torch
from torch import Tensor, nn

from nystromformer.attention import Attention, AttentionMask
from nystromformer.config import AttentionConfig, ModelConfig
from nystromformer.model.embeddings import Embeddings
from nystromformer.model.layers import Layer, at_positions
from nystromformer.model.norm import build_norm
from nystromformer.model.reversible import run_reversibly
from nystromformer.model.rotary import Rotary, Rotation

_EMBEDDING_STD = 0.02


class LayerStack(nn.Module):
    """The layers of a config, what turns their queries and keys, and the norm after the last."""

    def add_layers(self, config: ModelConfig) -> None:
        """Build them, with what layers of one attention have in common."""
        self.reversible = config.reversible
        self.rotary: Rotary | None = None
        self.local_rotary: Rotary | None = None
        if config.positions == "rotary":
            self.rotary = Rotary(config.num_head, config.head_dim, config.max_seq_len, config.rope_theta)
            local = config.rope_theta_local
            own = self.rotary if local is None else Rotary(config.num_head, config.head_dim, config.max_seq_len, local)
            self.local_rotary = own
        self.layers = nn.ModuleList(
            Layer(config, attention, normed=index > 0 or not config.skip_first_prenorm)
            for index, attention in enumerate(config.attentions)
        )
        self.final_norm = build_norm(config, config.transformer_dim) if config.norm == "pre" else nn.Identity()
        first: dict[AttentionConfig, Attention] = {}
        for core in self.cores():
            core.share(first.setdefault(core.config, core))
        self.apply(initialize)
        if config.depth_scaled_init:
            for layer in self.stack():
                for last in (layer.attention.output, layer.feed_forward.down):
                    with torch.no_grad():
                        last.weight.div_((2 * config.num_layers) ** 0.5)

    def stack(self) -> list[Layer]:
        """The layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def cores(self) -> list[Attention]:
        """The attention of each layer."""
        return [layer.attention.core for layer in self.stack()]

    def run_layers(self, x_BNE: Tensor, mask: AttentionMask | None, positions_BK: Tensor | None) -> Tensor:
        """(B, N, E), or (B, K, E) at the given positions, of the last layer."""
        rotations = self._rotations(x_BNE.shape[1], x_BNE.device)
        if self.reversible:
            x_BNE = run_reversibly(self.stack(), x_BNE, mask, positions_BK, rotations)
        else:
            last = len(self.layers) - 1
            for index, (layer, rotation) in enumerate(zip(self.layers, rotations, strict=True)):
                x_BNE = layer(x_BNE, mask, positions_BK if index == last else None, rotation)
        out: Tensor = self.final_norm(x_BNE)
        return out

    def _rotations(self, length: int, device: torch.device) -> list[Rotation | None]:
        """What turns each layer's queries and keys."""
        if self.rotary is None or self.local_rotary is None:
            return [None] * len(self.layers)
        far, near = (each(length, device) for each in (self.rotary, self.local_rotary))
        return [near if layer.takes_local_rotation else far for layer in self.stack()]


class Encoder(LayerStack):
    """A BERT-style encoder over any of the attentions; `encoder(tokens_BN, mask) -> hidden_BNE`. Embeddings of others
    than tokens have the config's width."""

    def __init__(self, config: ModelConfig, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.pooling = config.pooling
        self.embeddings = Embeddings(config) if embeddings is None else embeddings
        self.add_layers(config)

    def forward(
        self,
        tokens_BN: Tensor,
        mask: Tensor | AttentionMask | None = None,
        types_BN: Tensor | None = None,
        positions_BK: Tensor | None = None,
    ) -> Tensor:
        """(B, N, E), or (B, K, E) at the wanted positions. What stands at masked positions has no meaning.

        Args:
            tokens_BN: token ids, int64.
            mask: None, bool (B, N) with True = keep, or an AttentionMask.
            types_BN: sentence types, int64; None means type 0.
            positions_BK: positions whose vectors are wanted, int64, repeated at will; None means all. The last layer
                then computes what follows its attention at these positions only, which changes none of them.
        """
        shared = AttentionMask(mask) if isinstance(mask, Tensor) else mask
        return self.run_layers(self.embeddings(tokens_BN, types_BN), shared, positions_BK)

    def pool(self, hidden_BNE: Tensor, mask: Tensor | AttentionMask | None = None) -> Tensor:
        """One vector per row: its first valid token, or the mean of them, as `pooling` says; (B, E)."""
        if self.pooling == "first":
            return at_positions(hidden_BNE, first_of_rows(hidden_BNE, mask))[:, 0]
        return mean_of_rows(hidden_BNE, mask)


def first_of_rows(rows: Tensor, mask: Tensor | AttentionMask | None) -> Tensor:
    """The position of each row's first valid token, (B, 1) int64: not 0 where padding stands before it; rows (B, …)."""
    if mask is None:
        return torch.zeros(len(rows), 1, dtype=torch.int64, device=rows.device)
    keep_BN = mask.keep_BN if isinstance(mask, AttentionMask) else mask
    return keep_BN.to(torch.uint8).argmax(1, keepdim=True)


def mean_of_rows(hidden_BNE: Tensor, mask: Tensor | AttentionMask | None = None) -> Tensor:
    """The mean of each row's valid tokens, (B, E); arguments as of `Encoder.pool`."""
    if mask is None:
        return hidden_BNE.mean(1)
    keep_BN = mask.keep_BN if isinstance(mask, AttentionMask) else mask
    total_BE = torch.where(keep_BN[:, :, None], hidden_BNE, 0.0).sum(1)
    return total_BE / keep_BN.sum(1, keepdim=True).clamp(min=1)


def initialize(module: nn.Module) -> None:
    """The authors' initialisation: embeddings normal, linear maps torch's default, biases zero.

    At BERT's width of 768 the default weights have BERT's standard deviation of 0.02; unlike it they grow as the width
    shrinks, without which narrow models stay at their initial output for hundreds of steps.
    """
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=_EMBEDDING_STD)
    elif isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
