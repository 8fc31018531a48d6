"""One attention alone: time and memory over the length, beside its public implementations and exact softmax.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from nystromformer.attention import create_attention
from nystromformer.benchmark.attention import (
    CONTROL,
    FUSED_LIMIT,
    SOFTMAX,
    AttentionRow,
    Call,
    check_memory,
    measure_at,
)
from nystromformer.benchmark.contenders import CONTENDERS, Sizes
from nystromformer.benchmark.peers import SharedQueryKey, fused_softmax
from nystromformer.benchmark.results import told, write_figures
from nystromformer.config import AttentionConfig
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.machine import machine_facts
from nystromformer.tables import Column, aligned

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MethodBenchmark:
    """What is measured.

    Raises:
        UserError: a length that the method cannot take, or settings that are impossible at the longest.
    """

    config: AttentionConfig
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    batch: int = 1
    num_heads: int = 12
    head_dim: int = 64
    repeats: int = 15
    threads: int = 2

    def __post_init__(self) -> None:
        wrong = [n for n in self.lengths if not 1 <= n <= MOST]
        if wrong:
            raise UserError(f"--lengths: expected numbers from 1 to {MOST:,}, found {wrong}")
        for length in self.lengths:
            if reason := self.config.why_not_length(length):
                raise UserError(f"--lengths: {self.config.name} takes no input of {length} tokens: {reason}")
        for key, text in self.config.impossible_at(max(self.lengths)):
            raise UserError(f"--attention: {key}: {text.replace('max_seq_len', 'the longest of --lengths')}")

    @property
    def ours(self) -> str:
        """What the method's row is called."""
        return self.config.name


def run_method(settings: MethodBenchmark) -> list[AttentionRow]:
    """Measure the method, its public implementations, softmax and the control, all of a length side by side."""
    torch.set_num_threads(settings.threads)
    check_memory(settings.batch, settings.lengths, settings.num_heads * settings.head_dim)
    rows = []
    for length in settings.lengths:
        rows += measure_at(settings, length, _modules(settings, length))
        logger.info("%d tokens measured", length)
    return rows


def _modules(settings: MethodBenchmark, length: int) -> dict[str, nn.Module | Call]:
    config, sizes = settings.config, Sizes(settings.num_heads, settings.head_dim, length)
    heads = {"num_heads": settings.num_heads, "head_dim": settings.head_dim, "max_length": max(settings.lengths)}
    ours = create_attention(config, **heads)
    shared = SharedQueryKey(ours) if ours.needs.shared_query_key else ours
    modules: dict[str, nn.Module | Call] = {settings.ours: shared}
    modules |= {one.name: one.build(config, sizes) for one in CONTENDERS.get(config.name, ()) if one.is_installed}
    if length <= FUSED_LIMIT:
        modules[SOFTMAX] = fused_softmax
    return modules


def method_table(settings: MethodBenchmark, rows: Sequence[AttentionRow]) -> str:
    """Times and memory, and what ours are of each other one's; how they grow with the length."""
    ours = {row.length: row for row in rows if row.method == settings.ours}
    columns = [Column("tokens", 7), Column("method", 38, is_text=True)]
    for heading, width in (("forward ms", 22), ("fwd+bwd ms", 24), ("MiB", 8)):
        columns += [Column(heading, width, gap=1), Column("ours/", 6, gap=1)]
    lines = []
    for row in rows:
        mine, cells = ours[row.length], []
        for of_ours, value, text in (
            (mine.forward.median, row.forward.median, str(row.forward)),
            (mine.both.median, row.both.median, str(row.both)),
            (mine.memory, row.memory, f"{row.memory:.1f}"),
        ):
            cells += [text, "" if row is mine or row.method == CONTROL else f"{of_ours / value:.2f}"]
        lines.append([str(row.length), row.method, *cells])
    return "\n".join([*aligned(columns, lines), "", *_notes(settings), *_growth(settings, rows)])


def _notes(settings: MethodBenchmark) -> list[str]:
    contenders = CONTENDERS.get(settings.config.name, ())
    missing = [one.name for one in contenders if not one.is_installed]
    notes = [f"Not installed, so not measured: {'; '.join(missing)}."] if missing else []
    if not contenders:
        notes.append("No public implementation that can be installed is known to compare with.")
    if max(settings.lengths) > FUSED_LIMIT:
        notes.append(f"softmax (SDPA) is left out past {FUSED_LIMIT} tokens, where a step takes seconds.")
    return notes


def _growth(settings: MethodBenchmark, rows: Sequence[AttentionRow]) -> list[str]:
    """Time and memory of a token at the longest length over those at 4096."""
    measured = {(row.method, row.length): row for row in rows}
    last = max(settings.lengths)
    if 4096 not in settings.lengths or last == 4096:
        return []
    lines = [f"per token at {last} tokens over that at 4096 (1 is proportional):"]
    for method in (settings.ours, CONTROL):
        a, b = measured[method, 4096], measured[method, last]
        shares = (b.forward.median / a.forward.median, b.both.median / a.both.median, b.memory / max(a.memory, 1e-9))
        forward, both, memory = (share * 4096 / last for share in shares)
        lines.append(f"  {method:24} forward {forward:.2f}, forward and backward {both:.2f}, memory {memory:.2f}")
    return lines


def measure_method(settings: MethodBenchmark, folder: Path, command: str) -> str:
    """Measure, write `attention-NAME.json` and `.txt`, and return what to print.

    Args:
        command: what repeats the measurement.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    rows = run_method(settings)
    table = method_table(settings, rows)
    said = {key: getattr(settings, key) for key in ("lengths", "batch", "num_heads", "head_dim", "repeats", "threads")}
    said |= {"attention": settings.config.model_dump(), "command": command}
    write_figures(folder, f"attention-{settings.config.name}", machine_facts(), said, rows, table)
    return told(table, folder)
