"""Another attention in modules of `torch.nn` that are there already."""

from torch import nn

from nystromformer.attention.swapped import AttentionDropout, check_attention_dropout
from nystromformer.config import AttentionConfig, attention_config
from nystromformer.nn.multihead import MultiheadAttention


def replace_attention(
    module: nn.Module,
    attention: str | AttentionConfig = "near_far",
    *,
    attention_dropout: AttentionDropout = "refuse",
    max_length: int | None = None,
    **parameters: object,
) -> nn.Module:
    """Put an attention in the place of softmax in an `nn.MultiheadAttention`, or in all that a module holds, such as an
    `nn.TransformerEncoder`.

    The parameters are the very same ones, under the same names, so that optimisers and checkpoints stay good. The
    default is `near_far`, the attention in O(N) that is nearest to a trained softmax; rows of at most
    (neighbours + 1) · block_size tokens, 64 by default, get what they got.

    Args:
        module: an `nn.MultiheadAttention`, whose replacement is returned; or a module with some in it, which is changed
            in place and returned.
        attention: which one, by its name or as a config.
        attention_dropout: what happens in training where dropout of the weights of pairs of tokens is asked for, as
            `nn.TransformerEncoderLayer` does by default; they are never formed. "refuse": an error; "leave_out": it is
            left out, and all other dropout stays.
        max_length: tokens of the longest input, for methods that learn something for each place.
        parameters: the attention's, such as `num_landmarks=64`. What has weights of its own, such as a convolution,
            begins with initial ones.

    Raises:
        ValueError: nothing to replace; an unknown attention or impossible parameters; a decoder, cross-attention, or
            another module whose place cannot be taken. Nothing is changed then.

    >>> layer = nn.TransformerEncoderLayer(64, 4, dropout=0.0, batch_first=True)
    >>> encoder = replace_attention(nn.TransformerEncoder(layer, 2), num_selected=32)
    """
    check_attention_dropout(attention_dropout)
    config = attention_config(attention, **parameters)
    made: dict[nn.MultiheadAttention, MultiheadAttention] = {}

    def replacement(old: nn.MultiheadAttention) -> MultiheadAttention:
        # One that stands in several places stays one.
        if old not in made:
            made[old] = MultiheadAttention(old, config, attention_dropout=attention_dropout, max_length=max_length)
        return made[old]

    if isinstance(module, nn.MultiheadAttention):
        return replacement(module)
    places: list[tuple[nn.Module, str, MultiheadAttention]] = []
    for path, parent in module.named_modules():
        if isinstance(parent, (nn.TransformerDecoderLayer, nn.TransformerDecoder)):
            raise ValueError(
                f"{type(module).__name__} has a {type(parent).__name__}{path and f' at {path}'}, whose attention "
                "is causal or attends to another sequence; neither can be replaced. Pass only the encoder, as in "
                "replace_attention(model.encoder)"
            )
        found = [(name, old) for name, old in parent._modules.items() if isinstance(old, nn.MultiheadAttention)]
        places += [(parent, name, replacement(old)) for name, old in found]
    if not places:
        raise ValueError(f"there is no nn.MultiheadAttention in {type(module).__name__}: nothing to replace")
    for parent, name, new in places:
        setattr(parent, name, new)
    for each in module.modules():
        if isinstance(each, nn.TransformerEncoder):
            # Decided when it was made, by the layers that it had then.
            each.use_nested_tensor = False
    return module
