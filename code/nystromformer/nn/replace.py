"""Another attention in modules of `torch.nn` that are there already."""

from collections.abc import Iterator
from typing import get_args

from torch import nn

from nystromformer.attention.swapped import AttentionDropout, check_attention_dropout
from nystromformer.config import AttentionConfig, attention_config
from nystromformer.nn.multihead import MultiheadAttention, NeedWeights


def replace_attention(
    module: nn.Module,
    attention: str | AttentionConfig = "near_far",
    *,
    attention_dropout: AttentionDropout = "refuse",
    need_weights: NeedWeights = "refuse",
    max_length: int | None = None,
    **parameters: object,
) -> nn.Module:
    """Put an attention in the place of softmax in an `nn.MultiheadAttention`, or in all that a module holds, such as an
    `nn.TransformerEncoder`.

    The parameters are the very same ones, under the same names, so that optimisers and checkpoints stay good. The
    default is `near_far`, the attention in O(N) that is nearest to a trained softmax; rows of at most
    (neighbours + 1) · block_size tokens, 64 by default, get what they got. `nn.TransformerEncoderLayer` computes
    softmax itself in evaluation where its attention allows it; these do not.

    Args:
        module: an `nn.MultiheadAttention`, whose replacement is returned; or a module with some in it, which is changed
            in place and returned.
        attention: which one, by its name or as a config.
        attention_dropout: what happens in training where dropout of the weights of pairs of tokens is asked for, as
            `nn.TransformerEncoderLayer` does by default; they are never formed. "refuse": an error; "leave_out": it is
            left out, and all other dropout stays.
        need_weights: what happens where a call asks for these weights, as calls do by default. "refuse": an error;
            "none": None is returned for them.
        max_length: tokens of the longest input, for methods that learn something for each place, and for these alone.
        parameters: the attention's, such as `num_landmarks=64`. What has weights of its own, such as a convolution,
            begins with initial ones.

    Raises:
        ValueError: nothing to replace; an unknown attention or impossible parameters; a decoder, cross-attention, or
            another module whose place cannot be taken. Nothing is changed then.

    >>> layer = nn.TransformerEncoderLayer(64, 4, dropout=0.0, batch_first=True)
    >>> encoder = replace_attention(nn.TransformerEncoder(layer, 2), num_selected=32)
    """
    check_attention_dropout(attention_dropout)
    if need_weights not in get_args(NeedWeights):
        raise ValueError(f'need_weights must be one of {", ".join(get_args(NeedWeights))}, found "{need_weights}"')
    config = attention_config(attention, **parameters)
    made: dict[nn.MultiheadAttention, MultiheadAttention] = {}

    def replacement(old: nn.MultiheadAttention) -> MultiheadAttention:
        # One that stands in several places stays one.
        if old not in made:
            made[old] = MultiheadAttention(
                old, config, attention_dropout=attention_dropout, need_weights=need_weights, max_length=max_length
            )
        return made[old]

    if isinstance(module, nn.MultiheadAttention):
        return replacement(module)
    _refuse_decoders(module)
    places = [(parent, name, replacement(old)) for parent, name, old in _found(module)]
    if not places:
        raise ValueError(f"there is no nn.MultiheadAttention in {type(module).__name__}: nothing to replace")
    for parent, name, new in places:
        setattr(parent, name, new)
    for each in module.modules():
        if isinstance(each, nn.TransformerEncoder):
            # Decided when it was made, by the layers that it had then.
            each.use_nested_tensor = False
    return module


def _found(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.MultiheadAttention]]:
    """Where there is one, by which name, and which; one in several places several times."""
    for parent in module.modules():
        for name, child in parent._modules.items():
            if isinstance(child, nn.MultiheadAttention):
                yield parent, name, child


def _refuse_decoders(module: nn.Module) -> None:
    for name, each in module.named_modules():
        if isinstance(each, (nn.TransformerDecoderLayer, nn.TransformerDecoder)):
            place = f" at {name}" if name else ""
            raise ValueError(
                f"{type(module).__name__} has a {type(each).__name__}{place}, whose attention is causal or attends to "
                "another sequence; neither can be replaced. Pass only the encoder, as in "
                "replace_attention(model.encoder)"
            )
