"""An encoder over embeddings of one's own: patches of images, steps of time series, sets.

Shapes: B batch, N tokens, E width.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from nystromformer.attention import AttentionMask, attention_class
from nystromformer.config import AttentionConfig, ModelConfig, attention_config
from nystromformer.config.ranges import MOST
from nystromformer.model.encoder import LayerStack
from nystromformer.nn.attention import head_dim_of


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
        max_length: tokens of the longest input, which methods that learn something for each place must know.
        parameters: the attention's own, such as `num_landmarks=64, conv_kernel_size=33`.

    Raises:
        ValueError: what is wrong with the attention; or, by the names of config.json, all else that is wrong.

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
        max_length: int | None = None,
        **parameters: object,
    ) -> None:
        super().__init__()
        given = [attention] if isinstance(attention, (str, AttentionConfig)) else attention
        attentions = [attention_config(each, **parameters) for each in given]
        learns = [each.name for each in attentions if attention_class(type(each)).needs.max_length]
        if learns and max_length is None:
            raise ValueError(f"{learns[0]} learns weights for each position: expected max_length")
        # None: the longest rows that all of them take.
        longest = MOST - MOST % math.lcm(*(each.length_step for each in attentions))
        fields = {
            "vocab_size": 1,
            "embedding_dim": dim,
            "transformer_dim": dim,
            "num_layers": depth,
            "num_head": heads,
            "head_dim": head_dim_of(dim, heads),
            "transformer_hidden_dim": 4 * dim if hidden_dim is None else hidden_dim,
            "attn_type": attentions if given is attention else attentions[0],
            "positions": "rotary" if rotary else "learned",
            "dropout_prob": dropout,
            "norm": norm,
            "activation": activation,
            "layer_norm_eps": layer_norm_eps,
            "reversible": reversible,
            "max_seq_len": longest if max_length is None else max_length,
        }
        self.dim, self.max_length = dim, max_length
        self.add_layers(ModelConfig.model_validate(fields))
        # Without it NaN at masked positions would reach the gradients of norms and linear maps.
        self.zeroes_masked = all(core.holds.masking for core in self.cores())

    def forward(self, x: Tensor, mask: Tensor | AttentionMask | None = None) -> Tensor:
        """(B, N, E): what stands at masked positions has no meaning.

        Args:
            x: (B, N, E), of floats.
            mask: None, bool (B, N) with True = keep, in any pattern, or an AttentionMask.

        Raises:
            ValueError: another shape, a mask that does not fit, input longer than `max_length`.
        """
        if x.ndim != 3 or x.shape[2] != self.dim or not x.is_floating_point():
            raise ValueError(
                f"x must be floats of the shape (batch, tokens, {self.dim}), found {x.dtype} {tuple(x.shape)}"
            )
        if self.max_length is not None and x.shape[1] > self.max_length:
            raise ValueError(f"expected at most max_length = {self.max_length} tokens, found {x.shape[1]}")
        shared = AttentionMask.wrap(mask, x[:, None])
        if shared is not None and self.zeroes_masked:
            x = shared.zeroed_tokens(x)
        return self.run_layers(x, shared, None)
