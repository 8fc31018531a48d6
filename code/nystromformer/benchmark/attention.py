"""`run_benchmark.py efficiency --peers`: one attention alone, time and memory over the length, beside its public
implementations and exact softmax.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.efficiency.methods import parse_method
from nystromformer.benchmark.peers import (
    IMPLEMENTATIONS,
    MaterialisedNystrom,
    NystromAttentionPackage,
    Peer,
    Shape,
    SharedQueryKey,
    WrittenOutSoftmax,
    elementwise,
    fused_softmax,
    is_installed,
    transformers_nystrom,
)
from nystromformer.benchmark.questions.efficiency import Efficiency
from nystromformer.benchmark.results import new_figure, on_one_line, with_place, write_figures
from nystromformer.benchmark.timing import (
    Timing,
    check_memory,
    figure,
    passes_side_by_side,
    peak_memory,
    repeats_at,
    time_side_by_side,
)
from nystromformer.config import AttentionConfig
from nystromformer.config.attention.nystrom import NystromConfig
from nystromformer.errors import UserError
from nystromformer.files.writing import write_figure, write_text
from nystromformer.machine import machine_facts
from nystromformer.tables import Column, aligned, markdown

logger = logging.getLogger(__name__)

OURS, MASKED, BASE, CONTROL = "nystrom", "nystrom, padding mask", "authors' formulation", "elementwise control"
SOFTMAX, MASKED_SOFTMAX = "softmax (SDPA)", "softmax (SDPA), padding mask"
WRITTEN_OUT_LIMIT = 2048
"""Past it the N x N matrices of the written-out softmax and their gradients take gigabytes."""
FUSED_LIMIT = 4096
"""Past it one fused softmax step takes seconds on a CPU."""
PAPERS_TAPS = 33
"""Of the paper's convolution."""
FIGURES = {"forward": "forward, ms", "both": "forward and backward, ms", "memory": "peak memory, MiB"}
"""Of a row."""
_LEFT_OUT = (
    f"Left out, as they take seconds a step: softmax (SDPA) past {FUSED_LIMIT} tokens, written out past "
    f"{WRITTEN_OUT_LIMIT}."
)


@dataclass(frozen=True)
class AttentionRow:
    """One method at one length."""

    length: int
    method: str
    forward: Timing
    both: Timing
    """Forward and backward."""
    memory: float
    """MiB at the peak of forward and backward."""


def measure_beside_peers(settings: Efficiency, folder: Path, command: str) -> str:
    """Measure, write `attention.json`, `.txt`, `.md` and `.png`, of another attention than the paper's Nyström
    `attention-NAME.json` and `.txt`, and return what to print.

    Nyström attention as the paper has it, with any number of landmarks, is measured with the paper's convolution, with
    and without a padding mask, and beside the authors' formulation; any other attention, and one with other settings,
    as it is configured.

    Args:
        settings: with one attention, or none for `nystrom`.
        command: what repeats the measurement.

    Raises:
        UserError: several attentions, an unknown one, a length that it or some peer cannot take, or settings that are
            impossible at the longest.
    """
    config = _chosen_attention(settings)
    landmarks = papers_landmarks(config)
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    torch.set_num_threads(settings.threads)
    check_memory(settings.batch, settings.lengths, settings.heads * settings.head_dim)
    rows = []
    for length in settings.lengths:
        if landmarks is None:
            methods = _methods(settings, config, length)
        else:
            methods = _papers_methods(settings, landmarks, length)
        rows += _measure_at(settings, length, methods)
        logger.info("%d tokens measured", length)
    facts = machine_facts()
    described = {
        "lengths": settings.lengths,
        "batch": settings.batch,
        "num_heads": settings.heads,
        "head_dim": settings.head_dim,
        **({} if landmarks is None else {"num_landmarks": landmarks, "conv_kernel_size": PAPERS_TAPS}),
        "repeats": settings.repeats,
        "threads": settings.threads,
    }
    if landmarks is None:
        text = method_table(config.name, rows)
        described |= {"attention": config.model_dump(), "command": command}
        write_figures(folder, f"attention-{config.name}", facts, described, rows, text)
    else:
        text = table(rows)
        write_figures(folder, "attention", facts, described, rows, text)
        write_text(folder / "attention.md", f"{to_paste(described, rows, facts, command)}\n")
        draw(rows, folder / "attention.png", on_one_line(facts))
    return with_place(text, folder)


def papers_landmarks(config: AttentionConfig) -> int | None:
    """How many the paper's Nyström attention has; None where the attention is another."""
    if isinstance(config, NystromConfig) and config == NystromConfig(num_landmarks=config.num_landmarks):
        return config.num_landmarks
    return None


def _chosen_attention(settings: Efficiency) -> AttentionConfig:
    if len(settings.attentions) > 1:
        raise UserError(f"--peers: expected one --attention, found {len(settings.attentions)}")
    config = parse_method(settings.attentions[0] if settings.attentions else OURS).config
    assert config is not None
    if count := papers_landmarks(config):
        if wrong := [n for n in settings.lengths if n <= count or n % count]:
            raise UserError(
                f"--lengths: expected multiples of num_landmarks = {count}, larger than it, because the peers accept "
                f"no others; found {wrong}"
            )
        return config
    for length in settings.lengths:
        if reason := config.why_not_length(length):
            raise UserError(f"--lengths: {config.name} does not accept inputs of {length} tokens: {reason}")
    for key, text in config.impossible_at(max(settings.lengths)):
        raise UserError(f"--attention: {key}: {text.replace('max_seq_len', 'the longest of --lengths')}")
    return config


def _measure_at(settings: Efficiency, length: int, methods: Mapping[str, Peer]) -> list[AttentionRow]:
    """Measure the methods and the control side by side, at one length."""
    size = (settings.batch, length, settings.heads, settings.head_dim)
    passes = passes_side_by_side({**methods, CONTROL: elementwise}, size, _device())
    repeats = repeats_at(length, settings.repeats)
    forward = time_side_by_side({name: each.forward for name, each in passes.items()}, repeats)
    both = time_side_by_side({name: each.both for name, each in passes.items()}, repeats)
    return [
        AttentionRow(length, name, forward[name], both[name], peak_memory(each.both)) for name, each in passes.items()
    ]


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _papers_methods(settings: Efficiency, num_landmarks: int, length: int) -> dict[str, Peer]:
    device = _device()
    shape = Shape(settings.heads, settings.head_dim, num_landmarks, PAPERS_TAPS, length)
    ours = create_attention("nystrom", **{key: value for key, value in vars(shape).items() if key != "length"})
    ours.to(device)
    keep_BN = (torch.arange(length, device=device) < length - length // 10).expand(settings.batch, -1)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # The mask is built in each call, as in an encoder of one layer.
        out: Tensor = ours(q, k, v, AttentionMask(keep_BN))
        return out

    methods: dict[str, Peer] = {
        OURS: ours,
        MASKED: masked,
        BASE: MaterialisedNystrom(shape),
        "transformers": transformers_nystrom(shape),
    }
    if is_installed("nystrom_attention"):
        methods["nystrom-attention"] = NystromAttentionPackage(shape)
    if length <= WRITTEN_OUT_LIMIT:
        methods["softmax, written out"] = WrittenOutSoftmax()
    if length <= FUSED_LIMIT:
        methods[SOFTMAX] = fused_softmax
        methods[MASKED_SOFTMAX] = lambda q, k, v: fused_softmax(q, k, v, keep_BN)
    return methods


def _methods(settings: Efficiency, config: AttentionConfig, length: int) -> dict[str, Peer]:
    heads = {"num_heads": settings.heads, "head_dim": settings.head_dim, "max_length": max(settings.lengths)}
    ours = create_attention(config, **heads)
    methods: dict[str, Peer] = {config.name: SharedQueryKey(ours) if ours.needs.shared_query_key else ours}
    for one in IMPLEMENTATIONS.get(config.name, ()):
        if one.is_installed:
            methods[one.name] = one.build(config, settings.heads, settings.head_dim, length)
    if length <= FUSED_LIMIT:
        methods[SOFTMAX] = fused_softmax
    return methods


def _by_place(rows: Sequence[AttentionRow]) -> dict[tuple[str, int], AttentionRow]:
    return {(row.method, row.length): row for row in rows}


def _cells(row: AttentionRow, *ratios: tuple[AttentionRow, AttentionRow] | None) -> list[str]:
    """Each figure of a row, and behind it what it is of one row over what it is of another."""
    cells = []
    for name in FIGURES:
        cells.append(f"{row.memory:.1f}" if name == "memory" else str(getattr(row, name)))
        cells += ["" if pair is None else f"{figure(pair[0], name) / figure(pair[1], name):.2f}" for pair in ratios]
    return cells


def _beside_softmax_and_authors(rows: Sequence[AttentionRow]) -> Iterator[tuple[AttentionRow, list[str]]]:
    """Each row with its cells: over softmax and over the authors' formulation at the same length. A row with a mask
    stands beside softmax with the same mask. Past its limit there is no softmax to compare with.
    """
    places = _by_place(rows)
    for row in rows:
        softmax = places.get((MASKED_SOFTMAX if row.method in (MASKED, MASKED_SOFTMAX) else SOFTMAX, row.length))
        ratios = None if softmax is None else (row, softmax), (row, places[BASE, row.length])
        yield row, [str(row.length), row.method, *_cells(row, *ratios)]


def table(rows: Sequence[AttentionRow]) -> str:
    """Times, memory, and their ratios to softmax and to the authors' formulation at the same length."""
    columns = [Column("tokens", 7), Column("method", 28, is_text=True)]
    for heading, width in (("forward ms", 22), ("fwd+bwd ms", 25), ("MiB", 8)):
        columns += [Column(heading, width, gap=1), Column("/soft", 6, gap=1), Column("/auth", 6, gap=1)]
    lines = aligned(columns, (cells for _, cells in _beside_softmax_and_authors(rows)))
    lines += [_LEFT_OUT, ""]
    long = sorted({row.length for row in rows if row.length >= 4096})
    if len(long) > 1:
        lines.append(f"time per token at {long[-1]} tokens over that at {long[0]} (1 is proportional):")
        for method, (forward, both, _) in _growth(rows, (OURS, MASKED, CONTROL), long[0], long[-1]):
            lines.append(f"  {method:24} forward {forward:.2f}, forward and backward {both:.2f}")
    return "\n".join(lines)


def to_paste(settings: Mapping[str, Any], rows: Sequence[AttentionRow], facts: Mapping[str, Any], command: str) -> str:
    """The same to be pasted: what was measured and on what, a row for each method, and the command.

    Args:
        settings: as in `attention.json`.
        facts: of the machine.
    """
    lines = [
        f"float32, batch {settings['batch']}, {settings['num_heads']} heads of {settings['head_dim']}, "
        f"{settings['num_landmarks']} landmarks, convolution {PAPERS_TAPS}; {on_one_line(facts)}.",
        "Medians (quartiles); all methods of a length in turn in one process. A padding mask hides the last tenth of "
        "the tokens; what has one is compared with softmax that has it too.",
    ]
    header = ["tokens", "method", "forward, ms", "/ softmax (SDPA)", "/ authors'", "forward + backward, ms"]
    header += ["/ softmax", "/ authors'", "peak memory, MiB", "/ softmax", "/ authors'"]
    cells = [cells for row, cells in _beside_softmax_and_authors(rows) if row.method != CONTROL]
    return "\n".join([*lines, "", markdown(header, cells), "", _LEFT_OUT, "", f"`{command}`"])


def method_table(name: str, rows: Sequence[AttentionRow]) -> str:
    """Of any attention: times and memory, and what ours are of each other one's; how they grow with the length."""
    ours = {row.length: row for row in rows if row.method == name}
    columns = [Column("tokens", 7), Column("method", 38, is_text=True)]
    for heading, width in (("forward ms", 22), ("fwd+bwd ms", 24), ("MiB", 8)):
        columns += [Column(heading, width, gap=1), Column("ours/", 6, gap=1)]
    lines = []
    for row in rows:
        mine = ours[row.length]
        is_compared = row is not mine and row.method != CONTROL
        lines.append([str(row.length), row.method, *_cells(row, (mine, row) if is_compared else None)])
    notes, last = _notes(name, max(ours)), max(ours)
    if 4096 in ours and last != 4096:
        notes.append(f"per token at {last} tokens over that at 4096 (1 is proportional):")
        for method, (forward, both, memory) in _growth(rows, (name, CONTROL), 4096, last):
            notes.append(f"  {method:24} forward {forward:.2f}, forward and backward {both:.2f}, memory {memory:.2f}")
    return "\n".join([*aligned(columns, lines), "", *notes])


def _notes(name: str, longest: int) -> list[str]:
    implementations = IMPLEMENTATIONS.get(name, ())
    missing = [one.name for one in implementations if not one.is_installed]
    notes = [f"Not installed, so not measured: {'; '.join(missing)}."] if missing else []
    if not implementations:
        notes.append("No public implementation that can be installed is known to compare with.")
    if longest > FUSED_LIMIT:
        notes.append(f"softmax (SDPA) is left out past {FUSED_LIMIT} tokens, where a step takes seconds.")
    return notes


def _growth(
    rows: Sequence[AttentionRow], methods: Sequence[str], first: int, last: int
) -> Iterator[tuple[str, list[float]]]:
    """Of each method, what a token takes of each figure at the last length over what it takes at the first."""
    places = _by_place(rows)
    for method in methods:
        short, long = places[method, first], places[method, last]
        yield method, [figure(long, name) / max(figure(short, name), 1e-9) * first / last for name in FIGURES]


def draw(rows: Sequence[AttentionRow], path: Path, header: str) -> None:
    """Times and memory over the length."""
    picture = new_figure(15, 5)
    for axis, (name, title) in zip(picture.subplots(1, 3), FIGURES.items(), strict=True):
        for method in dict.fromkeys(row.method for row in rows):
            mine = [row for row in rows if row.method == method]
            heights = [figure(row, name) for row in mine]
            style = {"linewidth": 2.2} if method == OURS else {"linewidth": 1, "alpha": 0.8}
            axis.loglog([row.length for row in mine], heights, "o-", markersize=3, label=method, base=2, **style)
        axis.set_yscale("log", base=10)
        lengths = sorted({row.length for row in rows})
        axis.set_xticks(lengths, map(str, lengths))
        axis.set(xlabel="tokens", title=title)
        axis.grid(alpha=0.25)
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    picture.suptitle(header, fontsize=8)
    write_figure(path, picture, dpi=110)
