"""`run_benchmark.py finetune`: steps on short rows, ours in batches of similar length, ours and transformers' padded.

Shapes: B rows, N tokens.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.benchmark.models import our_config, transformers_config
from nystromformer.benchmark.questions.finetune import Finetuning as Settings
from nystromformer.benchmark.results import measure_and_write, table_of
from nystromformer.benchmark.timing import Timing, time_side_by_side
from nystromformer.benchmark.ways import Way, no_metrics
from nystromformer.data.preprocessing.pretrained_tokenizer import read_tokenizer
from nystromformer.model import ClassificationModel, count_parameters
from nystromformer.runs.settings import RunSettings
from nystromformer.tables import Column
from nystromformer.tasks.experiment.checks import check_room_to_train
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.plan import LEAST_POOLS
from nystromformer.tasks.finetuning.target import Classes
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.read import read_split
from nystromformer.training import choose_device
from nystromformer.training.device import Device

logger = logging.getLogger(__name__)

OURS, PADDED, PEER = "nystromformer, by length", "nystromformer, padded", "transformers, padded"
_PAD = 1


@dataclass(frozen=True)
class FinetuneRow:
    """One way to fine-tune."""

    method: str
    rows: int
    """Examples to a measurement."""
    tokens: float
    """Mean of the tokens of an example, padding included."""
    time: Timing
    per_row: float
    """Milliseconds of an example."""
    memory: float
    """MiB at the peak of a step of the longest batch, weights and optimizer included."""


class MadeUpRows:
    """Random tokens in rows as long as SST-2's training sentences: mostly phrases of a few words."""

    def __init__(self, count: int, vocab_size: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.name = "made-up rows"
        self.lengths: Ints = np.clip(np.exp(random.normal(2.4, 0.65, count)).astype(np.int64), 3, 66)
        self.rows = np.ones(count, dtype=np.int64)
        self.tokens = self.lengths
        self.labels = random.integers(0, 2, count)
        self.fingerprint = f"made-up {count} {vocab_size} {seed}"
        self._tokens_CN = random.integers(5, vocab_size - 1, (count, 66))

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        width = pad_to or int(self.lengths[numbers].max())
        mask_BN = np.arange(width) < self.lengths[numbers][:, None]
        tokens_BN = np.full(mask_BN.shape, _PAD, dtype=np.int64)
        filled = min(width, self._tokens_CN.shape[1])
        tokens_BN[:, :filled] = np.where(mask_BN[:, :filled], self._tokens_CN[numbers, :filled], _PAD)
        arrays = {"tokens_BN": tokens_BN, "mask_BN": mask_BN, "labels": self.labels[numbers]}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def measure_finetuning(settings: Settings, folder: Path) -> str:
    """Measure, write `finetune.json` and `finetune.txt`, and return what to print.

    Raises:
        UserError: no such data, or no such device.
    """
    chosen = {key: value.name if isinstance(value, Path) else value for key, value in asdict(settings).items()}
    return measure_and_write(folder, "finetune", lambda: _measure_ways(settings), table, chosen)


def _measure_ways(settings: Settings) -> list[FinetuneRow]:
    """All ways side by side, a step of the loop each: batch, forward, backward, clipping, fused AdamW."""
    torch.set_num_threads(settings.threads)
    device = choose_device("auto", settings.mixed_precision)
    model = our_config(settings, settings.pad_to)
    check_room_to_train(f"--pad_to {settings.pad_to}", model, device.device, settings.batch, settings.pad_to)
    examples = _examples(settings)
    ways = {name: _way(settings, examples, device, name) for name in (OURS, PADDED, PEER)}
    times = time_side_by_side({name: way.work for name, way in ways.items()}, settings.repeats, warmup=1)
    found = []
    for name, way in ways.items():
        rows, tokens = way.count * settings.batch, sum(way.widths()) / way.count
        found.append(FinetuneRow(name, rows, tokens, times[name], times[name].median / rows, way.memory()))
    return found


def _examples(settings: Settings) -> Examples:
    # As many as pools of the default --bucket need, so that batches are as alike as in training on all of SST-2.
    if settings.glue is None or settings.tokenizer is None:
        return MadeUpRows(LEAST_POOLS * 50 * settings.batch, settings.vocab_size)
    tokenizer = read_tokenizer(settings.tokenizer, str(settings.tokenizer)).tokenizer
    texts, _ = read_split(find_tasks("SST-2")[0], settings.glue, "train")
    return EncodedTexts(texts, tokenizer, settings.pad_to, sentence_types=False)


def _way(settings: Settings, examples: Examples, device: Device, name: str) -> Way:
    torch.manual_seed(0)
    pad_to = None if name == OURS else settings.pad_to
    model = peer_model(settings) if name == PEER else ClassificationModel(our_config(settings, settings.pad_to), 2)
    model.to(device.device).train()
    logger.info("%s: %s parameters", name, f"{count_parameters(model):,}")
    run = RunSettings(settings.batch, 3e-5, epochs=1, seed=0, warmup=0.0, bucket=50, pad_to=pad_to)
    budget = settings.batch * settings.pad_to
    finetuning = Finetuning(model, Classes(2), examples, {}, no_metrics, run, budget, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.01, fused=True)
    count = settings.batches if name == OURS else 1

    def loss(batch: Mapping[str, Tensor]) -> Tensor:
        if name != PEER:
            return finetuning.loss(batch)[0]
        # Its Nyström path takes no mask of two dimensions.
        mask = torch.zeros(batch["mask_BN"].shape, device=device.device).masked_fill(~batch["mask_BN"], -1e9)
        mean: Tensor = model(batch["tokens_BN"], attention_mask=mask[:, None, None, :], labels=batch["labels"]).loss
        return mean

    return Way(model, finetuning, optimizer, loss, device, count, clip=True)


def peer_model(settings: Settings) -> nn.Module:
    """transformers' classifier of the same sizes."""
    from transformers import NystromformerForSequenceClassification

    model: nn.Module = NystromformerForSequenceClassification(transformers_config(settings, settings.pad_to))
    return model


def table(rows: Sequence[FinetuneRow]) -> str:
    """Time of an example, and ratios to transformers and to ours padded."""
    per_row = {row.method: row.per_row for row in rows}
    lines = table_of(
        rows,
        (Column(width=26, is_text=True), lambda row: row.method),
        (Column("examples", 8, gap=1), lambda row: str(row.rows)),
        (Column("tokens each", 11, gap=1), lambda row: f"{row.tokens:.1f}"),
        (Column("ms (quartiles)", 22, gap=1), lambda row: f"{row.time:.0f}"),
        (Column("ms/example", 10, gap=1), lambda row: f"{row.per_row:.2f}"),
        (Column(f"/ {PEER}", 22, gap=1), lambda row: f"{row.per_row / per_row[PEER]:.3f}"),
        (Column(f"/ {PADDED}", 23, gap=1), lambda row: f"{row.per_row / per_row[PADDED]:.3f}"),
        (Column("MiB", 7, gap=1), lambda row: f"{row.memory:.0f}"),
    )
    return "\n".join(lines)
