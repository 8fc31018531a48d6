"""How large a model is, by its config alone: exact for the encoder's weights, a lower bound of what else it takes."""

from .network import ModelConfig


def encoder_weights(model: ModelConfig) -> dict[str, int]:
    """Numbers that the encoder learns, by the part of it: the embeddings of each kind, and the layers.

    Rotary positions are no weights.
    """
    width, out, hidden = model.embedding_dim, model.transformer_dim, model.transformer_hidden_dim
    inner = model.num_head * model.head_dim
    kinds = sum(layer.num_projections for layer in model.attentions)
    bias = model.bias
    projections = kinds * (out * inner + bias * inner) + model.num_layers * (inner * out + bias * out)
    up = 2 * hidden if model.feed_forward == "glu" else hidden
    feed_forward = out * up + bias * up + hidden * out + bias * out
    norm = out * (2 if bias and model.norm_type == "layer_norm" else 1)
    norms = 2 * norm * model.num_layers - norm * model.skip_first_prenorm
    sizes = model.num_head, model.head_dim, model.max_seq_len
    own = sum(layer.num_weights(*sizes) for layer in model.attentions)
    shared = sum(attention.num_shared_weights(*sizes) for attention in set(model.attentions))
    projection = out * width + bias * out if width != out else 0
    around = projection + norm * (model.embedding_norm + (model.norm == "pre"))
    positions = model.max_seq_len + model.position_offset if model.positions == "learned" else 0
    return {
        "word embeddings": model.vocab_size * width,
        "position embeddings": positions * width,
        "sentence types": model.num_sen_type * width,
        "layers": projections + model.num_layers * feed_forward + norms + own + shared + around,
    }


def least_activations(model: ModelConfig, rows: int, length: int) -> int:
    """Bytes that a training step holds for its backward pass at least: the input of every layer; of reversible ones,
    whose input is two vectors a token, that of the last layer.

    Args:
        rows: that are computed at once, of `length` tokens each.
    """
    bytes_each = 4 if model.mixed_precision is False else 2
    inputs = min(2, model.num_layers) if model.reversible else model.num_layers
    return inputs * rows * length * model.transformer_dim * bytes_each
