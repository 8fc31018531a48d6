"""Phases of a pretraining run that come before its last one, such as short rows before long ones."""

from typing import Any

from pydantic import BaseModel, Field

from .attention import ATTENTIONS, STRICT, ConvKernelSize
from .network import AttnType
from .ranges import LEAST_RATE, MOST_RATE, Folder, Size


class StageConfig(BaseModel):
    """A phase: what it has otherwise than the run itself, which comes last."""

    model_config = STRICT

    max_seq_len: Size = Field(description="Tokens of the phase's rows, no more than in the phase after it.")
    data_folder: Folder = Field(description="Folder of the phase's dataset, made with the same tokenizer as the run's.")
    epoch: Size = Field(description="Number of epochs of the phase.")
    batches_per_epoch: Size | None = Field(default=None, description="Steps of an epoch; null for the run's own.")
    batch_size: Size | None = Field(default=None, description="Rows of a step; null for the run's own.")
    inst_per_gpu: Size | None = Field(
        default=None, description="Rows that one device takes at once; null for the run's own."
    )
    learning_rate: float | None = Field(
        default=None,
        ge=LEAST_RATE,
        le=MOST_RATE,
        description="Highest learning rate of the phase, whose schedule is its own; null for the run's own.",
    )
    warmup: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Fraction of the phase's steps in which the rate rises; null for the run's own.",
    )
    attn_type: AttnType | None = Field(
        default=None, description="The phase's attention, as in model.attn_type; null for the run's own."
    )
    num_landmarks: Size | None = Field(default=None, description="Landmarks; null for the run's own.")
    conv_kernel_size: ConvKernelSize | None = Field(
        default=None, description="Tokens that the convolution spans; null for the run's own."
    )

    def written_over(self, config: dict[str, Any]) -> dict[str, Any]:
        """A config.json's data with what the phase has otherwise, and without phases of its own.

        Args:
            config: the run's, as plain data; it stays as it is.
        """
        model = ("max_seq_len", "attn_type", "num_landmarks", "conv_kernel_size")
        setting = ("epoch", "batches_per_epoch", "batch_size", "learning_rate", "warmup")
        # A null within an attention may be no default.
        own = {
            key: value for key, value in self.model_dump(mode="json", exclude_unset=True).items() if value is not None
        }
        network = {**config["model"], **{key: own[key] for key in model if key in own}}
        for key in ("num_landmarks", "conv_kernel_size"):
            if "attn_type" in own:
                # What stands beside the run's attention says nothing of another one.
                network[key] = own.get(key)
            elif key in own:
                network["attn_type"] = _with_value(network["attn_type"], key, config["model"][key], own[key])
        return {
            **config,
            "data_folder": own["data_folder"],
            "model": network,
            "pretraining_setting": {
                **config["pretraining_setting"],
                **{key: own[key] for key in setting if key in own},
                "stages": None,
            },
            "gpu_setting": {
                **config["gpu_setting"],
                **{key: own[key] for key in ("inst_per_gpu",) if key in own},
            },
        }


def _with_value(attention: Any, key: str, former: int | None, value: int) -> Any:
    """An `attn_type` as plain data with all defaults, in which the phase's value of a key takes the place of the run's,
    or of the default where the run has none.
    """
    if isinstance(attention, list):
        return [_with_value(each, key, former, value) for each in attention]
    if not isinstance(attention, dict):
        return attention
    if "name" not in attention:  # of layers by turns
        return {part: _with_value(each, key, former, value) for part, each in attention.items()}
    field = ATTENTIONS[attention["name"]].model_fields.get(key)
    if field is None or attention.get(key, field.default) != (field.default if former is None else former):
        return attention
    return attention | {key: value}
