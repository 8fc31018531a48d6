"""Units of work in processes: results, progress, the first error, processes that share a run."""

import fcntl
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from nystromformer.data.preprocessing.pool import Report, run_works
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.data.preprocessing.stages import StageOutput, Stages
from nystromformer.data.preprocessing.units import Unit, run_units
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json


@dataclass(frozen=True)
class Square:
    number: int
    seconds: float = 0.0
    fails: bool = False

    def __call__(self, report: Report) -> int:
        for _ in range(10):
            time.sleep(self.seconds / 10)
            report(1, 2)
        if self.fails:
            raise UserError(f"number {self.number}")
        return self.number**2


class Sum:
    def __init__(self) -> None:
        self.size = self.tokens = 0

    def __call__(self, size: int, tokens: int) -> None:
        self.size += size
        self.tokens += tokens


@pytest.mark.parametrize("workers", [1, 3])
def test_results_and_progress(workers: int) -> None:
    progress = Sum()
    assert dict(run_works([Square(n) for n in range(8)], workers, progress)) == {n: n * n for n in range(8)}
    assert (progress.size, progress.tokens) == (80, 160)


def kill_this_process(report: Report) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_killed_process_is_told() -> None:
    with pytest.raises(UserError, match="a worker process ended abruptly"):
        dict(run_works([kill_this_process, Square(1)], 2, Sum()))


@dataclass(frozen=True)
class Write:
    folder: Path
    name: str

    def __call__(self, report: Report) -> StageOutput:
        return StageOutput({self.name: write_json(self.folder / self.name, self.name)}, {"done": 1})


def units(folder: Path) -> list[Unit]:
    return [Unit(f"u{n}", f"f{n}", 1, Write(folder, f"{n}.json")) for n in range(4)]


def join(folder: Path, overwrite: bool = False) -> Stages:
    return Stages(folder, {"a": 1}, "final", ["final"], overwrite)


def test_a_unit_that_another_process_works_at_is_waited_for(tmp_path: Path) -> None:
    with join(tmp_path) as stages:
        with (tmp_path / "stages" / "u1.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            thread = threading.Thread(target=run_units, args=(stages, units(tmp_path), 1, "units"))
            thread.start()
            while not (tmp_path / "stages" / "u3.json").exists():
                time.sleep(0.01)
            assert not (tmp_path / "1.json").exists()
            # the other process finishes it
            stages.stamps.write("u1", "f1", StageOutput({}, {"done": "elsewhere"}))
        thread.join(10)
        outputs = run_units(stages, units(tmp_path), 1, "units")
    assert [output.result["done"] for output in outputs.values()] == [1, "elsewhere", 1, 1]
    assert list(outputs) == ["u0", "u1", "u2", "u3"]


def test_processes_share_a_run_but_for_its_beginning_and_end(tmp_path: Path) -> None:
    with join(tmp_path), join(tmp_path):
        with pytest.raises(UserError, match="another process is using it"):
            join(tmp_path, overwrite=True).__enter__()
        with pytest.raises(UserError, match="another process is using it"):
            Stages(tmp_path, {"a": 2}, "final", ["final"]).__enter__()
    with join(tmp_path, overwrite=True):
        pass


def test_overwriting_goes_on_where_it_was_interrupted_and_makes_a_finished_run_anew(tmp_path: Path) -> None:
    for is_finished in (False, True):
        with join(tmp_path, overwrite=True) as stages:
            stages.stamps.write("u1", "f1", StageOutput({}, {}))
        if is_finished:
            (tmp_path / "final").touch()
        with join(tmp_path, overwrite=True) as stages:
            assert bool(stages.stamps.names()) is not is_finished


def test_the_end_of_a_run_is_waited_for(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with join(tmp_path):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with join(tmp_path) as first:
        first.exclude_others()
        thread.start()
        assert not entered.wait(0.5), "a process that joins waits for the one that ends the run"
    assert entered.wait(10)
    with join(tmp_path) as third:
        threading.Timer(0.5, leave.set).start()
        third.exclude_others()
        assert leave.is_set(), "the process that ends the run waits for those that share it"
    thread.join(10)


@pytest.mark.parametrize("counted", ["tokens", "words"])
def test_lines_of_progress(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, counted: str) -> None:
    monkeypatch.setattr("nystromformer.data.preprocessing.progress.SECONDS_BETWEEN_LINES", 0)
    with caplog.at_level("INFO"), ReadingProgress("rows", 4_000_000, 1_000_000, counted) as progress:
        time.sleep(0.01)
        progress(1_000_000, 5_000)
    [line] = caplog.messages
    assert line.startswith("rows: 2.0 of 4.0 MB, ")
    assert f"k {counted}/s, 0:00 left" in line
