"""One page of the paper's tables and figures, each beside what this project has measured: HTML and Markdown.

Everything is read from a folder like `results`; what is not there is named, with the command that makes it.
"""

import html
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.writing import write_text
from nystromformer.report import document
from nystromformer.report.lra import LRA_TASKS, PAPER_TABLE_3, best_guessers, read_arena, scores
from nystromformer.report.table2 import PAPER as PAPER_TABLE_2
from nystromformer.tables import markdown

LENGTHS = (512, 1024, 2048, 4096, 8192)
# Table 1 of the paper: memory in MB and time in ms of one instance through the self-attention module, GTX 1080 Ti.
PAPER_TABLE_1: dict[str, tuple[tuple[float, float], ...]] = {
    "Transformer": ((54, 0.8), (186, 2.4), (685, 10.0), (2620, 32.9), (10233, 155.4)),
    "Linformer-256": ((41, 0.7), (81, 1.3), (165, 2.7), (366, 5.3), (635, 11.3)),
    "Longformer-257": ((32.2, 2.4), (65, 4.6), (130, 9.2), (263, 18.5), (455, 36.2)),
    "Nyströmformer-64": ((35, 0.7), (63, 1.3), (118, 2.7), (229, 5.9), (450, 12.3)),
    "Nyströmformer-32": ((26, 0.6), (49, 1.2), (96, 2.6), (193, 5.6), (383, 11.5)),
}
OURS = {
    "Transformer": "softmax, written out",
    "Linformer-256": "linformer",
    "Longformer-257": "longformer (window 256)",
    "Nyströmformer-64": "nystrom",
    "Nyströmformer-32": "nystrom (num_landmarks 32)",
}
"""What efficiency.json calls them. The paper's Transformer forms the N x N matrix, as softmax written out does."""
_TITLE = "The paper's tables and figures"
_INTRODUCTION = (
    "What Xiong et al. (AAAI 2021, arXiv 2102.03902) report, beside what was measured here. The paper's figures "
    "were measured on GPUs with full corpora; below this project's figures stand the machine and the model's size."
)
_APPROXIMATION = (
    "python code/run_benchmark.py approximation --model softmax-tiny-noconv --dataset DIR --out results/approximation"
)


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    path: Path
    shows: str


Block = str | Table | Picture


@dataclass(frozen=True)
class Section:
    """A table or figure of the paper."""

    title: str
    blocks: Sequence[Block]
    """Paragraphs, tables and pictures."""
    missing: Sequence[str] = ()
    """What is not there, and the command that makes it."""


def write_paper(results: Path, out: Path) -> Path:
    """Write the page as `out`, HTML, and beside it as Markdown; returns the latter's path.

    Args:
        results: the folder of all results.

    Raises:
        UserError: no such folder, or a file in it is not what its name says; an ending that is not .html.
    """
    if not results.is_dir():
        raise UserError(f"--results {results}: no such folder")
    if out.suffix != ".html":
        raise UserError(f"--out {out}: expected a file ending in .html; a .md of the same name is written beside it")
    try:
        sections = [make(results) for make in SECTIONS]
        page = document.document(_TITLE, _as_html(sections))
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"--results {results}: expected files as this version's commands write them, found something else "
            f"({type(error).__name__}: {error})"
        ) from None
    write_text(out, page)
    beside = out.with_suffix(".md")
    write_text(beside, _as_markdown(sections, out.parent))
    return beside


def table1(results: Path) -> Section:
    """Time and memory of the attention, as measured and as ratios to the Transformer, beside the paper's."""
    title = "Table 1: memory and time of the self-attention module"
    header = ["module", *map(str, LENGTHS)]
    paper = [[name, *(f"{memory:g} / {time:g}" for memory, time in figures)] for name, figures in PAPER_TABLE_1.items()]
    blocks: list[Block] = [
        "The paper, memory in MB / time in ms, one instance, GTX 1080 Ti:",
        Table(header, paper),
    ]
    data = _read(results / "efficiency" / "efficiency.json")
    if data is None:
        return Section(
            title, blocks, ("this project's: `python code/run_benchmark.py efficiency --out results/efficiency`",)
        )
    measured = {
        (cell["method"], cell["length"]): (cell["forward_memory"], cell["forward"]["median"])
        for cell in data["cells"]
        if cell["part"] == "attention"
    }
    ours = {name: [measured.get((method, length)) for length in LENGTHS] for name, method in OURS.items()}
    shown = [[name, *(_pair(cell) for cell in cells)] for name, cells in ours.items()]
    blocks += [
        f"Here, peak memory in MiB / time in ms, both forward, batch {data['settings']['batch']}, "
        f"{data['settings']['heads']} heads of {data['settings']['head_dim']}, {_on(data)}:",
        Table(header, shown),
        "Both relative to the Transformer in their own table, as memory / time, the paper's first.",
        Table(header, [[name, *_ratios(ours, name)] for name in OURS if name != "Transformer"]),
    ]
    picture = Picture(results / "efficiency" / "efficiency-attention.png", "time and memory of every attention")
    blocks += [picture] if picture.path.is_file() else []
    left_out = [
        f"left out, {one['method']} at {one['length']} tokens: {one['why']}"
        for one in data["left_out"]
        if one["part"] == "attention" and one["method"] in OURS.values() and one["length"] in LENGTHS
    ]
    return Section(title, blocks, left_out)


def _ratios(ours: Mapping[str, Sequence[tuple[float, float] | None]], name: str) -> list[str]:
    cells = []
    for index in range(len(LENGTHS)):
        paper, baseline = PAPER_TABLE_1[name][index], PAPER_TABLE_1["Transformer"][index]
        theirs = f"{_ratio(paper[0] / baseline[0])} / {_ratio(paper[1] / baseline[1])}"
        mine, softmax = ours[name][index], ours["Transformer"][index]
        if mine is None or softmax is None:
            cells.append(f"{theirs}; here –")
        else:
            cells.append(f"{theirs}; here {_ratio(mine[0] / softmax[0])} / {_ratio(mine[1] / softmax[1])}")
    return cells


def _pair(cell: tuple[float, float] | None) -> str:
    if cell is None:
        return "–"
    memory, time = cell
    return f"{memory:,.0f} / {time:,.0f}" if time >= 100 else f"{memory:,.0f} / {time:.3g}"


def _ratio(value: float) -> str:
    """Two digits that say something: the smallest are the point."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def table2(results: Path) -> Section:
    """Fine-tuning."""
    title = "Table 2: natural language understanding"
    columns = ("glue/SST-2", "glue/MRPC", "glue/QNLI", "glue/QQP", "glue/MNLI", "imdb", "imdb (n=1024)")
    rows = [
        [name, *(" / ".join(f"{value:.1f}" for value in figures.get(column, ())) or "–" for column in columns)]
        for name, figures in PAPER_TABLE_2.items()
    ]
    names = [column.removeprefix("glue/").replace("imdb", "IMDB") for column in columns]
    blocks: list[Block] = [
        "The paper, in percent: F1 for MRPC and QQP, accuracy for the others; models of BERT-base's size.",
        Table(["model", *names], rows),
    ]
    data = _read(results / "tiny" / "finetune.json")
    if data is None:
        missing = "this project's: `python experiments/studies/tiny.py run --data DIR`, then `collect`"
        return Section(title, blocks, (missing,))
    blocks.append("Here, encoders of 4 layers of width 128, pretrained for 1,500 steps on two cores:")
    blocks.append(Table(data["table"]["header"], data["table"]["rows"]))
    return Section(
        title, blocks, ("QQP and MNLI, and all of it at the paper's size, which needs GPUs and the full corpora",)
    )


def table3(results: Path) -> Section:
    """The Long Range Arena."""
    title, path = "Table 3: Long Range Arena", results / "lra" / "table3.json"
    rows = [[name, *(f"{value:.2f}" for value in figures)] for name, figures in PAPER_TABLE_3.items()]
    paper, paper_table = "The paper, accuracy in percent:", Table(["model", *LRA_TASKS], rows)
    if not path.is_file():
        missing = "this project's: `python code/run_report.py lra --out results/lra/table3.md`"
        return Section(title, [paper, paper_table], (missing,))
    arena = read_arena(path)
    rows.append(best_guessers(arena))
    return Section(title, [paper, paper_table, Table(*scores(arena))])


def figure5(results: Path) -> Section:
    """Curves of pretraining."""
    section = _pictured(
        "Figure 5: masked language modelling and sentence order while pretraining",
        "tiny/curves.png",
        "loss and accuracies over the steps of pretraining",
        "python experiments/studies/tiny.py run --data DIR pretrain && python experiments/studies/tiny.py collect",
        results,
    )
    blocks: list[Block] = [
        "The paper's models are of BERT-small's size; this project's have 4 layers of width 128.",
        *section.blocks,
    ]
    data = _read(results / "tiny" / "pretraining.json")
    if data is None:
        return Section(section.title, blocks, section.missing)
    rows = [
        [row["kind"], str(row["seed"]), f"{row['mlm_loss']:.3f}"]
        + [f"{100 * row[key]:.1f}" for key in ("mlm_accuracy", "sop_accuracy")]
        for row in data["rows"]
    ]
    header = ["model", "seed", "masked tokens: loss", "right, %", "sentence order right, %"]
    return Section(section.title, [*blocks, Table(header, rows)], section.missing)


def figure6(results: Path) -> Section:
    """Pretraining that begins with a trained softmax model."""
    title = "Figure 6: pretraining from scratch and from a trained softmax model"
    text = (
        "The paper trains Nyströmformer at BERT-base's size, from scratch and from pretrained BERT. Here: a small "
        "softmax encoder with other attentions in softmax's place, before and after some more steps."
    )
    missing = "curves at BERT-base's size, which need GPUs and the full corpora"
    data = _read(results / "approximation" / "approximation.json")
    if data is None:
        return Section(title, [text], (f"`{_APPROXIMATION}`", missing))
    # Importing torch takes a second.
    from nystromformer.benchmark.approximation.losses import Loss
    from nystromformer.benchmark.approximation.report import losses_table

    return Section(title, [text, Table(*losses_table([Loss(**loss) for loss in data["losses"]]))], (missing,))


def _pictured(title: str, name: str, shows: str, command: str, results: Path) -> Section:
    path = results / name
    if not path.is_file():
        return Section(title, (), (f"`{command}`",))
    return Section(title, (Picture(path, shows),))


SECTIONS: Sequence[Callable[[Path], Section]] = (
    table1,
    table2,
    table3,
    partial(
        _pictured,
        "Figure 2: a softmax matrix and the three factors of its approximation",
        "approximation/factors.png",
        "a true softmax matrix beside the three matrices whose product approximates it",
        _APPROXIMATION,
    ),
    partial(
        _pictured,
        "Figure 3: approximated and true self-attention",
        "approximation/maps.png",
        "attention maps of softmax above those of the approximation",
        _APPROXIMATION,
    ),
    figure5,
    figure6,
)


def _read(path: Path) -> Any:
    """Results in JSON; None where there are none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _on(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in data["machine"].items())


def _as_html(sections: Sequence[Section]) -> list[str]:
    body = [f"<h1>{html.escape(_TITLE)}</h1>", f"<p>{html.escape(_INTRODUCTION)}</p>"]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        for block in section.blocks:
            if isinstance(block, Table):
                body.append(document.table(block.header, block.rows))
            elif isinstance(block, Picture):
                body.append(document.picture(block.path, block.shows))
            else:
                body.append(f"<p>{_with_code(block)}</p>")
        if section.missing:
            items = "".join(f"<li>{_with_code(text)}</li>" for text in section.missing)
            body.append(f"<p>Missing:</p><ul>{items}</ul>")
    return body


def _with_code(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _as_markdown(sections: Sequence[Section], folder: Path) -> str:
    blocks = [f"# {_TITLE}", _INTRODUCTION]
    for section in sections:
        blocks.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Table):
                blocks.append(markdown(block.header, block.rows))
            elif isinstance(block, Picture):
                blocks.append(f"![{block.shows}]({Path(os.path.relpath(block.path, folder)).as_posix()})")
            else:
                blocks.append(block)
        if section.missing:
            blocks += ["Missing:", "\n".join(f"- {text}" for text in section.missing)]
    return "\n\n".join(blocks) + "\n"
