"""Pretraining steps of BERT-base on made-up tokens: speed, use of the device, memory, and the paper's run in hours.

Shapes: N tokens, E width, F hidden width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nystromformer.benchmark.gpu.settings import GpuBenchmark, TrainingSize
from nystromformer.benchmark.models import made_up_batch, masked_lm_step, step_memory
from nystromformer.benchmark.pieces import LeftOut, NoFigure, Piece, attempt
from nystromformer.benchmark.timing import Timing, Work
from nystromformer.config import ModelConfig, load_config
from nystromformer.files.paths import PROJECT
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.training.compile import compile_units, missing_compiler

ATTENTIONS = NYSTROM, SOFTMAX = "nystrom", "softmax"
_PAPER_TOKENS = 500_000 * 256 * 512
"""Of the paper's pretraining: 0.5 M steps of 256 rows."""
_TOGETHER = 3
"""Steps between two looks at the clock: as in training, the host need not wait for each."""


@dataclass(frozen=True)
class TrainingRow:
    """One way to make a step."""

    length: int
    rows: int
    attention: str
    compiled: bool
    parameters: int
    time: Timing
    """Of a step."""
    memory: float
    """MiB at the peak of a step, weights and optimizer included."""
    flops: float
    """Of a step, as `step_flops` counts them."""

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.rows * self.length / self.time.median

    @property
    def hours_of_the_paper(self) -> float:
        """Hours for as many tokens as the paper's pretraining has."""
        return _PAPER_TOKENS / self.tokens_per_second / 3600


def measure_training(settings: GpuBenchmark, size: TrainingSize, compiled: bool) -> Sequence[TrainingRow | NoFigure]:
    """Steps with either attention, in turn."""
    if compiled and (missing := missing_compiler(settings.device)):
        raise LeftOut(missing)
    # Else what this process has compiled for other lengths would decide what it compiles now.
    torch.compiler.reset()
    found = {name: attempt(name, partial(prepare_training, size, name, compiled, settings)) for name in ATTENTIONS}
    ready = {name: training for name, training in found.items() if not isinstance(training, NoFigure)}
    steps = {name: _several(training.step) for name, training in ready.items()}
    times = settings.time_in_turn(steps)
    rows: list[TrainingRow | NoFigure] = []
    for name, training in found.items():
        if isinstance(training, NoFigure):
            rows.append(training)
            continue
        row = TrainingRow(
            size.length,
            size.rows,
            name,
            compiled,
            parameters=count_parameters(training.model),
            time=times[name] / _TOGETHER,
            memory=step_memory(training.model, training.step),
            flops=step_flops(training.config, size.length, size.rows, training.predictions),
        )
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Training:
    """A model, and its steps on one batch."""

    config: ModelConfig
    model: PretrainingModel
    step: Work
    predictions: int
    """Masked positions of a row."""


def prepare_training(size: TrainingSize, attention: str, compiled: bool, settings: GpuBenchmark) -> Training:
    """Training that has made a step, which compiles what it needs."""
    torch.manual_seed(0)
    config = training_config(size, attention, settings.implementation)
    batch = made_up_batch(config.vocab_size, size.length, size.rows, settings.device)
    model = PretrainingModel(config, ["mlm"]).to(settings.device).train()
    if compiled:
        compile_units(model.encoder.layers, settings.device)
    step = masked_lm_step(model, batch, settings.precision)
    if attention == SOFTMAX:
        step = sdpa_kernel(SDPBackend.FLASH_ATTENTION)(step)
    step()
    return Training(config, model, step, batch["positions_BK"].shape[1])


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


def training_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    for compiled in (False, True) if settings.sizes.compiles else (False,):
        for size in settings.sizes.training:
            title = f"{size.rows} x {size.length} tokens, {'compiled layers' if compiled else 'eager'}"
            yield Piece("training", title, 25.0 if compiled else 12.0, measure_training, (size, compiled))


def step_flops(config: ModelConfig, length: int, rows: int, predictions: int) -> float:
    """Operations of a step of masked language modelling: 2 for each multiplication of the matrix products, three times
    those of the forward (of the attention, as it says itself). What is computed again to save memory does not count.

    Args:
        predictions: masked positions of a row; what follows the last layer's attention is computed there alone.
    """
    own = 0.0
    E, F = config.transformer_dim, config.transformer_hidden_dim
    total = 0.0 if config.embedding_dim == E else 2.0 * length * config.embedding_dim * E
    for index, attention in enumerate(config.attentions):
        wanted = predictions if index == config.num_layers - 1 else length
        total += 2 * length * attention.num_projections * E * E + 2 * wanted * (E * E + 2 * E * F)
        own += sum(attention.arithmetic(config.num_head, config.head_dim, length))
        total += 2 * length * E * (attention.conv_kernel_size or 0)
    total += 2 * predictions * (E * config.embedding_dim + config.embedding_dim * config.vocab_size)
    return rows * (own + 3.0 * total)


def _several(step: Work) -> Work:
    def work() -> None:
        for _ in range(_TOGETHER):
            step()

    return work
