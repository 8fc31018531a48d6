"""Layers for models of one's own: `NystromAttention(dim, heads)(x, mask)`, `Encoder(dim, depth, heads)(x, mask)`, and
`replace_attention(module)` for what `torch.nn` has."""

from nystromformer.nn.attention import NystromAttention
from nystromformer.nn.encoder import Encoder
from nystromformer.nn.multihead import MultiheadAttention
from nystromformer.nn.replace import replace_attention

__all__ = ["Encoder", "MultiheadAttention", "NystromAttention", "replace_attention"]
