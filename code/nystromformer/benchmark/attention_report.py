"""Tables and a picture of what attention.py measured."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.benchmark.attention import (
    BASE,
    CONTROL,
    FUSED_LIMIT,
    MASKED,
    MASKED_SOFTMAX,
    OURS,
    PAPERS_TAPS,
    SOFTMAX,
    WRITTEN_OUT_LIMIT,
    AttentionRow,
    PeersBenchmark,
    run_beside_peers,
)
from nystromformer.benchmark.efficiency.methods import parse_method
from nystromformer.benchmark.implementations import IMPLEMENTATIONS
from nystromformer.benchmark.results import new_figure, on_one_line, with_place, write_figures
from nystromformer.errors import UserError
from nystromformer.files import write_figure, write_text
from nystromformer.machine import machine_facts
from nystromformer.tables import Column, aligned, markdown

_MASKED = (MASKED, MASKED_SOFTMAX)
_LEFT_OUT = (
    f"Left out, as they take seconds a step: softmax (SDPA) past {FUSED_LIMIT} tokens, written out past "
    f"{WRITTEN_OUT_LIMIT}."
)


def chosen_attention(attention: Sequence[str], **sizes: Any) -> PeersBenchmark:
    """What `--peers` compares.

    Args:
        attention: one, as `--attention` takes them; none: `nystrom`.

    Raises:
        UserError: several attentions, an unknown one, or as `PeersBenchmark`.
    """
    if len(attention) > 1:
        raise UserError(f"--peers: expected one --attention, found {len(attention)}")
    config = parse_method(attention[0] if attention else OURS).config
    assert config is not None
    return PeersBenchmark(config, **sizes)


def measure_beside_peers(settings: PeersBenchmark, folder: Path, command: str) -> str:
    """Measure, write `attention.json`, `.txt`, `.md` and `.png`, of another attention than the paper's Nyström
    `attention-NAME.json` and `.txt`, and return what to print.

    Args:
        command: what repeats the measurement.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    rows, facts = run_beside_peers(settings), machine_facts()
    if settings.papers_landmarks is None:
        text = method_table(settings, rows)
        said = settings.described() | {"attention": settings.config.model_dump(), "command": command}
        write_figures(folder, f"attention-{settings.config.name}", facts, said, rows, text)
    else:
        text = table(rows)
        write_figures(folder, "attention", facts, settings.described(), rows, text)
        write_text(folder / "attention.md", f"{to_paste(settings, rows, facts, command)}\n")
        draw(rows, folder / "attention.png", on_one_line(facts))
    return with_place(text, folder)


def _figures(row: AttentionRow) -> tuple[tuple[float, str], ...]:
    """Forward, forward and backward, and memory: each as a number and as text."""
    return (
        (row.forward.median, str(row.forward)),
        (row.both.median, str(row.both)),
        (row.memory, f"{row.memory:.1f}"),
    )


def _cells(row: AttentionRow, by_place: Mapping[tuple[str, int], AttentionRow]) -> list[str]:
    """Each figure, and what it is of softmax's and of the authors' formulation's at the same length; a row with a mask
    stands beside softmax with the same mask. Past its limit there is no softmax to compare with.
    """
    softmax = by_place.get((MASKED_SOFTMAX if row.method in _MASKED else SOFTMAX, row.length))
    others = [None if each is None else _figures(each) for each in (softmax, by_place[BASE, row.length])]
    cells = []
    for place, (value, text) in enumerate(_figures(row)):
        cells += [text, *("" if other is None else f"{value / other[place][0]:.2f}" for other in others)]
    return cells


def _by_place(rows: Sequence[AttentionRow]) -> dict[tuple[str, int], AttentionRow]:
    return {(row.method, row.length): row for row in rows}


def table(rows: Sequence[AttentionRow]) -> str:
    """Times, memory, and their ratios to softmax and to the authors' formulation at the same length."""
    columns = [Column("tokens", 7), Column("method", 28, is_text=True)]
    for heading, width in (("forward ms", 22), ("fwd+bwd ms", 25), ("MiB", 8)):
        columns += [Column(heading, width, gap=1), Column("/soft", 6, gap=1), Column("/auth", 6, gap=1)]
    places = _by_place(rows)
    lines = aligned(columns, ([str(row.length), row.method, *_cells(row, places)] for row in rows))
    lines += [_LEFT_OUT, ""]
    long = sorted({row.length for row in rows if row.length >= 4096})
    if len(long) > 1:
        lines.append(f"time per token at {long[-1]} tokens over that at {long[0]} (1 is proportional):")
        for method, (forward, both, _) in _growth(rows, (OURS, MASKED, CONTROL), long[0], long[-1]):
            lines.append(f"  {method:24} forward {forward:.2f}, forward and backward {both:.2f}")
    return "\n".join(lines)


def to_paste(settings: PeersBenchmark, rows: Sequence[AttentionRow], facts: Mapping[str, Any], command: str) -> str:
    """The same to be pasted: what was measured and on what, a row for each method, and the command.

    Args:
        facts: of the machine.
    """
    lines = [
        f"float32, batch {settings.batch}, {settings.num_heads} heads of {settings.head_dim}, "
        f"{settings.papers_landmarks} landmarks, convolution {PAPERS_TAPS}; {on_one_line(facts)}.",
        "Medians (quartiles); all methods of a length in turn in one process. A padding mask hides the last tenth of "
        "the tokens; what has one is compared with softmax that has it too.",
    ]
    header = ["tokens", "method", "forward, ms", "/ softmax (SDPA)", "/ authors'", "forward + backward, ms"]
    header += ["/ softmax", "/ authors'", "peak memory, MiB", "/ softmax", "/ authors'"]
    places = _by_place(rows)
    cells = [[str(row.length), row.method, *_cells(row, places)] for row in rows if row.method != CONTROL]
    return "\n".join([*lines, "", markdown(header, cells), "", _LEFT_OUT, "", f"`{command}`"])


def method_table(settings: PeersBenchmark, rows: Sequence[AttentionRow]) -> str:
    """Of any attention: times and memory, and what ours are of each other one's; how they grow with the length."""
    name = settings.config.name
    ours = {row.length: row for row in rows if row.method == name}
    columns = [Column("tokens", 7), Column("method", 38, is_text=True)]
    for heading, width in (("forward ms", 22), ("fwd+bwd ms", 24), ("MiB", 8)):
        columns += [Column(heading, width, gap=1), Column("ours/", 6, gap=1)]
    lines = []
    for row in rows:
        mine, cells = ours[row.length], []
        for (of_ours, _), (value, text) in zip(_figures(mine), _figures(row), strict=True):
            cells += [text, "" if row is mine or row.method == CONTROL else f"{of_ours / value:.2f}"]
        lines.append([str(row.length), row.method, *cells])
    notes, last = _notes(settings), max(settings.lengths)
    if 4096 in settings.lengths and last != 4096:
        notes.append(f"per token at {last} tokens over that at 4096 (1 is proportional):")
        for method, (forward, both, memory) in _growth(rows, (name, CONTROL), 4096, last):
            notes.append(f"  {method:24} forward {forward:.2f}, forward and backward {both:.2f}, memory {memory:.2f}")
    return "\n".join([*aligned(columns, lines), "", *notes])


def _notes(settings: PeersBenchmark) -> list[str]:
    implementations = IMPLEMENTATIONS.get(settings.config.name, ())
    missing = [one.name for one in implementations if not one.is_installed]
    notes = [f"Not installed, so not measured: {'; '.join(missing)}."] if missing else []
    if not implementations:
        notes.append("No public implementation that can be installed is known to compare with.")
    if max(settings.lengths) > FUSED_LIMIT:
        notes.append(f"softmax (SDPA) is left out past {FUSED_LIMIT} tokens, where a step takes seconds.")
    return notes


def _growth(
    rows: Sequence[AttentionRow], methods: Sequence[str], first: int, last: int
) -> Iterator[tuple[str, list[float]]]:
    """Of each method, what a token takes of each figure at the last length over what it takes at the first."""
    places = _by_place(rows)
    for method in methods:
        pairs = zip(_figures(places[method, first]), _figures(places[method, last]), strict=True)
        yield method, [b / max(a, 1e-9) * first / last for (a, _), (b, _) in pairs]


def draw(rows: Sequence[AttentionRow], path: Path, header: str) -> None:
    """Times and memory over the length."""
    figure = new_figure(15, 5)
    titles = ("forward, ms", "forward and backward, ms", "peak memory, MiB")
    for place, (axis, title) in enumerate(zip(figure.subplots(1, 3), titles, strict=True)):
        for method in dict.fromkeys(row.method for row in rows):
            mine = [row for row in rows if row.method == method]
            heights = [_figures(row)[place][0] for row in mine]
            style = {"linewidth": 2.2} if method == OURS else {"linewidth": 1, "alpha": 0.8}
            axis.loglog([row.length for row in mine], heights, "o-", markersize=3, label=method, base=2, **style)
        axis.set_yscale("log", base=10)
        lengths = sorted({row.length for row in rows})
        axis.set_xticks(lengths, map(str, lengths))
        axis.set(xlabel="tokens", title=title)
        axis.grid(alpha=0.25)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(header, fontsize=8)
    write_figure(path, figure, dpi=110)
