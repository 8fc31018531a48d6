"""What a small encoder learns of synthetic tasks with each attention, in processes side by side; each cell is written
as soon as it is measured.

Shapes: R rows, N tokens, E width.
"""

import itertools
import json
import logging
import multiprocessing
import sys
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.benchmark.ability_tasks import MOST_PAIRS, NO_ANSWER, TASKS, Rows, Task
from nystromformer.benchmark.findings import Findings, Record
from nystromformer.benchmark.methods import expand, label_attention, parse_at
from nystromformer.benchmark.questions import ATTENTIONS as ATTENTION_HELP
from nystromformer.benchmark.questions import OUT, Out, count, flag
from nystromformer.command_line.checked_command import with_own_attentions_registered
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config import ATTENTIONS, ModelConfig, attention_config
from nystromformer.data.preprocessing.pool import run_works
from nystromformer.errors import UserError
from nystromformer.machine import commit_of
from nystromformer.model.encoder import Encoder
from nystromformer.tables import markdown, show

logger = logging.getLogger(__name__)

LAYERS, WIDTH, HEADS = 2, 64, 2
ROWS, RATE, WARM_UP = 32, 3e-3, 100
"""Of a step: its rows, and its learning rate, which rises over so many steps and stays."""
SOLVED = 0.99
_EVERY = 100
"""Steps between two looks at how far it is."""
_LEAST_ANSWERS = 2048
"""Of the rows that accuracy is of."""
USUAL = {
    "bigbird": "block_size=N/16,num_random_blocks=1,num_global_blocks=1",
    "conv_linformer": "stride=4",
    "linformer": "projected_length=N/4",
    "local": "block_size=N/16",
    "longformer": "window=N/4",
    "mra": "block_size=N/16,num_blocks=4",
    "near_far": "block_size=N/16,num_landmarks=N/16,num_selected=N/32",
    "nystrom": "num_landmarks=N/4",
    "performer": "num_features=N/1",
    "reformer": "chunk_length=N/8",
    "sinkhorn": "block_size=N/8",
    "sparse": "stride=N/8",
}
"""Parameters that an attention has unless it is given others, by which a query meets about a quarter of the keys, or as
many means of them.
"""
USUAL_ONES = (*ATTENTIONS, "near_far,num_blocks=1", "nystrom,num_landmarks=1")
"""Measured where no attention is asked for; also with one of near_far's blocks by search and with a single landmark."""


@dataclass(frozen=True)
class Abilities:
    """Every combination of tasks, attentions and seeds."""

    tasks: list[str] = flag([], "A task; may be given several times. Default: all.", name="task")
    attentions: list[str] = flag(
        [], f"{ATTENTION_HELP}all, with about a quarter of the row as keys, landmarks or features.", name="attention"
    )
    length: int = count(128, "Tokens of a row.", least=16)
    pairs: int | None = flag(
        None,
        "Number of key-value pairs in lookup and recall. Default: a half and a quarter of the tokens.",
        least=1,
    )
    taps: int = count(0, "Taps of the convolution; 0: none.", least=0, name="conv_kernel_size")
    seeds: int = count(1, "Runs of each, with seeds from 0 on.")
    seconds: float = flag(120.0, "Seconds on one core after which a run ends that has not learned its task.", 1)
    workers: int = count(2, "Runs at once, a process and a core each.")


@with_flag_groups
def abilities(flags: Abilities, out: Out = OUT) -> None:
    """Small tasks that softmax learns within minutes: which attention can look things up, shift, copy, find and count.

    It resumes when it is started again; another command with the same --out adds to its tables.
    """
    cells, path = list_cells(flags), out / "abilities.json"
    before = Findings.read(path) if path.exists() else None
    found = Findings.begin("abilities", flags, out)
    done = {_key(each): each for each in before.records} if before is not None else {}
    known = [key for key, each in done.items() if each["solved"] or each["limit"] >= flags.seconds]
    missing = [cell for cell in cells if _key(cell) not in known]
    logger.info("%d of %d cells are already measured", len(cells) - len(missing), len(cells))
    if before is not None:
        found.commands = list(dict.fromkeys([*before.commands, *found.commands]))
        found = found if missing else before
    found.records = [*done.values()]
    commit = commit_of(Path(__file__).parent)
    for record in run_works([partial(learn, cell, commit) for cell in missing], flags.workers):
        done[_key(record)] = record  # one that was given less time before makes room
        found.records = [*done.values()]
        found.publish(path)
        result = f"{100 * record['accuracy']:.1f} % after {record['steps']} steps, {record['seconds']:.0f} s"
        logger.info("%s, %s, seed %s: %s", _column(record), record["attention"], record["seed"], result)
    show(found.publish(path))


def list_cells(flags: Abilities) -> list[Record]:
    """What is learned, with what and in how many seconds of one core, its `limit`: each once, all attentions of a task
    before the next task, all of a seed before the next seed.
    """
    found: dict[str, Record] = {}
    for seed, task in itertools.product(range(flags.seeds), flags.tasks or TASKS):
        if task not in TASKS:
            raise UserError(f"--task: expected one or more of {', '.join(TASKS)}, found {task!r}")
        pairs = flags.pairs if task in MOST_PAIRS else None
        if pairs is not None and pairs > (most := MOST_PAIRS[task](flags.length)):
            raise UserError(f"--pairs: expected at most {most} for {task} at {flags.length} tokens, found {pairs}")
        for text in expand(flags.attentions or USUAL_ONES):
            given, told, _ = parse_at(text, flags.length)
            usual = parse_at(f"{given.name},{USUAL[given.name]}", flags.length)[1] if given.name in USUAL else {}
            attention = {"name": given.name, **usual, **dict(sorted(told.items()))}
            attention |= {"conv_kernel_size": flags.taps} if flags.taps else {}
            cell = {"task": task, "length": flags.length, "pairs": pairs, "attention": attention, "seed": seed}
            try:
                model_config(cell)
            except ValueError as error:
                raise UserError(f"--attention {text} at {flags.length} tokens: {error}") from None
            found.setdefault(_key(cell), cell | {"limit": flags.seconds})
    return list(found.values())


def _key(cell: Record) -> str:
    """All but the time that it may take, and what it reached."""
    return json.dumps([cell[name] for name in ("task", "length", "pairs", "attention", "seed")], sort_keys=True)


def _column(cell: Record) -> str:
    """The task, such as `lookup, 8 pairs`."""
    return str(cell["task"]) if cell["pairs"] is None else f"{cell['task']}, {cell['pairs']} pairs"


def model_config(cell: Record) -> ModelConfig:
    """Of a cell's encoder."""
    task, attention = TASKS[cell["task"]](cell["length"], cell["pairs"]), attention_config(**cell["attention"])
    return ModelConfig(
        vocab_size=task.vocab_size,
        num_sen_type=task.marks,
        max_seq_len=cell["length"],
        embedding_dim=WIDTH,
        transformer_dim=WIDTH,
        transformer_hidden_dim=2 * WIDTH,
        num_layers=LAYERS,
        dropout_prob=0.0,
        num_head=HEADS,
        head_dim=WIDTH // HEADS,
        attn_type=attention,
        norm="pre",
        positions="rotary" if task.rotary and attention.compares_queries_and_keys else "learned",
    )


def learn(cell: Record, commit: str) -> Record:
    """Train until it can or its time is over, and measure; the same cell takes the same steps, and on a slower machine
    fewer of them.

    Returns:
        The cell, and `accuracy` over rows that it was never shown or stopped by; `guessing`, that of the task's rule;
        whether it is `solved`: reached SOLVED on other rows in time; `steps`; `seconds` of one core; `positions`;
        `commit` of the code.
    """
    if multiprocessing.parent_process() is not None:
        _register_own_attentions()
    torch.set_num_threads(1)
    begin, seed = time.process_time(), cell["seed"]
    torch.manual_seed(seed)
    task, config = TASKS[cell["task"]](cell["length"], cell["pairs"]), model_config(cell)
    model = _Answering(config, task.answers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    drawn, looked_at, tested = (torch.Generator().manual_seed(3 * seed + number) for number in range(3))
    check = _rows(task, looked_at)
    step, solved = 0, False
    while not solved and time.process_time() - begin < cell["limit"]:
        rate = RATE * min(1, (step + 1) / WARM_UP)
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = task.draw(drawn, ROWS, True)
        logits_RNA = model(rows.tokens_RN, rows.marks_RN)
        loss = F.cross_entropy(logits_RNA.flatten(0, 1), rows.answers_RN.flatten(), ignore_index=NO_ANSWER)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        solved = step % _EVERY == 0 and _accuracy(model, check) >= SOLVED
    seconds = time.process_time() - begin
    test = _rows(task, tested)
    has_answer = test.answers_RN != NO_ANSWER
    guessing = (test.guesses_RN == test.answers_RN)[has_answer].float().mean().item()
    reached = {"accuracy": _accuracy(model, test), "guessing": guessing, "solved": solved, "steps": step}
    return cell | reached | {"seconds": seconds, "positions": config.positions, "commit": commit}


@cache
def _register_own_attentions() -> None:
    """What the command was given: a process that is spawned has its words, too."""
    with_own_attentions_registered(sys.argv[1:], is_flag=True)


class _Answering(nn.Module):
    """The encoder and a linear map to the answers."""

    def __init__(self, config: ModelConfig, answers: int) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.answer = nn.Linear(WIDTH, answers)

    def forward(self, tokens_RN: Tensor, marks_RN: Tensor) -> Tensor:
        logits_RNA: Tensor = self.answer(self.encoder(tokens_RN, None, marks_RN))
        return logits_RNA


def _rows(task: Task, generator: torch.Generator) -> Rows:
    """Rows to measure on, with enough answers for a standard error below 1.1 points, and 0.22 at 99 %."""
    few = task.draw(generator, ROWS, False)
    answers = max(1, int((few.answers_RN != NO_ANSWER).sum()) // ROWS)
    return task.draw(generator, max(4 * ROWS, -(-_LEAST_ANSWERS // answers)), False)


@torch.no_grad()
def _accuracy(model: _Answering, rows: Rows) -> float:
    model.eval()
    right = answers_in_all = 0
    for tokens, marks, answers, _ in zip(*(torch.split(each, 256) for each in rows), strict=True):
        counts = answers != NO_ANSWER
        right += int((model(tokens, marks).argmax(2) == answers)[counts].sum())
        answers_in_all += int(counts.sum())
    model.train()
    return right / answers_in_all


def blocks(found: Findings) -> list[str]:
    """How to read it, and a table for each length and convolution."""
    frame = pd.DataFrame(found.records)
    limits = " or ".join(f"{seconds:g}" for seconds in sorted(frame.limit.unique()))
    parts = [
        "Which attention can do what",
        f"An encoder of {LAYERS} layers of width {WIDTH} with {HEADS} heads learns a task from fresh rows, {ROWS} a "
        f"step, at a learning rate of {RATE:g}. It stops when it gives {SOLVED:.0%} of the answers of other rows "
        f"(bold, with the seconds that this took), or after {limits} seconds of one core. The table shows the "
        "accuracy in % on further rows, with at least 2,048 answers: its standard error is at most 1.1 points, and "
        "0.22 at 99 %. With several seeds it shows the mean, and the least and the greatest in brackets. Positions are "
        "learned; those of recall are rotary, except for synthesizer, which compares no queries with keys. "
        "*guessing* is the accuracy of the task's simplest rule, without any learning: "
        + "; ".join(f"{name}, {task(64, None).rule}" for name, task in TASKS.items())
        + f". Commits {', '.join(sorted(frame.commit.unique()))}; {frame.seconds.sum() / 3600:.1f} core-hours.",
    ]
    frame["taps"] = [attention.get("conv_kernel_size", 0) for attention in frame.attention]
    frame["label"] = [_label(**attention) for attention in frame.attention]
    frame["column"] = [_column(record) for record in found.records]
    frame["place"] = [(list(TASKS).index(record["task"]), record["pairs"] or 0) for record in found.records]
    frame[["accuracy", "guessing"]] *= 100
    frame = frame.sort_values(["length", "taps", "place"], kind="stable")
    for (length, taps), rows in frame.groupby(["length", "taps"]):
        names = rows.column.unique()
        shown = {place: _text(own) for place, own in rows.groupby(["label", "column"])}
        labels = sorted(rows.label.unique(), key=lambda label: (label != "softmax", label))
        lines = [[f"`{label}`", *(shown.get((label, name), "") for name in names)] for label in labels]
        guessing = rows.groupby("column").guessing.mean()
        lines.append(["*guessing*", *(f"{guessing[name]:.1f}" for name in names)])
        convolution = f"convolution of {taps} taps" if taps else "no convolution"
        parts += [f"## {length} tokens, {convolution}", markdown(["attention", *names], lines)]
    return parts


def _label(name: str, conv_kernel_size: int = 0, **parameters: object) -> str:
    return label_attention(name, parameters)


def _text(rows: pd.DataFrame) -> str:
    text = f"{rows.accuracy.mean():.1f}"
    if len(rows) > 1:
        text += f" ({rows.accuracy.min():.1f} to {rows.accuracy.max():.1f})"
    return f"**{text}** ({rows.seconds.mean():.0f} s)" if rows.solved.all() else text
