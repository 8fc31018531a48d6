"""A folder's run knows its own checkpoints, and no other wins over them or is deleted with them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import put_in_the_place_of, raising, write_named
from scripted import Scripted, settings, train_or_resume
from small import CPU

from nystromformer.errors import UserError
from nystromformer.tasks.experiment.run import Saved, newest
from nystromformer.training import Group, Trainer, checkpoint
from nystromformer.training.archive import UnreadableCheckpoint, read_checkpoint
from nystromformer.training.checkpoint import choose_weights, mend_weights, read_latest
from nystromformer.training.run_record import RECORD, RunLock, id_of, read_record

STEPS = 4


def start(folder: Path, steps: int = STEPS, facts: dict[str, Any] | None = None, **changes: Any) -> float:
    """Begin a run of one step an epoch, or go on with it as the commands do; returns its weight at the end."""
    folder.mkdir(exist_ok=True)
    wanted = settings(steps, **changes)
    trainer = Trainer(Scripted([1.0] * steps), wanted, folder, CPU, {"config": {"steps": 4}} | (facts or {}))
    train_or_resume(trainer)
    return float(read_checkpoint(folder / f"cp-{steps - 1:04d}.model")["model"]["weight"])


@pytest.fixture
def expected(tmp_path: Path) -> float:
    """Two steps, and then all: the learning rate depends on how many there are to be."""
    start(tmp_path / "whole", steps=2)
    return start(tmp_path / "whole")


def test_a_foreign_checkpoint_does_not_win(tmp_path: Path, expected: float, caplog: pytest.LogCaptureFixture) -> None:
    start(tmp_path / "other", facts={"config": "another"})
    start(tmp_path / "run", steps=2)
    shutil.copy(tmp_path / "other" / "cp-0003.cp", tmp_path / "run" / "cp-9999.cp")
    foreign = (tmp_path / "run" / "cp-9999.cp").read_bytes()
    assert choose_weights(tmp_path / "run", "last") == [tmp_path / "run" / "cp-0001.model"]
    assert [path.name for path in choose_weights(tmp_path / "run", "all", several=True)] == [
        "cp-0000.model",
        "cp-0001.model",
    ]
    assert start(tmp_path / "run") == expected
    assert "cp-9999.cp: belongs to another run than the folder (run.json): skipped" in caplog.text
    assert (tmp_path / "run" / "cp-9999.cp.other-run").read_bytes() == foreign, "kept, out of the way"


def test_a_new_run_keeps_the_log_of_another(tmp_path: Path) -> None:
    start(tmp_path / "run", facts={"config": "another"})
    before = (tmp_path / "run" / "log.jsonl").read_bytes()
    for path in (tmp_path / "run").glob("cp-*"):
        path.unlink()
    start(tmp_path / "run")
    assert (tmp_path / "run" / "log.jsonl.other-run").read_bytes() == before


def test_one_of_the_run_under_another_name_does_not_win(tmp_path: Path, expected: float) -> None:
    start(tmp_path / "run", steps=2)
    (tmp_path / "run" / "cp-0000.cp").rename(tmp_path / "run" / "cp-9999.cp")
    assert start(tmp_path / "run") == expected
    assert (tmp_path / "run" / "cp-9999.cp.renamed").is_file()


def test_where_all_are_foreign_nothing_begins_anew(tmp_path: Path) -> None:
    start(tmp_path / "other", facts={"config": "another"})
    start(tmp_path / "run", steps=2)
    for path in (tmp_path / "run").glob("cp-*"):
        path.unlink()
    shutil.copy(tmp_path / "other" / "cp-0003.cp", tmp_path / "run")
    with pytest.raises(UserError, match=r"remove run\.json where they are this folder's after all"):
        start(tmp_path / "run")
    (tmp_path / "run" / RECORD).unlink()
    start(tmp_path / "run")


def test_others_are_never_deleted(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    start(other, facts={"config": "another"})
    start(run, steps=2)
    for name in ("cp-0000.cp", "cp-0000.model"):
        shutil.copy(other / name, run / name)
    others = {name: (run / name).read_bytes() for name in ("cp-0000.cp", "cp-0000.model")}
    start(run, keep_epochs=1)
    assert sorted(path.name for path in run.glob("cp-*")) == [*others, "cp-0003.cp", "cp-0003.model"]
    assert {name: (run / name).read_bytes() for name in others} == others


def test_equal_runs_share_their_id_and_it_stays(tmp_path: Path) -> None:
    start(tmp_path / "a", facts={"version": "1"})
    start(tmp_path / "b", facts={"version": "2"})
    a, b = (read_record(tmp_path / name) for name in "ab")
    assert a is not None
    assert a == b
    start(tmp_path / "a", steps=STEPS + 2, facts={"config": "lengthened"})
    assert read_record(tmp_path / "a") == a
    assert read_checkpoint(tmp_path / "a" / "cp-0005.model")["run_id"] == a.run_id
    assert id_of({"config": 1}) != id_of({"config": 2})


def test_a_copy_of_the_checkpoint_alone_goes_on(tmp_path: Path, expected: float) -> None:
    start(tmp_path / "run", steps=2)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "run" / "cp-0001.cp", tmp_path / "copy")
    assert start(tmp_path / "copy") == expected
    assert read_record(tmp_path / "copy") == read_record(tmp_path / "run")


def test_checkpoints_of_two_runs_without_a_record_are_refused(tmp_path: Path) -> None:
    for number, run_id in enumerate(("one", "two")):
        write_named(tmp_path / f"cp-000{number}.cp", run_id=run_id)
    with pytest.raises(UserError, match=r"2 runs and no run.json(.|\n)*one: cp-0000.cp(.|\n)*two: cp-0001.cp"):
        read_latest(tmp_path, print)


@pytest.mark.parametrize("text", ["{", "null", '{"format": 2}', '{"format": 2, "run_id": 3}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    start(tmp_path / "run", steps=2)
    (tmp_path / "run" / RECORD).write_text(text)
    with pytest.raises(UserError, match=r"run\.json: damaged: expected the id(.|\n)* Remove it"):
        start(tmp_path / "run")
    (tmp_path / "run" / RECORD).unlink()
    start(tmp_path / "run")


@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link", "link to itself", "empty zip", "empty"])
def test_what_stands_in_the_newest_ones_place_is_set_aside(tmp_path: Path, expected: float, kind: str) -> None:
    start(tmp_path / "run", steps=2)
    put_in_the_place_of(tmp_path / "run" / "cp-0002.cp", kind)
    assert start(tmp_path / "run") == expected
    assert (tmp_path / "run" / "cp-0002.cp").is_file()
    aside = tmp_path / "run" / "cp-0002.cp.damaged"
    assert aside.is_symlink() or aside.exists()


def test_a_second_damaged_one_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    start(tmp_path / "run", steps=2)
    for content in (b"first", b"second"):
        (tmp_path / "run" / "cp-0002.cp").write_bytes(content)
        read_latest(tmp_path / "run", print)
    texts = [(tmp_path / "run" / f"cp-0002.cp.damaged{number}").read_bytes() for number in ("", "-2")]
    assert texts == [b"first", b"second"]


def test_a_fault_of_the_machine_condemns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(torch, "load", raising(OSError(5, "Input/output error")))
        with pytest.raises(UserError, match=r"cp-0003\.cp: cannot be read: Input/output error"):
            start(tmp_path / "run", steps=STEPS + 1)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "run")
    monkeypatch.setattr("os.listdir", raising(PermissionError(13, "Permission denied")))
    with pytest.raises(UserError, match="run: cannot be read: Permission denied"):
        start(tmp_path / "run")


def test_cut_short_weights_are_made_again_from_the_whole_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    start(run)
    whole = {name: (run / name).read_bytes() for name in ("cp-0001.model", "cp-0003.model")}
    for name, data in whole.items():
        (run / name).write_bytes(data[: len(data) // 2])
    start(run)
    assert {name: (run / name).read_bytes() for name in whole} == whole
    assert "cp-0001.model: was damaged: made again from its .cp" in caplog.text


def test_damaged_weights_are_made_again_for_who_reads_them(tmp_path: Path) -> None:
    start(tmp_path / "run")
    path = tmp_path / "run" / "cp-0001.model"
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    with RunLock(path.parent), pytest.raises(UserError, match=r"again from cp-0001\.cp now: .*active"):
        mend_weights(path)
    mend_weights(path)
    assert path.read_bytes() == whole
    mend_weights(path)
    assert sorted(path.parent.glob("*.damaged*")) == [path.with_name("cp-0001.model.damaged")]
    path.with_suffix(".cp").unlink()
    path.write_bytes(b"half")
    mend_weights(path)
    assert path.read_bytes() == b"half", "there is nothing to make it of"


def test_what_several_processes_find_damaged_is_made_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "run")
    path = tmp_path / "run" / "cp-0001.model"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    mend_weights(path)
    assert path.read_bytes() == whole, "to the byte, so that fine-tuning from it goes on"
    looks = iter([UnreadableCheckpoint("as it was before another process made it again"), None])
    monkeypatch.setattr(checkpoint, "_damage", lambda path: next(looks))
    mend_weights(path)
    assert sorted(path.parent.glob("*.damaged*")) == [path.with_name("cp-0001.model.damaged")]


def test_weights_of_another_run_are_not_made_again(tmp_path: Path) -> None:
    start(tmp_path / "run")
    start(tmp_path / "other", facts={"config": "another"})
    shutil.copy(tmp_path / "other" / "cp-0001.cp", tmp_path / "run")
    (tmp_path / "run" / "cp-0001.model").write_bytes(b"half")
    start(tmp_path / "run")
    mend_weights(tmp_path / "run" / "cp-0001.model")
    assert (tmp_path / "run" / "cp-0001.model").read_bytes() == b"half"


def test_an_old_damaged_pair_does_not_stop_the_run(tmp_path: Path, expected: float) -> None:
    start(tmp_path / "run", steps=2)
    for name in ("cp-0000.cp", "cp-0000.model"):
        data = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "run" / name).write_bytes(data[: len(data) // 2])
    assert start(tmp_path / "run") == expected


def test_weights_of_another_run_in_the_way_are_kept(tmp_path: Path, expected: float) -> None:
    start(tmp_path / "other", facts={"config": "another"})
    start(tmp_path / "run", steps=2)
    shutil.copy(tmp_path / "other" / "cp-0003.model", tmp_path / "run")
    foreign = (tmp_path / "run" / "cp-0003.model").read_bytes()
    assert start(tmp_path / "run") == expected
    assert (tmp_path / "run" / "cp-0003.model.not-of-this-run").read_bytes() == foreign


def test_nothing_is_renamed_where_the_run_is_refused(tmp_path: Path) -> None:
    start(tmp_path / "run", steps=2)
    (tmp_path / "run" / "cp-0002.cp").write_bytes(b"half")

    def refuse(saved: Saved) -> None:
        raise UserError("changed")

    with pytest.raises(UserError, match="changed"):
        newest(tmp_path / "run", Group(), refuse)
    assert (tmp_path / "run" / "cp-0002.cp").read_bytes() == b"half"


@pytest.mark.parametrize("source", ["run/cp-0000.model", "other/cp-0003.model"])
def test_what_took_the_place_of_weights_gives_it_back(tmp_path: Path, source: str) -> None:
    """The last weights are those of the run's last epoch, whose whole state is there, and not those before it."""
    start(tmp_path / "other", facts={"config": "another"})
    start(tmp_path / "run")
    path = tmp_path / "run" / "cp-0003.model"
    whole = path.read_bytes()
    shutil.copy(tmp_path / source, path)
    assert choose_weights(tmp_path / "run", "last") == [path]
    mend_weights(path)
    assert path.read_bytes() == whole
    assert (tmp_path / "run" / "cp-0003.model.damaged").read_bytes() == (tmp_path / source).read_bytes()


def test_weights_that_are_gone_are_made_again_of_the_runs_own_state(tmp_path: Path) -> None:
    start(tmp_path / "run")
    path = tmp_path / "run" / "cp-0003.model"
    whole = path.read_bytes()
    path.unlink()
    (chosen,) = choose_weights(tmp_path / "run", "last")
    assert chosen == path.with_suffix(".cp")
    with RunLock(path.parent):
        mend_weights(chosen)
    assert not path.exists(), "a run that is active there writes it"
    mend_weights(chosen)
    assert path.read_bytes() == whole
    assert choose_weights(tmp_path / "run", "last") == [path]
    path.unlink()
    (path.parent / RECORD).unlink()
    mend_weights(chosen)
    assert not path.exists(), "beside a checkpoint that somebody copied there nothing is written"
