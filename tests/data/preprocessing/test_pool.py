"""Parts made in processes: results, progress, the first error, jobs that share a folder."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from nystromformer.data.preprocessing.pool import Made, Report, Unit, make_parts, reading_progress, run_works
from nystromformer.errors import UserError
from nystromformer.files.parts import PARTS, Part, open_parts
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

    def __call__(self, report: Report) -> Made:
        path = self.folder / f"{self.name}.json"
        return {path: write_json(path, self.name)}, {"process": os.getpid()}


def make(folder: Path, workers: int = 1, share: slice | None = None) -> dict[str, Part]:
    units = [Unit(name, 1, Write(folder, name)) for name in "abcd"]
    with open_parts(folder / PARTS, "make", {}, in_use="share" if share else "refuse") as parts:
        return make_parts(parts, units, workers, "letters", share)


def test_jobs_of_an_array_make_every_nth_part_and_a_last_one_the_rest(tmp_path: Path) -> None:
    first = make(tmp_path, 1, slice(1, None, 2))
    assert list(first) == ["b", "d"]
    whole = make(tmp_path, 2)
    assert list(whole) == ["a", "b", "c", "d"]
    assert (whole["b"], whole["d"]) == (first["b"], first["d"])
    assert whole["a"].figures["process"] != os.getpid()
    (tmp_path / "c.json").unlink()
    again = make(tmp_path)
    assert [name for name in whole if again[name] != whole[name]] == ["c"]


def test_two_jobs_of_one_number_are_an_error(tmp_path: Path) -> None:
    with (
        open_parts(tmp_path / PARTS, "make", {}, in_use="share") as parts,
        parts.alone("d"),
        pytest.raises(UserError, match="using its part d"),
    ):
        make(tmp_path, 1, slice(1, None, 2))


def test_progress_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with reading_progress("rows", 4_000_000, 1_000_000, "words") as report:
        report(3_000_000, 5_000)
    assert "rows: 100%" in (said := capsys.readouterr().err)
    assert "5,000 words" in said
