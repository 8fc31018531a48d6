"""Attentions of this project in the models of transformers: `register()`, then `attn_implementation="nystrom"`."""

from nystromformer.interop.drop_in.names import Registered, register
from nystromformer.interop.drop_in.report import Check, LayerError, check, report_error

__all__ = ["Check", "LayerError", "Registered", "check", "register", "report_error"]
