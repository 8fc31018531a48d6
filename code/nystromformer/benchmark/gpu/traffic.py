"""The numbers that must cross a GPU's memory, and the arithmetic of a training step, counted.

Shapes: N tokens, M landmarks, D head dim, E width, F hidden width.
"""

from nystromformer.config import ModelConfig

SMALLEST_FORWARD = 4
"""Q, K, V and out, each once, in units of the N·D numbers of Q: what any attention must move."""
LEAST_FORWARD = 6
"""What the method takes: its landmarks need all of Q and K before an output can be written. Q | K, V | Q, V, out."""
LEAST_BACKWARD = 10
"""Q, d_out | K, V, d_out, d_K, d_V | Q, d_out, d_Q. The filter's gradient needs V and d_out, which are there."""


def step_flops(config: ModelConfig, length: int, rows: int, predictions: int) -> float:
    """Operations of a step of masked language modelling: 2 for each multiplication of the matrix products, three times
    those of the forward (of the attention, as it says itself). What is computed again to save memory does not count.

    Args:
        predictions: masked positions of a row; what follows the last layer's attention is computed there alone.
    """
    own = 0.0
    E, F = config.transformer_dim, config.transformer_hidden_dim
    total = 0.0 if config.embedding_dim == E else 2.0 * length * config.embedding_dim * E
    for index, attention in enumerate(config.attentions):
        wanted = predictions if index == config.num_layers - 1 else length
        total += 2 * length * attention.num_projections * E * E + 2 * wanted * (E * E + 2 * E * F)
        own += sum(attention.arithmetic(config.num_head, config.head_dim, length))
        total += 2 * length * E * (attention.conv_kernel_size or 0)
    total += 2 * predictions * (E * config.embedding_dim + config.embedding_dim * config.vocab_size)
    return rows * (own + 3.0 * total)
