"""Parts made in processes: results, the first error, jobs that share a folder."""

import os
import signal
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import pytest

from nystromformer.data.preprocessing.pool import Made, make_parts, run_works
from nystromformer.errors import UserError
from nystromformer.files.parts import PARTS, Part, open_parts
from nystromformer.files.writing import write_json


@dataclass(frozen=True)
class Square:
    number: int
    seconds: float = 0.0
    fails: bool = False

    def __call__(self) -> int:
        time.sleep(self.seconds)
        if self.fails:
            raise UserError(f"number {self.number}")
        return self.number**2


def test_the_first_error_is_told_and_nothing_is_waited_for() -> None:
    works = [Square(0), Square(1, 0.3, fails=True), Square(2, fails=True), *(Square(n, 60) for n in range(3))]
    begin = time.monotonic()
    with pytest.raises(UserError, match="number 1"), closing(run_works(works, 3)) as results:
        list(results)
    assert time.monotonic() - begin < 30
    assert not active_children()


def kill_this_process() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_killed_process_is_told() -> None:
    with pytest.raises(UserError, match="a worker process ended abruptly"):
        list(run_works([kill_this_process, Square(1)], 2))


@dataclass(frozen=True)
class Write:
    folder: Path
    name: str

    def __call__(self) -> Made:
        path = self.folder / f"{self.name}.json"
        return {path: write_json(path, self.name)}, {"process": os.getpid()}


def make(folder: Path, workers: int = 1, share: slice | None = None) -> dict[str, Part]:
    works = {name: Write(folder, name) for name in "abcd"}
    with open_parts(folder / PARTS, "make", {}, shared=share is not None) as parts:
        return make_parts(parts, works, workers, "letters", share)


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
