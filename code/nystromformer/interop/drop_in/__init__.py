"""Attentions of this project in the models of transformers: `register()`, then `attn_implementation="nystrom"`."""

from nystromformer.interop.drop_in.names import check, register

__all__ = ["check", "register"]
