"""The encoder: embeddings and layers, one mask for all of them.

Shapes: B batch, N tokens, K of their positions, E width.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from nystromformer.attention import Attention, AttentionMask
from nystromformer.config import AttentionConfig, ModelConfig
from nystromformer.model.embeddings import Embeddings
from nystromformer.model.layers import Layer
from nystromformer.model.reversible import run_reversibly
from nystromformer.model.rotary import Rotary, Rotation

_EMBEDDING_STD = 0.02


class Encoder(nn.Module):
    """A BERT-style encoder over any of the attentions; `encoder(tokens_BN, mask) -> hidden_BNE`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooling = config.pooling
        self.reversible = config.reversible
        self.embeddings = Embeddings(config)
        self.rotary = build_rotary(config)
        self.layers = build_layers(config)
        self.final_norm = build_final_norm(config)
        self.apply(initialize)

    def forward(
        self,
        tokens_BN: Tensor,
        mask: Tensor | AttentionMask | None = None,
        types_BN: Tensor | None = None,
        positions_BK: Tensor | None = None,
    ) -> Tensor:
        """Encode.

        Args:
            tokens_BN: token ids, int64.
            mask: None, bool (B, N) with True = keep, or an AttentionMask.
            types_BN: sentence types, int64; None means type 0.
            positions_BK: positions whose vectors are wanted, int64, repeated at will; None means all. The last layer
                then computes what follows its attention at these positions only, which changes none of them.

        Returns:
            (B, N, E), or (B, K, E) at the wanted positions. What stands at masked positions has no meaning.

        Raises:
            ValueError: input longer than `max_seq_len`, or a mask that does not fit.
        """
        shared = AttentionMask(mask) if isinstance(mask, Tensor) else mask
        x_BNE = self.embeddings(tokens_BN, types_BN)
        rotation = None if self.rotary is None else self.rotary(tokens_BN.shape[1], tokens_BN.device)
        layered = run_layers(self.layers, x_BNE, shared, positions_BK, self.reversible, rotation)
        out: Tensor = self.final_norm(layered)
        return out

    def pool(
        self, hidden_BNE: Tensor, mask: Tensor | AttentionMask | None = None, over_padding: bool = False
    ) -> Tensor:
        """One vector per row: its first token, or the mean of its valid tokens, as `pooling` says; (B, E).

        Args:
            over_padding: let the mean count masked positions, as zeros: it is then of N tokens.
        """
        if self.pooling == "first":
            return hidden_BNE[:, 0]
        if mask is None:
            return hidden_BNE.mean(1)
        keep_BN = mask.keep_BN if isinstance(mask, AttentionMask) else mask
        total_BE = torch.where(keep_BN[:, :, None], hidden_BNE, 0.0).sum(1)
        return total_BE / (hidden_BNE.shape[1] if over_padding else keep_BN.sum(1, keepdim=True).clamp(min=1))


def build_layers(config: ModelConfig) -> nn.ModuleList:
    """The layers of a config, which share what their attentions share."""
    layers = nn.ModuleList(Layer(config, attention) for attention in config.attentions)
    _share(layers, config.attentions)
    return layers


def build_rotary(config: ModelConfig) -> Rotary | None:
    """What turns queries and keys; None where the config's positions are learned."""
    return Rotary(config.num_head, config.head_dim, config.max_seq_len) if config.positions == "rotary" else None


def build_final_norm(config: ModelConfig) -> nn.Module:
    """What follows the last layer: a norm where those of the layers stand before each branch."""
    return nn.LayerNorm(config.transformer_dim, config.layer_norm_eps) if config.norm == "pre" else nn.Identity()


def run_layers(
    layers: nn.ModuleList,
    x_BNE: Tensor,
    mask: AttentionMask | None,
    positions_BK: Tensor | None = None,
    reversible: bool = False,
    rotation: Rotation | None = None,
) -> Tensor:
    """(B, N, E), or (B, K, E) at the given positions, of the last layer."""
    if reversible:
        stack = [layer for layer in layers if isinstance(layer, Layer)]
        return run_reversibly(stack, x_BNE, mask, positions_BK, rotation)
    last = len(layers) - 1
    for index, layer in enumerate(layers):
        x_BNE = layer(x_BNE, mask, positions_BK if index == last else None, rotation)
    return x_BNE


def _share(layers: Iterable[nn.Module], attentions: Iterable[AttentionConfig]) -> None:
    """Let layers of one attention have the parameters in common that the method shares."""
    first: dict[AttentionConfig, Attention] = {}
    for layer, config in zip(layers, attentions, strict=True):
        assert isinstance(layer, Layer)
        layer.attention.core.share(first.setdefault(config, layer.attention.core))


def initialize(module: nn.Module) -> None:
    """The authors' initialisation: embeddings normal, linear maps torch's default, biases zero.

    At BERT's width of 768 the default weights have BERT's standard deviation of 0.02; unlike it they grow as the width
    shrinks, without which narrow models stay at their initial output for hundreds of steps.
    """
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=_EMBEDDING_STD)
    elif isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
