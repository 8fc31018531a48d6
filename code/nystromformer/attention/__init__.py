"""Attentions behind one contract: `create_attention(name, ...)`, then `attention(q, k, v, mask)`."""

from nystromformer.attention.base import Attention, Holds, Needs
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.nystrom import Factors, NystromAttention
from nystromformer.attention.pinv import iterative_pinv
from nystromformer.attention.registry import attention_class, create_attention, register_attention
from nystromformer.attention.softmax import SoftmaxAttention

__all__ = [
    "Attention",
    "AttentionMask",
    "Factors",
    "Holds",
    "Needs",
    "NystromAttention",
    "SoftmaxAttention",
    "attention_class",
    "create_attention",
    "iterative_pinv",
    "register_attention",
]
