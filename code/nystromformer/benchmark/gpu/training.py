"""Pretraining steps of BERT-base on made-up tokens: speed, use of the device, memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nystromformer.benchmark.gpu.settings import GpuBenchmark, TrainingSize
from nystromformer.benchmark.models import made_up_batch, masked_lm_step, step_memory
from nystromformer.benchmark.pieces import LeftOut, Piece
from nystromformer.benchmark.timing import Timing, Work, time_repeatedly
from nystromformer.config import ModelConfig, load_config
from nystromformer.files.paths import PROJECT
from nystromformer.model import PretrainingModel
from nystromformer.training.device import missing_compiler

ATTENTIONS = NYSTROM, SOFTMAX = "nystrom", "softmax"


@dataclass(frozen=True)
class TrainingRow:
    """One way to make a step."""

    length: int
    rows: int
    attention: str
    compiled: bool
    time: Timing
    """Of a step."""
    memory: float
    """MiB at the peak of a step, weights and optimizer included."""
    flops: float
    """Of a step: three times those that PyTorch counts in a forward by tensor operations."""

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.rows * self.length / self.time.median


def training_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    """Every batch with both attentions, eager and then compiled."""
    for compiled in (False, True) if settings.sizes.compiles else (False,):
        for size in settings.sizes.training:
            for attention in ATTENTIONS:
                layers = "compiled layers" if compiled else "eager"
                title = f"{size.rows} x {size.length} tokens, {attention}, {layers}"
                yield Piece("training", title, 15.0 if compiled else 8.0, measure_training, (size, attention, compiled))


def measure_training(
    settings: GpuBenchmark, size: TrainingSize, attention: str, compiled: bool
) -> Sequence[TrainingRow]:
    """Steps with one attention."""
    flops = 3.0 * size.rows * count_forward(size, attention, settings.device)
    model, step = prepare_training(size, attention, compiled, settings)
    time = time_repeatedly(step, settings.sizes.seconds)
    return [TrainingRow(size.length, size.rows, attention, compiled, time, step_memory(model, step), flops)]


def prepare_training(
    size: TrainingSize, attention: str, compiled: bool, settings: GpuBenchmark
) -> tuple[PretrainingModel, Work]:
    """A model, and its steps on one batch, of which one was made: it compiles what it needs."""
    if compiled:
        if missing := missing_compiler(settings.device):
            raise LeftOut(missing)
        # Else what this process has compiled for other lengths would decide what it compiles now.
        torch.compiler.reset()
    torch.manual_seed(0)
    config = training_config(size, attention, settings.implementation)
    batch = made_up_batch(config.vocab_size, size.length, size.rows, settings.device)
    model = PretrainingModel(config, ["mlm"]).to(settings.device).train()
    if compiled:
        for layer in model.encoder.layers:
            layer.compile()
    step = masked_lm_step(model, batch, settings.precision)
    if attention == SOFTMAX:
        step = sdpa_kernel(SDPBackend.FLASH_ATTENTION)(step)
    step()
    return model, step


def training_config(size: TrainingSize, attention: str, implementation: str) -> ModelConfig:
    """The shipped experiment's model with this attention.

    Nothing is computed again in the backward, which there is memory for: softmax attention would lose by it more.
    """
    changes = dict.fromkeys(("model.attention_grad_checkpointing", "model.gelu_grad_checkpointing"), "false")
    changes |= dict(override.split("=", 1) for override in size.overrides)
    if attention == NYSTROM:
        changes["model.attn_type"] = f'{{"name": "nystrom", "implementation": "{implementation}"}}'
    else:
        changes |= {"model.attn_type": "softmax", "model.num_landmarks": "null", "model.conv_kernel_size": "null"}
    overrides = [f"{key}={value}" for key, value in changes.items()]
    return load_config(PROJECT / size.experiment / "config.json", overrides).model


def count_forward(size: TrainingSize, attention: str, device: torch.device) -> int:
    """Operations of a row's forward as PyTorch counts them, 2 for each multiplication of the matrix products."""
    config = training_config(size, attention, "torch")
    batch = made_up_batch(config.vocab_size, size.length, 1, device)
    model = PretrainingModel(config, ["mlm"]).to(device).eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch["tokens_BN"], batch["positions_BK"])
    return int(counter.get_total_flops())
