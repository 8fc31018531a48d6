"""A training step on the Long Range Arena's ListOps beside the same model with the authors' attention, and where its
time goes.

Shapes: B rows, N tokens.
"""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nystromformer.benchmark.models import replace_attention
from nystromformer.benchmark.peers import MaterialisedNystrom, Shape
from nystromformer.benchmark.questions.lra import ListOps
from nystromformer.benchmark.results import measure_and_write, table_of
from nystromformer.benchmark.timing import Timing, time_side_by_side
from nystromformer.benchmark.ways import PARTS, Way, no_metrics
from nystromformer.config import AttentionConfig, ExperimentConfig, ModelConfig, NystromConfig, load_config
from nystromformer.config.load import experiment_config
from nystromformer.errors import UserError
from nystromformer.model import Encoder
from nystromformer.runs.settings import RunSettings
from nystromformer.tables import Column
from nystromformer.tasks.finetuning.plan import LEAST_POOLS
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.tasks.lra.examples import StoredExamples
from nystromformer.tasks.lra.listops import Expressions
from nystromformer.tasks.lra.listops_data import draw_listops
from nystromformer.tasks.lra.store import open_stored
from nystromformer.tasks.lra.target import SequenceClasses
from nystromformer.training.device import Device, choose_device

logger = logging.getLogger(__name__)

BY_LENGTH, PADDED, AUTHORS = "rows by length", "padded", "padded, the authors' attention"
_POOL = 50


@dataclass(frozen=True)
class LraRow:
    """One way to make a step."""

    method: str
    tokens: float
    """Of a row, padding included."""
    time: Timing
    """Milliseconds of a step."""
    parts: dict[str, float]
    """Milliseconds of each of PARTS, in a run of its own in which they follow one after another."""
    memory: float
    """MiB at the peak of a step of the longest batch, weights and optimizer included."""


def measure_lra(settings: ListOps, folder: Path) -> str:
    """Measure, write `lra.json` and `lra.txt`, and return what to print.

    Raises:
        UserError: the recipe or the data are not what they have to be.
    """
    overrides = tuple(settings.overrides or ())
    config = load_config(settings.config, overrides)
    device = choose_device("auto", config.model.mixed_precision)
    chosen = {
        "data": "drawn" if settings.data is None else settings.data.name,
        "precision": device.precision,
        "batches": settings.batches,
        "repeats": settings.repeats,
        "threads": settings.threads,
        "overrides": overrides,
    }
    return measure_and_write(folder, "lra", lambda: _measure_ways(settings, config, device), table, chosen)


def _measure_ways(settings: ListOps, config: ExperimentConfig, device: Device) -> list[LraRow]:
    """All ways side by side, a step of the loop each."""
    torch.set_num_threads(settings.threads)
    attention = config.model.attentions[0]
    if not isinstance(attention, NystromConfig):
        raise UserError(f"{settings.config}: expected Nyström attention, found {attention.name}")
    with tempfile.TemporaryDirectory() as scratch:
        examples = _examples(settings, config, Path(scratch))
        # The authors' segments divide the length.
        count = attention.num_landmarks
        padded = -(-config.model.max_seq_len // count) * count
        ways = {
            name: _way(name, settings, _wide(config, padded), examples, padded, device)
            for name in (BY_LENGTH, PADDED, AUTHORS)
        }
        times = time_side_by_side({name: way.work for name, way in ways.items()}, settings.repeats, warmup=1)
        rows = []
        for name, way in ways.items():
            tokens = sum(way.widths()) / way.count
            rows.append(LraRow(name, tokens, times[name] / way.count, way.parts(), way.memory()))
            logger.info("%s measured", name)
    return rows


def _wide(config: ExperimentConfig, length: int) -> ExperimentConfig:
    data = config.model_dump(mode="json", by_alias=True)
    data["model"]["max_seq_len"] = length
    return experiment_config(data, "the recipe")


def _examples(settings: ListOps, config: ExperimentConfig, scratch: Path) -> StoredExamples:
    """As many as pools of batches by length need, so that these are as alike as in training."""
    folder = settings.data
    if folder is None:
        logger.info("drawing expressions")
        folder = scratch
        count = LEAST_POOLS * _POOL * config.pretraining_setting.batch_size
        draw_listops(folder, Expressions(), {"train": count, "validation": 1, "test": 1}, 0, settings.threads)
    return StoredExamples("train", open_stored(folder, "listops").split("train"), config.model.max_seq_len)


def _way(
    name: str,
    settings: ListOps,
    config: ExperimentConfig,
    examples: StoredExamples,
    padded: int,
    device: Device,
) -> Way:
    torch.manual_seed(0)
    target = SequenceClasses(10)
    model = target.build(config.model)
    if name == AUTHORS:
        assert isinstance(model.encoder, Encoder)
        peers = (_authors_attention(config.model, attention, padded) for attention in config.model.attentions)
        replace_attention(model.encoder, peers)
    model.to(device.device).train()
    setting = config.pretraining_setting
    pad_to = None if name == BY_LENGTH else padded
    run = RunSettings(setting.batch_size, setting.learning_rate, 1, 0, 0.0, _POOL, pad_to, every=1)
    budget = config.gpu_setting.inst_per_gpu * padded
    finetuning = Finetuning(model, target, examples, {}, no_metrics, run, budget, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, eps=1e-6, fused=True)
    count = settings.batches if name == BY_LENGTH else 1

    return Way(model, finetuning, optimizer, lambda batch: finetuning.loss(batch)[0], device, count, clip=False)


def _authors_attention(model: ModelConfig, attention: AttentionConfig, length: int) -> MaterialisedNystrom:
    assert isinstance(attention, NystromConfig)
    taps = attention.conv_kernel_size
    return MaterialisedNystrom(Shape(model.num_head, model.head_dim, attention.num_landmarks, taps, length))


def table(rows: Sequence[LraRow]) -> str:
    """Times of a step, their ratio to the authors' attention, and where they go."""
    base = next(row for row in rows if row.method == AUTHORS).time.median
    lines = table_of(
        rows,
        (Column("step", 32, is_text=True), lambda row: row.method),
        (Column("tokens a row", 12), lambda row: f"{row.tokens:,.0f}"),
        (Column("ms a step (quartiles)", 24), lambda row: f"{row.time:.0f}"),
        (Column("ratio", 6, gap=1), lambda row: f"{row.time.median / base:.2f}"),
        *((Column(f"{part}, ms", 12, gap=1), lambda row, part=part: f"{row.parts[part]:.1f}") for part in PARTS),
        (Column("MiB", 7, gap=1), lambda row: f"{row.memory:.0f}"),
    )
    return "\n".join(lines)
