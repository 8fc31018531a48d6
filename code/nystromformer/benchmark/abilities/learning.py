"""One cell of the table: a small encoder that learns one task with one attention, until it can or its time is over.

Shapes: R rows, N tokens, E width.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import ConfigDict
from torch import Tensor, nn

from nystromformer.benchmark.abilities.tasks import NO_ANSWER, TASKS, Rows, Task
from nystromformer.benchmark.efficiency.methods import label_attention
from nystromformer.config import AttentionConfig, ModelConfig, attention_config
from nystromformer.files.checked_json import STRICT
from nystromformer.model.encoder import Encoder

LAYERS, WIDTH, HEADS = 2, 64, 2
ROWS, RATE, WARM_UP = 32, 3e-3, 100
"""Of a step: its rows, and its learning rate, which rises over so many steps and stays."""
SOLVED = 0.99
_EVERY = 100
"""Steps between two looks at how far it is."""
_LEAST_ANSWERS = 2048
"""Of the rows that accuracy is of."""


@dataclass(frozen=True)
class Setting:
    """What is learned, and with what."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    task: str
    """Of TASKS."""
    length: int
    pairs: int | None
    attention: dict[str, Any]
    """Its name and what it is told."""
    seed: int
    seconds: float
    """Of one core."""

    @property
    def config(self) -> AttentionConfig:
        return attention_config(**self.attention)

    @property
    def key(self) -> tuple[object, ...]:
        """All but the time that it may take."""
        return self.task, self.length, self.pairs, json.dumps(self.attention, sort_keys=True), self.seed

    @property
    def taps(self) -> int:
        """Of the convolution; 0: none."""
        return int(self.attention.get("conv_kernel_size", 0))

    @property
    def label(self) -> str:
        """Of the attention, without its convolution."""
        parameters = {key: value for key, value in self.attention.items() if key not in ("name", "conv_kernel_size")}
        return label_attention(self.attention["name"], parameters)

    @property
    def column(self) -> str:
        """The task, such as `lookup, 8 pairs`."""
        return self.task if self.pairs is None else f"{self.task}, {self.pairs} pairs"


@dataclass(frozen=True)
class Cell:
    """What came of it."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    setting: Setting
    accuracy: float
    """Over rows that it was never shown or stopped by."""
    guessing: float
    """Accuracy of the task's rule on these rows."""
    solved: bool
    """Whether it reached SOLVED on other rows before its time was over."""
    steps: int
    seconds: float
    """Of one core."""
    positions: str
    commit: str
    """Of the code."""


def learn(setting: Setting, commit: str) -> Cell:
    """Train and measure; the same setting takes the same steps, and on a slower machine fewer of them."""
    begin = time.process_time()
    torch.manual_seed(setting.seed)
    task = TASKS[setting.task](setting.length, setting.pairs)
    model = _Answering(task, setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    drawn, looked_at, tested = (torch.Generator().manual_seed(3 * setting.seed + number) for number in range(3))
    check = _rows(task, looked_at)
    step, solved = 0, False
    while not solved and time.process_time() - begin < setting.seconds:
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
    return Cell(setting, _accuracy(model, test), guessing, solved, step, seconds, model.positions, commit)


class _Answering(nn.Module):
    """The encoder and a linear map to the answers."""

    def __init__(self, task: Task, setting: Setting) -> None:
        super().__init__()
        attention = setting.config
        is_rotary = task.rotary and attention.compares_queries_and_keys
        self.positions = "rotary" if is_rotary else "learned"
        config = ModelConfig(
            vocab_size=task.vocab_size,
            num_sen_type=task.marks,
            max_seq_len=setting.length,
            embedding_dim=WIDTH,
            transformer_dim=WIDTH,
            transformer_hidden_dim=2 * WIDTH,
            num_layers=LAYERS,
            dropout_prob=0.0,
            num_head=HEADS,
            head_dim=WIDTH // HEADS,
            attn_type=attention,
            norm="pre",
            positions="rotary" if is_rotary else "learned",
        )
        self.encoder = Encoder(config)
        self.answer = nn.Linear(WIDTH, task.answers)

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
