"""What a config.json may say: the authors' sections and keys, each with a sentence and checked where it is declared."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from .attention import (
    STRICT,
    AttentionConfig,
    AttentionName,
    AttentionSpec,
    ConvKernelSize,
    NumLandmarks,
    attention_config,
)
from .messages import ImpossibleError, Path, Problem

Size = Annotated[int, Field(ge=1)]
Folder = Annotated[str, Field(min_length=1)]
Objective = Literal["mlm", "sop"]
MixedPrecision = Literal[True, False, "bf16", "fp16"]
Compile = Literal[True, False, "auto"]
Resize = Literal["none", "lossless", "lossy"]

MOST_DROPOUT = 0.999
"""Past it hardly anything is left, scaled by thousands; dropout of 16 random bits needs a bound below one."""


def _as_tuple(value: object) -> object:
    # Strict pydantic takes no list for a tuple, but JSON has only lists.
    return tuple(value) if isinstance(value, list) else value


def _form(value: object) -> str | None:
    """Which of the three forms an ``attn_type`` has; messages.py knows these tags."""
    if isinstance(value, str):
        return "name"
    if isinstance(value, (dict, AttentionConfig)):
        return "object"
    return "list" if isinstance(value, (list, tuple)) else None


_Name = Annotated[AttentionName, Tag("name")]
_Object = Annotated[AttentionSpec, Tag("object")]
LayerAttention = Annotated[_Name | _Object, Discriminator(_form)]
_List = Annotated[tuple[LayerAttention, ...], BeforeValidator(_as_tuple), Tag("list")]
AttnType = Annotated[_Name | _Object | _List, Discriminator(_form)]

_SEQ_LEN = (
    "the length comes from the input, so there is nothing to set: remove the key (in the authors' shipped "
    "nystrom-512/config.json its value was swapped with that of num_landmarks)"
)


class ModelConfig(BaseModel):
    """The network."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"x-refused": {"seq_len": _SEQ_LEN}})

    mixed_precision: MixedPrecision = Field(
        default=True,
        description="Arithmetic under autocast: true for the best that the device has, bf16, fp16, or false for "
        "float32 throughout.",
    )
    attention_grad_checkpointing: bool = Field(
        default=False, description="Recompute each layer's attention in the backward pass to save memory."
    )
    gelu_grad_checkpointing: bool = Field(
        default=False, description="Recompute each layer's activation in the backward pass to save memory."
    )
    compile: Compile = Field(
        default="auto",
        description="Compile the layers (torch.compile): a minute or two at the start, faster steps. auto: for "
        "pretraining on a GPU, if compiled layers were tried and right. true: always, where there is a compiler. "
        "false: never.",
    )
    vocab_size: Size = Field(description="Tokens in the vocabulary; the tokenizer must have no more.")
    num_sen_type: Size = Field(default=1, description="Kinds of segment (sentence types) that have an embedding.")
    max_seq_len: Size = Field(description="Longest input in tokens: positions that have an embedding.")
    embedding_dim: Size = Field(description="Width of the token, position and segment embeddings.")
    transformer_dim: Size = Field(description="Width of the layers; num_head x head_dim.")
    transformer_hidden_dim: Size = Field(description="Width of the hidden layer of each feed-forward block.")
    num_layers: Size = Field(description="Layers of the encoder.")
    dropout_prob: float = Field(default=0.1, ge=0, le=MOST_DROPOUT, description="Probability of dropout.")
    num_head: Size = Field(description="Attention heads of each layer.")
    head_dim: Size = Field(description="Width of each attention head.")
    attn_type: AttnType = Field(
        description="The attention of all layers, or a list with that of each; an object gives parameters."
    )
    num_landmarks: NumLandmarks | None = Field(
        default=None, description="Landmarks of every layer whose attention has them and does not give its own."
    )
    conv_kernel_size: ConvKernelSize | None = Field(
        default=None,
        description="Taps of the convolution over the values, an odd number, of every layer that does not give its "
        "own; null for no convolution.",
    )
    norm: Literal["post", "pre"] = Field(
        default="post",
        description="Layer norm after each block (post, as BERT) or before it with a final norm (pre, as the authors' "
        "LRA encoder).",
    )
    activation: Literal["gelu_tanh", "gelu"] = Field(
        default="gelu_tanh", description="GELU by its tanh approximation (the authors') or exact (BERT, LRA)."
    )
    layer_norm_eps: float = Field(default=1e-5, gt=0, description="Epsilon of every layer norm.")
    position_offset: int = Field(
        default=2, ge=0, description="Row of the position table that the first token takes: 2 as RoBERTa, 0 as BERT."
    )
    embedding_norm: bool = Field(default=True, description="Layer norm after the embeddings; false in the LRA encoder.")
    pooling: Literal["first", "mean"] = Field(
        default="first", description="What stands for the whole input: the first token, or the mean of the valid ones."
    )

    @field_validator("mixed_precision", "compile", mode="before")
    @classmethod
    def _no_number_as_bool(cls, value: object) -> object:
        # pydantic's Literal[True] takes 1, since 1 == True.
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise ValueError("expected true, false or a name")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        problems = [
            *self._wrong_widths(),
            *self._wrong_layers(),
            *self._unused_defaults(),
            *self._too_many_landmarks(),
            *self._uneven_segments(),
        ]
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

    def _layers(self) -> tuple[AttentionConfig, ...]:
        items = self.attn_type if isinstance(self.attn_type, tuple) else (self.attn_type,)
        return tuple(self._resolved(attention_config(item) if isinstance(item, str) else item) for item in items)

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
        items = self.attn_type if isinstance(self.attn_type, tuple) else (self.attn_type,)
        written = tuple(
            item if isinstance(item, str) else layer for item, layer in zip(items, self._layers(), strict=True)
        )
        return written if isinstance(self.attn_type, tuple) else written[0]

    def _wrong_widths(self) -> list[Problem]:
        width = self.num_head * self.head_dim
        if width == self.transformer_dim:
            return []
        product = f"num_head x head_dim = {self.num_head} x {self.head_dim} = {width}"
        return [Problem(("transformer_dim",), f"expected {product}, found {self.transformer_dim}")]

    def _wrong_layers(self) -> list[Problem]:
        if not isinstance(self.attn_type, tuple) or len(self.attn_type) == self.num_layers:
            return []
        expected = f"expected {self.num_layers} items, one for each of the num_layers"
        return [Problem(("attn_type",), f"{expected}, found {len(self.attn_type)}")]

    def _unused_defaults(self) -> list[Problem]:
        layers = self._layers()
        return [
            Problem((key,), f"no layer uses it: {_why_unused(key, layers)}; remove it, or set it to null")
            for key, value in self._flat().items()
            if layers and value not in [getattr(layer, key, None) for layer in layers]
        ]

    def _too_many_landmarks(self) -> list[Problem]:
        problems = []
        for index, layer in enumerate(self._layers()):
            landmarks = getattr(layer, "num_landmarks", 0)
            if landmarks >= self.max_seq_len:
                text = (
                    f"expected fewer landmarks than max_seq_len = {self.max_seq_len}, found {landmarks}: every input "
                    'would be short enough for exact attention; lower it, or use "softmax"'
                )
                problems.append(Problem(self._path_of_landmarks(index), text))
        return list(dict.fromkeys(problems))

    def _uneven_segments(self) -> list[Problem]:
        problems = [
            Problem(
                self._path_of_landmarks(index),
                f"expected a divisor of max_seq_len = {self.max_seq_len}, found {getattr(layer, 'num_landmarks', 0)}: "
                'fixed segments are of equal length; only segments "valid" take any length',
            )
            for index, layer in enumerate(self._layers())
            if not layer.accepts_length(self.max_seq_len)
        ]
        return list(dict.fromkeys(problems))

    def _path_of_landmarks(self, index: int) -> Path:
        """Where the number of landmarks of a layer comes from."""
        item = self.attn_type[index] if isinstance(self.attn_type, tuple) else self.attn_type
        place: Path = ("attn_type", index) if isinstance(self.attn_type, tuple) else ("attn_type",)
        if not isinstance(item, str) and "num_landmarks" in item.model_fields_set:
            return (*place, "num_landmarks")
        # Unset everywhere, it is the attention's own default.
        return ("num_landmarks",) if self.num_landmarks is not None else place


def _why_unused(key: str, layers: tuple[AttentionConfig, ...]) -> str:
    if any(key in type(layer).model_fields for layer in layers):
        return f"each that has {key} gives its own"
    names = " and ".join(dict.fromkeys(layer.name for layer in layers))
    return f"attn_type is {names}, which has no {key}"


class PretrainingConfig(BaseModel):
    """The pretraining run."""

    model_config = STRICT

    objectives: tuple[Objective, ...] = Field(
        default=("mlm",),
        description="What is learned: mlm (masked tokens) always, sop (sentence order) beside it if listed. The loss "
        "is the mean over masked tokens plus the mean over rows with an order, each of which weighs 1 / (batch_size x "
        "their share of all rows), also in a step that has few of them.",
        json_schema_extra={"uniqueItems": True, "contains": {"const": "mlm"}},
    )
    batch_size: Size = Field(description="Rows in each optimiser step, over all devices.")
    learning_rate: float = Field(gt=0, description="Highest learning rate, reached at the end of the warm-up.")
    warmup: float = Field(ge=0, le=1, description="Fraction of all steps in which the learning rate rises from 0.")
    batches_per_report: Size = Field(default=10, description="Steps between two lines of the log.")
    batches_per_epoch: Size = Field(description="Steps between two validations, each followed by a checkpoint.")
    epoch: Size = Field(description="Epochs of batches_per_epoch steps in the whole run.")
    validate_batches_per_epoch: Size = Field(description="Batches of each validation.")
    mask_prob: float = Field(default=0.15, gt=0, lt=1, description="Fraction of each row's tokens that is masked.")
    weight_decay: float = Field(
        default=0.01, ge=0, description="Decoupled weight decay of the matrices; norms and biases have none."
    )
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="Decay of Adam's first moment.")
    adam_beta2: float = Field(default=0.999, ge=0, lt=1, description="Decay of Adam's second moment.")
    adam_eps: float = Field(default=1e-6, gt=0, description="Adam's epsilon.")
    max_grad_norm: float | None = Field(
        default=1.0, gt=0, description="Norm to which gradients are clipped; null for no clipping."
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of the weights, the order of the rows, masking and dropout."
    )
    keep_checkpoints: Size = Field(
        default=2, description="Latest checkpoints between epochs that stay until their epoch's own is written."
    )
    keep_epochs: Size | None = Field(
        default=None,
        description="Latest epochs whose checkpoints stay, the whole state (.cp) and the weights (.model) alike; "
        "earlier ones are removed at each epoch's end and when the run is started again. null for all.",
    )
    minutes_per_checkpoint: float = Field(default=10.0, gt=0, description="Minutes between checkpoints in an epoch.")

    @field_validator("objectives", mode="before")
    @classmethod
    def _list_of_objectives(cls, value: object) -> object:
        return _as_tuple(value)

    @field_validator("objectives")
    @classmethod
    def _possible_objectives(cls, value: tuple[Objective, ...]) -> tuple[Objective, ...]:
        if "mlm" not in value or len(set(value)) < len(value):
            raise ValueError('expected objectives with "mlm" among them, none twice')
        return value

    @property
    def num_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epoch * self.batches_per_epoch

    @property
    def warmup_steps(self) -> int:
        """Optimiser steps in which the learning rate rises."""
        return round(self.warmup * self.num_steps)


class GpuConfig(BaseModel):
    """What one device takes at a time."""

    model_config = STRICT

    inst_per_gpu: Size = Field(description="Rows that one device takes at once; the rest of a batch is accumulated.")
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="With several processes: the whole model in each (ddp), or weights, gradients and optimizer in "
        "shards (fsdp), for models that one device cannot hold.",
    )


class ExperimentConfig(BaseModel):
    """A config.json: one experiment."""

    model_config = STRICT

    schema_url: str | None = Field(
        default=None, alias="$schema", description="The JSON schema for editors, config.schema.json."
    )
    model_checkpoints: Folder = Field(default="/model/model", description="Where checkpoints are written.")
    data_folder: Folder = Field(default="/dataset", description="Where the pretraining rows are.")
    glue_dataset_folder: Folder = Field(default="/glue", description="Where the GLUE files are.")
    imdb_dataset_folder: Folder = Field(default="/imdb", description="Where the IMDB reviews are.")
    wikihop_dataset_folder: Folder = Field(default="/wikihop", description="Where the WikiHop files are.")
    from_cp: Folder | None = Field(
        default=None,
        description="Checkpoint (.model or .cp) whose weights a new run starts from; /model and relative paths are in "
        "the experiment folder. A run that has a checkpoint of its own goes on from that.",
    )
    from_cp_resize: Resize = Field(
        default="lossless",
        description="What may have another size than in from_cp. none: nothing. lossless: positions and sentence types "
        "(repeated or cut) and larger convolution kernels (zeros around the taps), so that input which both models "
        "take gets the same output. lossy: also smaller kernels, which lose their outer taps.",
    )
    model: ModelConfig = Field(description="The network: its sizes, its attention and how it is computed.")
    pretraining_setting: PretrainingConfig = Field(description="The pretraining run: its length, optimiser and logs.")
    gpu_setting: GpuConfig = Field(description="How the batch is cut for the devices.")

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        batch, rows = self.pretraining_setting.batch_size, self.gpu_setting.inst_per_gpu
        if batch % rows:
            text = f"expected a multiple of gpu_setting.inst_per_gpu = {rows}, found {batch}"
            raise ImpossibleError([Problem(("pretraining_setting", "batch_size"), text)])
        return self
