"""The section "model" of a config.json: the network."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from .attention import (
    ATTENTIONS,
    STRICT,
    AttentionConfig,
    AttentionName,
    AttentionSpec,
    ConvKernelSize,
    attention_config,
)
from .messages import ImpossibleError, Path, Problem
from .ranges import MOST_DROPOUT, MOST_LAYERS, Layers, Size, as_tuple

MixedPrecision = Literal[True, False, "bf16", "fp16"]
Dropout = Annotated[float, Field(ge=0, le=MOST_DROPOUT)]
RopeTheta = Annotated[float, Field(gt=1, le=1e12)]


def _form(value: object) -> str | None:
    """Which of its forms an ``attn_type`` has."""
    if isinstance(value, str):
        return "name"
    if isinstance(value, AlternatingConfig) or (isinstance(value, dict) and "every" in value):
        return "alternating"
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


class AlternatingConfig(BaseModel):
    """Layers of two kinds, as in ModernBERT: every so many, from the first on, is global; those between are local."""

    model_config = STRICT

    every: Annotated[int, Field(ge=2, le=MOST_LAYERS)] = Field(
        description="One layer in this many is global, beginning with the first."
    )
    global_: LayerAttention = Field(
        alias="global", description="The attention of the global layers: a name or an object."
    )
    local: LayerAttention = Field(description="The attention of the layers between them: a name or an object.")

    def layers(self, count: int) -> tuple[str | AttentionConfig, ...]:
        """The attention of each of so many layers, as it was given."""
        return tuple(self.local if index % self.every else self.global_ for index in range(count))


_Alternating = Annotated[AlternatingConfig, Tag("alternating")]
AttnType = Annotated[_Name | _Object | _List | _Alternating, Discriminator(_form, **_WRONG_FORM)]


class ModelConfig(BaseModel):
    """The network."""

    model_config = STRICT

    mixed_precision: MixedPrecision = Field(
        default=True,
        description='Number format of the layers\' computation. "bf16" or "fp16": 16 bits (the weights stay '
        "float32); true: whichever of the two is fast on the device, else float32; false: float32.",
    )
    attention_grad_checkpointing: bool = Field(
        default=False, description="Save memory: recompute each layer's attention in the backward pass."
    )
    gelu_grad_checkpointing: bool = Field(
        default=False, description="Save memory: recompute each layer's activation in the backward pass."
    )
    reversible: bool = Field(
        default=False,
        description="Save memory by reversible residual layers, as in Reformer: the backward pass computes each "
        "layer's input from its output instead of storing it. A different network than with false; needs norm pre.",
    )
    feed_forward_chunk: Size | None = Field(
        default=None,
        description="Save memory: compute feed-forward blocks this many tokens at a time; null: all at once.",
    )
    compile: bool = Field(
        default=False,
        description="Compile the layers with torch.compile where there is a compiler: a minute or two at the start, "
        "then faster steps on a GPU.",
    )
    vocab_size: Size = Field(description="Tokens in the vocabulary; the tokenizer must not have more.")
    num_sen_type: Size = Field(
        default=1,
        description="Number of sentence types with an embedding (BERT's segments: 0 for the first part of an input, "
        "1 for the second); 1: parts are not distinguished.",
    )
    max_seq_len: Size = Field(description="Tokens of the longest input; learned positions have an embedding for each.")
    embedding_dim: Size = Field(
        description="Width of the embeddings of tokens, learned positions and sentence types; followed by a "
        "projection if it differs from transformer_dim."
    )
    transformer_dim: Size = Field(
        description="Width of each token's vector between the layers; equal to num_head x head_dim."
    )
    transformer_hidden_dim: Size = Field(description="Width of the hidden layer of each feed-forward block.")
    num_layers: Layers = Field(description="Number of layers.")
    dropout_prob: float = Field(
        default=0.1,
        ge=0,
        le=MOST_DROPOUT,
        description="Dropout probability in training: after the embeddings, after the attention and the feed-forward "
        "block of each layer, and in heads for fine-tuning.",
    )
    embedding_dropout_prob: Dropout | None = Field(
        default=None, description="Dropout probability after the embeddings; null: dropout_prob."
    )
    attention_dropout_prob: Dropout | None = Field(
        default=None, description="Dropout probability after the attention's output projection; null: dropout_prob."
    )
    hidden_dropout_prob: Dropout = Field(
        default=0.0,
        description="Dropout probability in the hidden layer of each feed-forward block, in addition to the dropout "
        "after the block.",
    )
    num_head: Size = Field(description="Number of attention heads in each layer.")
    head_dim: Size = Field(description="Width of each attention head.")
    attn_type: AttnType = Field(
        description='The attention of all layers: a name, or an object with a name and parameters, such as {"name": '
        '"nystrom", "num_landmarks": 32}; or a list with such an item for each layer; or {"every": 3, "global": …, '
        '"local": …} with two such items, the first for layers 0, 3, 6, …, the second for those between.'
    )
    num_landmarks: Size | None = Field(
        default=None,
        description="Number of landmarks (means of segments, which represent all tokens) in every layer whose "
        "attention uses them and does not set its own number; null: the attention's default.",
    )
    conv_kernel_size: ConvKernelSize | None = Field(
        default=None,
        description="Taps of the convolution over the attention's values, an odd number, in every layer that does "
        "not set its own; its result is added to the attention's output. null: no convolution.",
    )
    norm: Literal["post", "pre"] = Field(
        default="post",
        description="Position of the norms. post: after each attention and feed-forward block, as in BERT; pre: "
        "before each of them and after the last layer, as in the authors' encoder for the Long Range Arena (LRA).",
    )
    norm_type: Literal["layer_norm", "rms_norm"] = Field(
        default="layer_norm",
        description="Kind of norm. layer_norm: by mean and variance; rms_norm: by the root mean square only, without "
        "bias (Zhang and Sennrich 2019).",
    )
    skip_first_prenorm: bool = Field(
        default=False,
        description="Omit the first layer's norm before the attention, as in ModernBERT; needs norm pre and "
        "embedding_norm.",
    )
    feed_forward: Literal["mlp", "glu"] = Field(
        default="mlp",
        description="The feed-forward block. mlp: two linear maps with the activation between; glu: a gated linear "
        "unit (Shazeer 2020), with 1.5 times the weights at the same transformer_hidden_dim.",
    )
    activation: Literal["gelu_tanh", "gelu", "silu"] = Field(
        default="gelu_tanh",
        description="Function within each feed-forward block. gelu_tanh: GELU by its tanh approximation, as in the "
        "authors' code; gelu: exact, as in BERT and in LRA's encoder; silu: x sigmoid(x).",
    )
    bias: bool = Field(
        default=True,
        description="Biases in linear layers and norms of the encoder and the masked-token head.",
    )
    head_transform: bool = Field(
        default=True,
        description="Put a dense layer, the activation and a norm between the encoder and the vocabulary in the "
        "masked-token head; false needs embedding_dim = transformer_dim.",
    )
    depth_scaled_init: bool = Field(
        default=False,
        description="Divide the initial weights of the last linear layer of each attention and feed-forward block by "
        "the square root of twice num_layers, as in GPT-2.",
    )
    layer_norm_eps: float = Field(
        default=1e-5,
        ge=1e-16,
        le=0.1,
        description="Epsilon added to the variance, or mean square, in every norm.",
    )
    positions: Literal["learned", "rotary"] = Field(
        default="learned",
        description="Position encoding. learned: an embedding for each position, added to the token's; rotary: "
        "queries and keys are rotated by angles that grow with the position (RoPE).",
    )
    rope_theta: RopeTheta = Field(
        default=10_000.0,
        description="Base of the rotary angles; a larger one slows the growth of the slowest angle with the distance.",
    )
    rope_theta_local: RopeTheta | None = Field(
        default=None,
        description="Base of the rotary angles in layers with local attention (local, or longformer without global "
        "tokens); null: rope_theta.",
    )
    position_offset: int = Field(
        default=2,
        ge=0,
        le=10**6,
        description="Row of the learned position table that the first token takes: 0 in BERT, 2 in RoBERTa. Leave it "
        "out with rotary positions, which have no table.",
    )
    embedding_norm: bool = Field(
        default=True, description="Normalise the embeddings; false in the authors' encoder for LRA."
    )
    pooling: Literal["first", "mean"] = Field(
        default="first",
        description="Vector that represents the whole input (sentence order, classification). first: that of the "
        "first token; mean: the mean over all tokens without padding.",
    )

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _no_number_as_bool(cls, value: object) -> object:
        # pydantic's Literal[True] takes 1, since 1 == True.
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise ValueError("expected true, false or a name")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        rules = (*self._impossible_parts(), *self._impossible_positions())
        problems = [Problem((key,), text) for is_wrong, key, text in rules if is_wrong] + self._impossible_layers()
        if problems:
            raise ImpossibleError(problems)
        # Written out so that an equal, or saved and reloaded, config means the same: which fields were set is lost.
        object.__setattr__(self, "attn_type", self._written_out())
        return self

    @property
    def attentions(self) -> tuple[AttentionConfig, ...]:
        """The attention of each layer, `num_layers` of them, with all defaults filled in."""
        layers = self._layers()
        return layers if isinstance(self.attn_type, tuple) else layers * self.num_layers

    @property
    def fixed_length(self) -> int | None:
        """Tokens of every row, padding included, where an attention does not take any number; else None."""
        is_fixed = any(each.why_not_length(self.max_seq_len - 1) for each in self.attentions if self.max_seq_len > 1)
        return self.max_seq_len if is_fixed else None

    def _items(self) -> tuple[str | AttentionConfig, ...]:
        """What `attn_type` says: of all layers, or of each."""
        if isinstance(self.attn_type, AlternatingConfig):
            return self.attn_type.layers(self.num_layers)
        return self.attn_type if isinstance(self.attn_type, tuple) else (self.attn_type,)

    def _layers(self) -> tuple[AttentionConfig, ...]:
        items = self._items()
        names = {item for item in items if isinstance(item, str)}
        named = {name: self._resolved(attention_config(name)) for name in names}
        return tuple(named[item] if isinstance(item, str) else self._resolved(item) for item in items)

    def _resolved(self, attention: AttentionConfig) -> AttentionConfig:
        """`attention` with the flat defaults where it gives no value of its own (both are checked alike)."""
        own = attention.model_fields_set
        fields = type(attention).model_fields
        defaults = {key: value for key, value in self._flat().items() if key in fields and key not in own}
        return attention.model_copy(update=defaults)

    def _flat(self) -> dict[str, int]:
        flat = {"num_landmarks": self.num_landmarks, "conv_kernel_size": self.conv_kernel_size}
        return {key: value for key, value in flat.items() if value is not None}

    def _written_out(self) -> Any:
        """`attn_type` in the form that it was given, objects with every parameter."""
        if isinstance(self.attn_type, str):
            return self.attn_type
        written = tuple(
            item if isinstance(item, str) else layer for item, layer in zip(self._items(), self._layers(), strict=True)
        )
        return written if isinstance(self.attn_type, (tuple, AlternatingConfig)) else written[0]

    def _impossible_layers(self) -> list[Problem]:
        """What is wrong with the attentions, in this network and beside the flat defaults."""
        layers = self._layers()
        problems = [
            Problem((key,), f"no layer uses it: {_why_unused(key, layers)}; remove it, or set it to null")
            for key, value in self._flat().items()
            if layers and value not in [getattr(layer, key, None) for layer in layers]
        ]
        problems += [
            Problem(self._place_of(index, key), text)
            for index, layer in enumerate(layers)
            for key, text in (*layer.impossible_at(self.max_seq_len), *layer.impossible_with(self.num_head))
        ]
        return list(dict.fromkeys(problems))

    def _impossible_parts(self) -> Iterator[tuple[bool, str, str]]:
        """Parts of the network that need or exclude others: whether they are there, the key, and what is wrong."""
        width, items = self.num_head * self.head_dim, self.attn_type if isinstance(self.attn_type, tuple) else None
        text = f"expected num_head x head_dim = {self.num_head} x {self.head_dim} = {width}, found"
        yield width != self.transformer_dim, "transformer_dim", f"{text} {self.transformer_dim}"
        if items is not None:
            text = f"expected {self.num_layers} items, one for each of the num_layers, found {len(items)}"
            yield len(items) != self.num_layers, "attn_type", text
        found = f'found norm "{self.norm}" and embedding_norm {str(self.embedding_norm).lower()}'
        is_wrong = self.skip_first_prenorm and not (self.norm == "pre" and self.embedding_norm)
        yield is_wrong, "skip_first_prenorm", f'expected norm "pre" and embedding_norm true with it, {found}'
        found = f"found {self.embedding_dim} and {self.transformer_dim}"
        text = f"expected embedding_dim = transformer_dim without the dense layer between them, {found}"
        yield not self.head_transform and self.embedding_dim != self.transformer_dim, "head_transform", text
        text = f'expected norm "pre" with it, found "{self.norm}": a norm after the sum cannot be undone'
        yield self.reversible and self.norm != "pre", "reversible", text
        text = "cannot be combined with reversible layers, which compute each layer in two ways: set it to false"
        yield self.reversible and self.compile, "compile", text
        for key in ("attention_grad_checkpointing", "gelu_grad_checkpointing"):
            text = "reversible layers are already recomputed in the backward pass: set it to false"
            yield self.reversible and getattr(self, key), key, text
        text = "with feed_forward_chunk the whole block is already recomputed in the backward pass: set it to false"
        is_wrong = self.feed_forward_chunk is not None and self.gelu_grad_checkpointing and not self.reversible
        yield is_wrong, "gelu_grad_checkpointing", text

    def _impossible_positions(self) -> Iterator[tuple[bool, str, str]]:
        """The same of positions."""
        fields, is_rotary = type(self).model_fields, self.positions == "rotary"
        for key in ("rope_theta", "rope_theta_local"):
            text = 'expected positions "rotary" with it, since it sets their angles, found "learned"'
            yield not is_rotary and getattr(self, key) != fields[key].default, key, text
        if not is_rotary:
            return
        text = "no layer uses it: none has a local attention (local, or longformer with num_global_tokens 0)"
        has_local = any(layer.is_local for layer in self._layers())
        yield self.rope_theta_local is not None and not has_local, "rope_theta_local", text
        text = 'expected an even number with positions "rotary", which rotate pairs of a head\'s dimensions, found'
        yield self.head_dim % 2 == 1, "head_dim", f"{text} {self.head_dim}"
        default = fields["position_offset"].default
        text = f'expected nothing or {default}, the default, with positions "rotary", which have no table, found'
        yield self.position_offset != default, "position_offset", f"{text} {self.position_offset}"
        blind = dict.fromkeys(layer.name for layer in self._layers() if not layer.compares_queries_and_keys)
        text = 'expected "learned", found "rotary": it rotates queries and keys, which are not compared in'
        yield bool(blind), "positions", f"{text} {' and '.join(blind)}"

    def _place_of(self, index: int, key: str) -> Path:
        """Where a parameter of a layer's attention comes from."""
        item = self._items()[index]
        place: Path = ("attn_type",)
        if isinstance(self.attn_type, tuple):
            place = ("attn_type", index)
        elif isinstance(self.attn_type, AlternatingConfig):
            place = ("attn_type", "local" if index % self.attn_type.every else "global")
        if not isinstance(item, str) and key in item.model_fields_set:
            return (*place, key)
        if key in self._flat():
            return (key,)
        # Unset everywhere, it is the attention's own default.
        return place if isinstance(item, str) else (*place, key)


SHAPE_KEYS = (
    "vocab_size",
    "embedding_dim",
    "transformer_dim",
    "transformer_hidden_dim",
    "num_layers",
    "num_head",
    "head_dim",
)
"""Keys of the section "model" that decide the shapes of weights: what another model's weights must share with a
checkpoint's. To another length or convolution kernel, or other sentence types, weights can be fitted."""
STRUCTURE_KEYS = (
    "norm",
    "norm_type",
    "embedding_norm",
    "skip_first_prenorm",
    "feed_forward",
    "bias",
    "head_transform",
    "reversible",
    "positions",
)
"""Keys on which it depends which weights there are, or what they mean: alike in another model, too."""
NO_EFFECT = frozenset({"compile", "attention_grad_checkpointing", "gelu_grad_checkpointing", "feed_forward_chunk"})
"""Keys of the section "model" that change how a result is computed, not which."""


def keys_of(kind: type[BaseModel]) -> list[str]:
    """The keys of an object in the file."""
    return [field.alias or name for name, field in kind.model_fields.items()]


def model_keys_at(path: Path, parent: Mapping[str, Any]) -> list[str]:
    """The valid keys of the section "model", or of an object within it, which is at this path and holds this."""
    return keys_of(ATTENTIONS.get(str(parent.get("name")), AlternatingConfig) if path else ModelConfig)


def _why_unused(key: str, layers: tuple[AttentionConfig, ...]) -> str:
    if any(key in type(layer).model_fields for layer in layers):
        return f"each layer that has {key} sets its own"
    names = " and ".join(dict.fromkeys(layer.name for layer in layers))
    return f"attn_type is {names}, which has no {key}"
