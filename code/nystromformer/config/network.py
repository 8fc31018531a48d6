"""The section "model" of a config.json: the network."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from .attention import AttentionConfig, AttentionName, AttentionSpec, ConvKernelSize, attention_config
from .messages import Impossible, Path, StrictModel, quoted
from .ranges import MOST_DROPOUT, MOST_LAYERS, Size, as_tuple

LAYER_DEFAULTS = ("num_landmarks", "conv_kernel_size")
"""Keys of the section "model" that are parameters of all layers' attentions."""
MixedPrecision = Literal[True, False, "bf16", "fp16"]
Dropout = Annotated[float, Field(ge=0, le=MOST_DROPOUT)]
RopeTheta = Annotated[float, Field(gt=1, le=1e12)]


def _form(value: object) -> str | None:
    """Which of its forms an ``attn_type`` has."""
    if isinstance(value, str):
        return "name"
    if isinstance(value, (dict, AttentionConfig)):
        return "object"
    return "list" if isinstance(value, (list, tuple)) else None


_Name = Annotated[AttentionName, Tag("name")]
_Object = Annotated[AttentionSpec, Tag("object")]
_WRONG_FORM: dict[str, Any] = {
    "custom_error_type": "attn_type",
    "custom_error_message": 'Input should be the name of an attention or an object {"name": ..., its parameters}',
}
LayerAttention = Annotated[_Name | _Object, Discriminator(_form, **_WRONG_FORM)]
_List = Annotated[tuple[LayerAttention, ...], Field(max_length=MOST_LAYERS), BeforeValidator(as_tuple), Tag("list")]
AttnType = Annotated[_Name | _Object | _List, Discriminator(_form, **_WRONG_FORM)]


class ModelConfig(StrictModel):
    """The network."""

    mixed_precision: MixedPrecision = True
    """Number format of the layers' computation. "bf16" or "fp16": 16 bits (the weights stay float32); true: whichever
    of the two is fast on the device, else float32; false: float32."""
    attention_grad_checkpointing: bool = False
    """Save memory: recompute each layer's attention in the backward pass."""
    gelu_grad_checkpointing: bool = False
    """Save memory: recompute each layer's activation in the backward pass."""
    reversible: bool = False
    """Save memory by reversible residual layers, as in Reformer: the backward pass computes each layer's input from its
    output instead of storing it. A different network than with false; needs norm pre."""
    compile: bool = False
    """Compile the layers with torch.compile, which needs a C++ compiler: a minute or two at the start, then faster
    steps on a GPU."""
    vocab_size: Size
    """Tokens in the vocabulary; the tokenizer must not have more."""
    num_sen_type: Size = 1
    """Number of sentence types with an embedding (BERT's segments: 0 for the first part of an input, 1 for the second);
    1: parts are not distinguished."""
    max_seq_len: Size
    """Tokens of the longest input; learned positions have an embedding for each."""
    embedding_dim: Size
    """Width of the embeddings of tokens, learned positions and sentence types; followed by a projection if it differs
    from transformer_dim."""
    transformer_dim: Size
    """Width of each token's vector between the layers; equal to num_head x head_dim."""
    transformer_hidden_dim: Size
    """Width of the hidden layer of each feed-forward block."""
    num_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)]
    """Number of layers."""
    dropout_prob: float = Field(default=0.1, ge=0, le=MOST_DROPOUT)
    """Dropout probability in training: after the embeddings, after the attention and the feed-forward block of each
    layer, and in heads for fine-tuning."""
    embedding_dropout_prob: Dropout | None = None
    """Dropout probability after the embeddings; null: dropout_prob."""
    attention_dropout_prob: Dropout | None = None
    """Dropout probability after the attention's output projection; null: dropout_prob."""
    hidden_dropout_prob: Dropout = 0.0
    """Dropout probability in the hidden layer of each feed-forward block, in addition to the dropout after the
    block."""
    num_head: Size
    """Number of attention heads in each layer."""
    head_dim: Size
    """Width of each attention head."""
    attn_type: AttnType
    """The attention of all layers: a name, or an object with a name and parameters, such as {"name": "nystrom",
    "num_landmarks": 32}; or a list with such an item for each layer."""
    num_landmarks: Size | None = None
    """Number of landmarks (means of segments, which represent all tokens) in every layer whose attention uses them and
    does not set its own number; null: the attention's default."""
    conv_kernel_size: ConvKernelSize | None = None
    """Taps of the convolution over the attention's values, an odd number, in every layer that does not set its own; its
    result is added to the attention's output. null: no convolution."""
    norm: Literal["post", "pre"] = "post"
    """Position of the norms. post: after each attention and feed-forward block, as in BERT; pre: before each of them
    and after the last layer, as in the authors' encoder for the Long Range Arena (LRA)."""
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """Kind of norm. layer_norm: by mean and variance; rms_norm: by the root mean square only, without bias (Zhang and
    Sennrich 2019)."""
    skip_first_prenorm: bool = False
    """Omit the first layer's norm before the attention, as in ModernBERT; needs norm pre and embedding_norm."""
    feed_forward: Literal["mlp", "glu"] = "mlp"
    """The feed-forward block. mlp: two linear maps with the activation between; glu: a gated linear unit (Shazeer
    2020), with 1.5 times the weights at the same transformer_hidden_dim."""
    activation: Literal["gelu_tanh", "gelu", "silu"] = "gelu_tanh"
    """Function within each feed-forward block. gelu_tanh: GELU by its tanh approximation, as in the authors' code;
    gelu: exact, as in BERT and in LRA's encoder; silu: x sigmoid(x)."""
    bias: bool = True
    """Biases in linear layers and norms of the encoder and the masked-token head."""
    head_transform: bool = True
    """Put a dense layer, the activation and a norm between the encoder and the vocabulary in the masked-token head;
    false needs embedding_dim = transformer_dim."""
    depth_scaled_init: bool = False
    """Divide the initial weights of the last linear layer of each attention and feed-forward block by the square root
    of twice num_layers, as in GPT-2."""
    layer_norm_eps: float = Field(default=1e-5, ge=1e-16, le=0.1)
    """Epsilon added to the variance, or mean square, in every norm."""
    positions: Literal["learned", "rotary"] = "learned"
    """Position encoding. learned: an embedding for each position, added to the token's; rotary: queries and keys are
    rotated by angles that grow with the position (RoPE)."""
    rope_theta: RopeTheta = 10_000.0
    """Base of the rotary angles; a larger one slows the growth of the slowest angle with the distance."""
    rope_theta_local: RopeTheta | None = None
    """Base of the rotary angles in layers with local attention (local, or longformer without global tokens); null:
    rope_theta."""
    position_offset: int = Field(default=2, ge=0, le=10**6)
    """Row of the learned position table that the first token takes: 0 in BERT, 2 in RoBERTa. Leave it out with rotary
    positions, which have no table."""
    embedding_norm: bool = True
    """Normalise the embeddings; false in the authors' encoder for LRA."""
    pooling: Literal["first", "mean"] = "first"
    """Vector that represents the whole input (sentence order, classification). first: that of the first token; mean:
    the mean over all tokens without padding."""

    @model_validator(mode="after")
    def _write_out(self) -> Self:
        # So that an equal, or saved and reloaded, config means the same: which fields were set is lost.
        if not isinstance(self.attn_type, str):
            pairs = zip(self._items, self.attentions, strict=True)
            written = tuple(item if isinstance(item, str) else layer for item, layer in pairs)
            is_one = isinstance(self.attn_type, AttentionConfig)
            object.__setattr__(self, "attn_type", written[0] if is_one else written)
        return self

    @property
    def attentions(self) -> tuple[AttentionConfig, ...]:
        """The attention of each layer, with all defaults filled in."""
        items = self._items
        resolved = {id(item): self._resolved(item) for item in items}
        return tuple(resolved[id(item)] for item in items)

    @property
    def fixed_length(self) -> int | None:
        """Tokens of every row, padding included, where an attention does not take any number; else None."""
        is_fixed = any(each.why_not_length(self.max_seq_len - 1) for each in self.attentions if self.max_seq_len > 1)
        return self.max_seq_len if is_fixed else None

    @property
    def _items(self) -> tuple[str | AttentionConfig, ...]:
        """What `attn_type` says of each layer."""
        return self.attn_type if isinstance(self.attn_type, tuple) else (self.attn_type,) * self.num_layers

    @property
    def _flat(self) -> dict[str, int]:
        """The defaults of all layers."""
        flat = {key: getattr(self, key) for key in LAYER_DEFAULTS}
        return {key: value for key, value in flat.items() if value is not None}

    def _resolved(self, item: str | AttentionConfig) -> AttentionConfig:
        """An attention with the flat defaults where it gives no value of its own (both are checked alike)."""
        attention = attention_config(item)
        keys = type(attention).model_fields.keys() - attention.model_fields_set
        return attention.model_copy(update={key: value for key, value in self._flat.items() if key in keys})

    def impossible(self) -> Impossible:
        yield from self._impossible_parts()
        yield from self._impossible_positions()
        layers = self.attentions
        names = " and ".join(dict.fromkeys(layer.name for layer in layers))
        for key, value in self._flat.items():
            if layers and value not in [getattr(layer, key, None) for layer in layers]:
                has_it = any(key in type(layer).model_fields for layer in layers)
                why = "each layer that has it sets its own" if has_it else f"attn_type is {names}, which has no {key}"
                yield (key,), f"no layer uses it: {why}; remove it, or set it to null"
        for index, layer in enumerate(layers):
            for key, text in layer.impossible_at(self.max_seq_len):
                yield self._place_of(index, key), text

    def _impossible_parts(self) -> Impossible:
        """Parts of the network that need or exclude others."""
        if (width := self.num_head * self.head_dim) != self.transformer_dim:
            product = f"num_head x head_dim = {self.num_head} x {self.head_dim} = {width}"
            yield ("transformer_dim",), f"expected {product}, found {self.transformer_dim}"
        if (found := len(self._items)) != self.num_layers:
            yield ("attn_type",), f"expected {self.num_layers} items, one for each of the num_layers, found {found}"
        if self.skip_first_prenorm and not (self.norm == "pre" and self.embedding_norm):
            text = f'found norm "{self.norm}" and embedding_norm {quoted(self.embedding_norm)}'
            yield ("skip_first_prenorm",), f'expected norm "pre" and embedding_norm true with it, {text}'
        if not self.head_transform and self.embedding_dim != self.transformer_dim:
            text = "expected embedding_dim = transformer_dim without the dense layer between them"
            yield ("head_transform",), f"{text}, found {self.embedding_dim} and {self.transformer_dim}"
        if self.reversible and self.norm != "pre":
            text = f'expected norm "pre" with it, found "{self.norm}": a norm after the sum cannot be undone'
            yield ("reversible",), text
        if self.reversible and self.compile:
            text = "cannot be combined with reversible layers, which compute each layer in two ways: set it to false"
            yield ("compile",), text
        for key in ("attention_grad_checkpointing", "gelu_grad_checkpointing"):
            if self.reversible and getattr(self, key):
                yield (key,), "reversible layers are already recomputed in the backward pass: set it to false"

    def _impossible_positions(self) -> Impossible:
        fields = type(self).model_fields
        if self.positions == "learned":
            for key in ("rope_theta", "rope_theta_local"):
                if getattr(self, key) != fields[key].default:
                    yield (key,), 'expected positions "rotary" with it, since it sets their angles, found "learned"'
            return
        if self.rope_theta_local is not None and not any(layer.is_local for layer in self.attentions):
            text = "no layer uses it: none has a local attention (local, or longformer with num_global_tokens 0)"
            yield ("rope_theta_local",), text
        if self.head_dim % 2:
            text = 'expected an even number with positions "rotary", which rotate pairs of a head\'s dimensions'
            yield ("head_dim",), f"{text}, found {self.head_dim}"
        if self.position_offset != (default := fields["position_offset"].default):
            text = f'expected nothing or {default}, the default, with positions "rotary", which have no table'
            yield ("position_offset",), f"{text}, found {self.position_offset}"
        if blind := dict.fromkeys(layer.name for layer in self.attentions if not layer.compares_queries_and_keys):
            text = 'expected "learned", found "rotary": it rotates queries and keys, which are not compared in'
            yield ("positions",), f"{text} {' and '.join(blind)}"

    def _place_of(self, index: int, key: str) -> Path:
        """Where a parameter of a layer's attention comes from."""
        item = self._items[index]
        place: Path = ("attn_type",)
        is_own = not isinstance(item, str) and key in item.model_fields_set
        if key in self._flat and not is_own:
            return (key,)
        if isinstance(self.attn_type, tuple):
            place = (*place, index)
        # A name alone has no key: it is the attention's own default.
        return place if isinstance(item, str) else (*place, key)


SHAPE_KEYS = (
    *("vocab_size", "embedding_dim", "transformer_dim", "transformer_hidden_dim", "num_layers", "num_head", "head_dim"),
)
"""Keys of the section "model" that decide the shapes of weights: what another model's weights must share with a
checkpoint's. To another length or convolution kernel, or other sentence types, weights can be fitted."""
NO_EFFECT = frozenset({"compile", "attention_grad_checkpointing", "gelu_grad_checkpointing"})
"""Keys of the section "model" that change how a result is computed, not which."""
