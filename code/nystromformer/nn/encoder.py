"""An encoder over embeddings of one's own: patches of images, steps of time series, sets.

Shapes: B batch, N tokens, K of their positions, E width.
"""

import math
from collections.abc import Sequence

import torch
from pydantic import ValidationError
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.config import AttentionConfig, ModelConfig, attention_config
from nystromformer.config.messages import Problem, describe_errors
from nystromformer.config.ranges import MOST
from nystromformer.model.encoder import LayerStack
from nystromformer.nn.attention import head_dim_of
from nystromformer.nn.lengths import check_max_length

_OURS = {
    "num_layers": "depth",
    "num_head": "heads",
    "transformer_dim": "dim",
    "transformer_hidden_dim": "hidden_dim",
    "dropout_prob": "dropout",
    "attn_type": "attention",
    "max_seq_len": "max_length",
    "positions": "rotary",
}
"""Keys of config.json, and what they are called here."""


class Encoder(LayerStack):
    """The layers of `nystromformer.model` without embeddings: `encoder(x_BNE, mask) -> hidden_BNE`.

    It adds no positions: to what it matters where a token stands, add that to the embeddings, or let `rotary` turn
    queries and keys by it. (Landmarks and the convolution of an attention see the order, softmax does not.)

    Args:
        dim: E, the width of the tokens, in and out.
        depth: layers.
        heads: of each layer.
        attention: that of all layers, by a name of `nystromformer.config.ATTENTIONS` or as a config; or a list with
            one for each layer.
        hidden_dim: width of the hidden layer of each feed-forward block; None: 4 dim.
        rotary: turn queries and keys by angles that grow with a token's place in its row (Su et al. 2021); for
            attentions that compare the two.
        dropout: probability with which an entry of each block's output is zeroed in training.
        norm: "pre": a layer norm before each block, and one after the last layer; "post": one after each, as in BERT.
        activation: "gelu", or "gelu_tanh", its approximation.
        layer_norm_eps: what is added to the variance in a layer norm.
        reversible: the backward pass computes each layer's input from its output instead of storing it; another network
            than without, with norm="pre" alone.
        feed_forward_chunk: tokens for which a feed-forward block is computed at a time; None: all.
        max_length: tokens of the longest input, for methods that learn something for each place, and for these alone.
        parameters: the attention's own, such as `num_landmarks=64, conv_kernel_size=33`; where it is one name.

    Raises:
        ValueError: lists all that is wrong.

    >>> encoder = Encoder(128, depth=4, heads=4, num_landmarks=32, conv_kernel_size=33)
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        attention: str | AttentionConfig | Sequence[str | AttentionConfig] = "nystrom",
        hidden_dim: int | None = None,
        rotary: bool = False,
        dropout: float = 0.0,
        norm: str = "pre",
        activation: str = "gelu",
        layer_norm_eps: float = 1e-5,
        reversible: bool = False,
        feed_forward_chunk: int | None = None,
        max_length: int | None = None,
        **parameters: object,
    ) -> None:
        super().__init__()
        attn_type = _attentions(attention, parameters)
        check_max_length(attn_type if isinstance(attn_type, tuple) else [attn_type], max_length)
        config = _config(
            transformer_dim=dim,
            num_layers=depth,
            num_head=heads,
            head_dim=head_dim_of(dim, heads),
            transformer_hidden_dim=4 * dim if hidden_dim is None else hidden_dim,
            attn_type=attn_type,
            positions="rotary" if rotary else "learned",
            dropout_prob=dropout,
            norm=norm,
            activation=activation,
            layer_norm_eps=layer_norm_eps,
            reversible=reversible,
            feed_forward_chunk=feed_forward_chunk,
            max_seq_len=_longest(attn_type) if max_length is None else max_length,
        )
        self.dim, self.max_length = dim, max_length
        self.add_layers(config)
        # Without it NaN at masked positions would reach the gradients of norms and linear maps.
        self.zeroes_masked = all(core.holds.masking for core in self.cores())

    def forward(
        self, x: Tensor, mask: Tensor | AttentionMask | None = None, positions_BK: Tensor | None = None
    ) -> Tensor:
        """Encode.

        Args:
            x: (B, N, E), of floats.
            mask: None, bool (B, N) with True = keep, in any pattern, or an AttentionMask.
            positions_BK: positions whose vectors are wanted, int64; None: all. The last layer then computes what
                follows its attention at these alone.

        Returns:
            (B, N, E), or (B, K, E) at the wanted positions. What stands at masked positions has no meaning.

        Raises:
            ValueError: another shape, a mask that does not fit, input longer than `max_length`; a mask instead of
                positions, or, on a CPU, positions that a row does not have.
        """
        if x.ndim != 3 or x.shape[2] != self.dim or not x.is_floating_point():
            raise ValueError(
                f"x must be floats of the shape (batch, tokens, {self.dim}), found {x.dtype} {tuple(x.shape)}"
            )
        if self.max_length is not None and x.shape[1] > self.max_length:
            raise ValueError(f"expected at most max_length = {self.max_length} tokens, found {x.shape[1]}")
        if positions_BK is not None and positions_BK.device.type == "cpu" and not torch.compiler.is_compiling():
            # On a GPU looking at them would have it waited for.
            last = x.shape[1] - 1
            if (wrong := positions_BK[(positions_BK < 0) | (positions_BK > last)]).numel():
                raise ValueError(f"positions_BK: expected 0 to {last} in rows of {last + 1} tokens, found {wrong[0]}")
        shared = AttentionMask.wrap(mask, x[:, None])
        if shared is not None and self.zeroes_masked:
            x = shared.zeroed_tokens(x)
        return self.run_layers(x, shared, positions_BK)


def _attentions(
    attention: str | AttentionConfig | Sequence[str | AttentionConfig], parameters: dict[str, object]
) -> AttentionConfig | tuple[AttentionConfig, ...]:
    if isinstance(attention, (str, AttentionConfig)):
        return attention_config(attention, **parameters)
    if not isinstance(attention, Sequence):
        raise ValueError(f"attention: expected a name, an AttentionConfig or a list of them, found {attention!r:.60}")
    if parameters:
        raise ValueError(
            "parameters can be given for one attention only; in a list each attention has its own, found "
            f"{sorted(parameters)}"
        )
    for each in attention:
        if not isinstance(each, (str, AttentionConfig)):
            raise ValueError(f"attention: expected a name or an AttentionConfig, or a list of them, found {each!r:.60}")
    return tuple(attention_config(each) for each in attention)


def _longest(attn_type: AttentionConfig | tuple[AttentionConfig, ...]) -> int:
    """The longest rows that all of them take."""
    attentions = attn_type if isinstance(attn_type, tuple) else (attn_type,)
    return MOST - MOST % math.lcm(*(each.length_step for each in attentions))


def _config(**fields: object) -> ModelConfig:
    """What of a network's config says something about its layers; nothing is built of the rest."""
    data = {"vocab_size": 1, "embedding_dim": fields["transformer_dim"], **fields}
    try:
        return ModelConfig.model_validate(data)
    except ValidationError as error:
        problems = describe_errors(error, data, ModelConfig)
        lines = [str(Problem((_OURS.get(str(p.path[0]), p.path[0]), *p.path[1:]), p.text)) for p in problems]
        raise ValueError(
            "an encoder cannot be built with these arguments:\n  " + "\n  ".join(dict.fromkeys(lines))
        ) from None
