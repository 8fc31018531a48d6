"""Small tasks: that their answers are right, that nothing gives them away, what a run keeps, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nystromformer.benchmark.ability_tasks import KINDS, NO_ANSWER, TASKS, VALUES, Rows
from nystromformer.benchmark.findings import Findings, Record
from nystromformer.benchmark.questions.abilities import Abilities, abilities, blocks, learn, list_cells
from nystromformer.config import ATTENTIONS

LENGTH = 32


def drawn(task: str, seed: int = 0, training: bool = False, pairs: int | None = None) -> Rows:
    return TASKS[task](LENGTH, pairs).draw(torch.Generator().manual_seed(seed), 40, training)


def looked_up(tokens: list[int], marks: list[int]) -> list[int]:
    values = {token: mark - 1 for token, mark in zip(tokens, marks, strict=True) if mark}
    return [NO_ANSWER if mark else values[token] for token, mark in zip(tokens, marks, strict=True)]


def recalled(tokens: list[int], marks: list[int]) -> list[int]:
    keys = LENGTH // 2
    is_value = [token >= keys for token in tokens]
    values = {tokens[n]: tokens[n + 1] - keys for n in range(LENGTH - 1) if is_value[n + 1]}
    asks = [not is_value[n] and not (n + 1 < LENGTH and is_value[n + 1]) for n in range(LENGTH)]
    return [values[token] if asking else NO_ANSWER for token, asking in zip(tokens, asks, strict=True)]


def shifted(distance: int) -> Callable[[list[int], list[int]], list[int]]:
    return lambda tokens, marks: [NO_ANSWER] * distance + tokens[:-distance]


def most_frequent(tokens: list[int], marks: list[int]) -> list[int]:
    counts = sorted(tokens[1:].count(kind) for kind in range(KINDS))
    kinds = [kind for kind in range(KINDS) if tokens[1:].count(kind) == counts[-1]]
    return [kinds[0] if counts[-1] > counts[-2] else NO_ANSWER] + [NO_ANSWER] * (LENGTH - 1)


ORACLES: dict[str, Callable[[list[int], list[int]], list[int]]] = {
    "lookup": looked_up,
    "recall": recalled,
    "shift_1": shifted(1),
    "shift_8": shifted(8),
    "shift_half": shifted(LENGTH // 2),
    "copy": lambda tokens, marks: [tokens[mark] for mark in marks],
    "needle": lambda tokens, marks: [tokens[marks.index(1)]] + [NO_ANSWER] * (LENGTH - 1),
    "majority": most_frequent,
}


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_a_plain_reading(task: str) -> None:
    rows = drawn(task)
    for tokens, marks, answers in zip(*(x.tolist() for x in rows[:3]), strict=True):
        assert answers == ORACLES[task](tokens, marks)
    assert all(map(torch.equal, rows, drawn(task)))
    assert not all(map(torch.equal, rows, drawn(task, seed=1)))
    shape = TASKS[task](LENGTH, None)
    assert int(rows.tokens_RN.max()) < shape.vocab_size
    assert int(rows.marks_RN.max()) < shape.marks
    assert (rows.answers_RN != NO_ANSWER).any(1).float().mean() > 0.8


@pytest.mark.parametrize("task", TASKS)
def test_a_position_tells_nothing_of_its_answer(task: str) -> None:
    """Of many rows, the best guess from a position's own token is no better than one without it."""
    batches = [drawn(task, seed) for seed in range(150)]
    tokens, answers = (torch.cat([getattr(each, name) for each in batches]) for name in ("tokens_RN", "answers_RN"))
    asked = answers != NO_ANSWER
    kinds = VALUES if task != "majority" else KINDS
    own = tokens[asked] % 8
    table = torch.zeros(8, kinds).index_put_((own, answers[asked]), torch.tensor(1.0), accumulate=True)
    right = float(table.max(1).values.sum() / table.sum())
    assert right < 1 / kinds + 0.03


def test_values_are_asked_for_their_keys_in_training_alone() -> None:
    seen, trained = drawn("recall"), drawn("recall", training=True)
    values = seen.tokens_RN >= LENGTH // 2
    asked: Tensor = trained.answers_RN[values]
    keys = seen.tokens_RN[:, :-1][values[:, 1:]]
    assert torch.equal(asked, VALUES + keys)
    assert (seen.answers_RN[values] == NO_ANSWER).all()


def cell(
    task: str, length: int, pairs: int | None, attention: dict[str, object], seed: int = 0, limit: float = 120.0
) -> Record:
    return {"task": task, "length": length, "pairs": pairs, "attention": attention, "seed": seed, "limit": limit}


def test_softmax_learns_and_one_landmark_does_not() -> None:
    def reached(seconds: float, **attention: object) -> Record:
        return learn(cell("shift_1", 8, None, attention, limit=seconds), "here")

    softmax, single = reached(120.0, name="softmax"), reached(1.0, name="nystrom", num_landmarks=1)
    assert softmax["solved"]
    assert softmax["accuracy"] > 0.97
    assert not single["solved"]
    assert single["accuracy"] < 0.9
    assert 1 / VALUES < softmax["guessing"] < 0.5


@pytest.mark.slow
def test_finished_cells_stay_and_more_time_begins_anew_what_did_not_get_there(tmp_path: Path) -> None:
    asked = {"tasks": ["needle"], "attentions": ["softmax", "local,block_size=2/4"], "length": 16, "workers": 1}

    def measure(seconds: float) -> Findings:
        abilities(**asked, seconds=seconds, out=tmp_path)
        return Findings.read(tmp_path / "abilities.json")

    first, again = measure(0.05), measure(0.05)
    assert again == first
    assert len(first.records) == 3
    more = measure(0.1)
    assert {each["limit"] for each in more.records} == {0.1}
    assert more.machine["processor"]


def record(landmarks: int, solved: bool, seed: int = 0, taps: int | None = None, **others: object) -> Record:
    attention = {"name": "nystrom", "num_landmarks": landmarks} | ({} if taps is None else {"conv_kernel_size": taps})
    reached = {"accuracy": 0.995 if solved else 0.5, "guessing": 0.1, "solved": solved, "steps": 100, "seconds": 3.0}
    return cell("lookup", 64, 8, attention, seed) | reached | {"commit": "abc"} | others


def test_the_table_has_means_spreads_and_who_got_there() -> None:
    records = [record(8, True), record(8, False, 1), record(32, True), record(32, True, 1), record(32, True, taps=9)]
    longer = record(8, True, task="copy", pairs=None, limit=30.0)
    page = "\n".join(blocks(Findings("abilities", {}, [], records=[*records, longer])))
    shown = ("74.8 (50.0 to 99.5) |", "**99.5 (99.5 to 99.5)** (3 s)", "Commits abc")
    for part in (*shown, "convolution of 9 taps", "after 30 or 120 seconds"):
        assert part in page


def test_default_has_every_attention_and_slashes_give_several_values() -> None:
    cells = list_cells(Abilities(tasks=["needle"]))
    assert {each["attention"]["name"] for each in cells} == set(ATTENTIONS)
    near_far = next(each["attention"] for each in cells if each["attention"].get("num_blocks") == 1)
    assert near_far == {"name": "near_far", "block_size": 8, "num_landmarks": 8, "num_selected": 4, "num_blocks": 1}
    grid = list_cells(Abilities(["lookup"], ["local,block_size=4/8,neighbours=1/2"], 32, 4, 9, 2))
    assert len(grid) == 2 * 2 * 2
