"""The keys that decide the shapes of a model's weights."""

SHAPE_KEYS = (
    "vocab_size",
    "embedding_dim",
    "transformer_dim",
    "transformer_hidden_dim",
    "num_layers",
    "num_head",
    "head_dim",
)
"""Names in the section "model": what another model's weights must share with a checkpoint's. Lengths, sentence types
and convolution kernels are not among them: weights can be fitted to another number of these."""
