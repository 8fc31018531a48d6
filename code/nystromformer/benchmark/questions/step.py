"""A step of training beside transformers' Nyströmformer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nystromformer.benchmark.flags import ATTENTIONS, Results, count, flag, numbers, threads
from nystromformer.command_line.runtime import this_command
from nystromformer.config.ranges import MOST_LAYERS
from nystromformer.errors import UserError

HEAD_DIM = LANDMARKS = 64
"""Of the models whose steps are measured."""


@dataclass(frozen=True)
class Step:
    """The model, by default the paper's BERT-small with RoBERTa's vocabulary, and its batches.

    Raises:
        UserError: a width or a length that is no multiple of 64.
    """

    attentions: list[str] = flag(
        [], f"{ATTENTIONS} Default: Nyström with the convolution, and softmax.", name="attention"
    )
    lengths: Sequence[int] = numbers((512, 4096), "Tokens of a row in pretraining, separated by commas.", least=128)
    tokens: int = count(4096, "Tokens of a batch in pretraining, of as many rows as that gives.")
    batch: int = count(32, "Examples of a step of fine-tuning.")
    pad_to: int = count(512, "Tokens of a padded example.", least=128)
    repeats: int = count(7, "Measurements of each.")
    num_layers: int = count(4, "Layers of the model.", most=MOST_LAYERS, name="layers")
    width: int = count(512, f"Width of the model: {HEAD_DIM} for each attention head.", least=HEAD_DIM)
    vocab_size: int = count(50265, "Tokens of the vocabulary.", least=300)
    precision: Literal["float32", "bf16", "fp16"] = flag(
        "float32", "What models compute in: float32, or bf16 or fp16 under autocast."
    )
    compiled: bool = flag(False, "Also measure ours with compiled layers.", name="compile")
    threads: int = threads()

    def __post_init__(self) -> None:
        for name, values in (("width", [self.width]), ("lengths", self.lengths), ("pad_to", [self.pad_to])):
            if wrong := [value for value in values if value % LANDMARKS]:
                why = "the heads' width" if name == "width" else "its landmarks: transformers accepts no other lengths"
                raise UserError(f"--{name}: expected multiples of {LANDMARKS}, {why}; found {wrong}")


def step(settings: Step, results: Results) -> str:
    """Time and memory of a step of pretraining and of fine-tuning, beside transformers' Nyströmformer."""
    from nystromformer.benchmark.step import measure_step

    return measure_step(settings, results.out, this_command())
