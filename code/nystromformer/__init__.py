"""Nyströmformer: O(n) self-attention by the Nyström method (Xiong et al., AAAI 2021)."""

__version__ = "0.1.0"
