"""The log of a run: a line that is no record stays, is passed over with one warning, and costs nothing behind it."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted, settings
from small import CPU

from nystromformer.errors import UserError
from nystromformer.training import Trainer
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.log import RunLog, figure, read_log
from nystromformer.training.state import RunState

DAMAGED = {
    "blank": b"",
    "binary": bytes(range(256)).replace(b"\n", b""),
    "not UTF-8": b'{"type": "train", "step": 1, "name": "\xff"}',
    "cut short": b'{"type": "tr',
    "a list": b"[1, 2]",
    "nested": b"[" * 200_000,
    "no step": b'{"type": "train"}',
    "type of another kind": b'{"type": 3, "step": 1}',
    "step negative": b'{"type": "train", "step": -1}',
    "step true": b'{"type": "train", "step": true}',
}


def train_line(step: int) -> bytes:
    return json.dumps({"type": "train", "step": step, "loss": step / 3}).encode()


def resumed(folder: Path, step: int) -> None:
    """The log as a run that goes on at a step makes it."""
    log = RunLog(folder, step, 100)
    log.event("start", step)
    log.close()


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("place", ["first", "middle", "last", "last without an end"])
def test_a_line_that_is_no_record_stays_and_costs_none(
    line: bytes, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [train_line(step) for step in (2, 4, 6, 8)]
    number = {"first": 0, "middle": 2}.get(place, 4)
    lines = [*records[:number], line, *records[number:]]
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"" if place == "last without an end" else b"\n"))
    is_there = bool(line) or place != "last without an end"
    assert [record["step"] for record in read_log(path)] == [2, 4, 6, 8]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == is_there
    assert all(f"{path}: line {number + 1} is not a record of a run" in warning for warning in warnings)

    resumed(tmp_path, 6)
    assert [record["step"] for record in read_log(path)] == [2, 4, 6, 6]
    kept = [one for one in lines if one != records[3]][: 4 if is_there else 3]
    assert path.read_bytes().startswith(b"\n".join(kept) + b"\n{"), "all others are as they were"


@given(
    st.lists(st.one_of(st.integers(0, 9), st.sampled_from(sorted(set(DAMAGED) - {"nested"}))), max_size=12),
    st.integers(0, 9),
)
def test_going_on_drops_later_steps_and_nothing_else(lines: list[int | str], step: int) -> None:
    texts = [train_line(one) if isinstance(one, int) else DAMAGED[one] for one in lines]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "log.jsonl"
        path.write_bytes(b"".join(text + b"\n" for text in texts))
        resumed(Path(name), step)
        expected = [text for one, text in zip(lines, texts, strict=True) if isinstance(one, str) or one <= step]
        assert path.read_bytes().split(b"\n")[:-2] == expected
        assert [r["step"] for r in read_log(path)] == [one for one in lines if isinstance(one, int) and one <= step] + [
            step
        ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5),
        ("null", None),
        ("true", None),
        ('"1"', None),
        ("NaN", None),
        ("9" * 400, None),
    ],
)
def test_figures_are_finite_numbers(text: str, value: float | None) -> None:
    assert figure(json.loads(f'{{"loss": {text}}}'), "loss") == value
    assert figure({}, "loss") is None


@pytest.mark.parametrize("name", ["tensorboard", "log.jsonl"])
@pytest.mark.parametrize("what", ["other kind", "dangling link"])
def test_a_record_that_cannot_be_written_is_known_before_the_first_step(name: str, what: str, tmp_path: Path) -> None:
    place = tmp_path / name
    if what == "dangling link":
        place.symlink_to(tmp_path / "nowhere" / "at all")
    elif name == "tensorboard":
        place.write_text("mine")
    else:
        place.mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=rf"{name}: "):
        Trainer(Scripted([0.5]), settings(1), tmp_path, CPU, {}).run()
    assert {path.name for path in tmp_path.iterdir()} == before
    assert place.is_symlink() or place.is_dir() or place.read_text() == "mine"


def test_checkpoints_have_the_validations(tmp_path: Path) -> None:
    Trainer(Scripted([0.5, 0.25, 0.75]), settings(3), tmp_path, CPU, {}).run()
    expected = [{"epoch": n, "step": n + 1, "metrics": {"score": x}} for n, x in enumerate([0.5, 0.25, 0.75])]
    for epoch in range(3):
        for kind in ("cp", "model"):
            content = read_checkpoint(tmp_path / f"cp-{epoch:04d}.{kind}")
            assert content["history"] == expected[: epoch + 1]
    assert read_checkpoint(tmp_path / "cp-0002.cp")["progress"]["history"] == expected


def test_an_epoch_that_is_validated_again_is_there_once() -> None:
    state = RunState(step=2)
    state.note_validation(0, {"score": 1.0})
    for step, score in ((3, 0.5), (4, 0.25)):
        state.step = step
        state.note_validation(1, {"score": score})
    assert [(one["epoch"], one["step"], one["metrics"]["score"]) for one in state.history] == [
        (0, 2, 1.0),
        (1, 4, 0.25),
    ]
