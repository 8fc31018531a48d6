"""How far a run is, from its log as training writes it and as kills and crashes leave it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nystromformer.container.progress import LOG, LoggedProgress, progress_of, read_progress
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.training.log import RunLog

NOW = 2_000_000_000.0


def start(step: int, at: float, num_steps: int | None = 100) -> dict[str, Any]:
    return {"type": "start", "step": step, "num_steps": num_steps, "device": "cpu", "time": at}


def report(step: int, at: float, loss: float | None = 2.5) -> dict[str, Any]:
    return {"type": "train", "step": step, "epoch": 0, "loss": loss, "tokens_per_second": 1000.0, "time": at}


def write(folder: Path, records: Sequence[dict[str, Any]], end: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOG
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    os.utime(path, (NOW, NOW))
    return path


def progress_at(place: Path, since: float, now: float) -> LoggedProgress:
    """The progress that has to be there."""
    progress = read_progress(place, since, now)
    assert progress is not None
    return progress


def test_a_log_of_trainings_own(tmp_path: Path) -> None:
    before = time.time()
    log = RunLog(tmp_path, step=0, num_steps=40)
    log.event("start", 0, num_steps=40)
    for step in (10, 20):
        log.train(step, 0, {"loss": 3.0 - step / 20}, {"tokens_per_second": 500.0, "memory_mib": 1.0})
    log.validation(20, 0, {"loss": 9.0})
    progress = progress_at(tmp_path, before, time.time())
    assert (progress.step, progress.steps, progress.loss, progress.tokens_per_second) == (20, 40, 2.0, 500.0)
    log.event("stop", 20, signal="SIGTERM")
    log.close()
    assert progress_at(tmp_path, before, time.time()).step == 20

    again = RunLog(tmp_path, step=20, num_steps=60)
    again.event("start", 20, num_steps=60)
    again.close()
    resumed = progress_at(tmp_path, before, time.time())
    assert (resumed.step, resumed.steps, resumed.loss) == (20, 60, None)


def test_time_left_is_that_of_the_last_reports() -> None:
    # A second a step at first, then two; the pause before this start does not count.
    slow = [report(10 + i, NOW - 40 + 2 * i) for i in range(1, 21)]
    progress = progress_of([start(0, NOW - 100), report(5, NOW - 95), report(10, NOW - 90), *slow], NOW)
    assert progress.seconds_left == pytest.approx((100 - 30) * 2)
    later = progress_of([start(0, NOW - 100), *slow], NOW + 30)
    assert later.seconds_left == pytest.approx((100 - 30) * 2 - 30), "from now on"
    assert progress_of([start(0, NOW - 100), *slow], NOW + 1000).seconds_left == 0


@pytest.mark.parametrize(
    "records",
    [
        [start(0, NOW)],
        [start(0, NOW), report(1, NOW)],
        [start(0, NOW, num_steps=None), report(1, NOW), report(2, NOW + 1)],
        [report(1, NOW), report(2, NOW + 1)],
        [start(0, NOW), report(2, NOW), report(2, NOW + 1)],
        [start(0, NOW), report(1, NOW), report(2, NOW)],
    ],
    ids=["no report", "one report", "number of steps unknown", "no start", "no step between", "no time between"],
)
def test_time_left_is_unknown(records: list[dict[str, Any]]) -> None:
    progress = progress_of(records, NOW)
    assert progress.seconds_left is None
    assert progress.step == records[-1]["step"]


BAD_LINES = [
    *(b"\0\0\0\n", b"{]\n", b"[1]\n", b"3\n", b'{"step": 9}\n', b"\n", b"\xff\xfe{}\n", b"[" * 50_000 + b"\n"),
    b'{"type": "train", "step": "9", "time": 2e9}\n',
    b'{"type": "train", "step": NaN, "time": 2e9}\n',
    b'{"type": "train", "step": 9, "time": "now"}\n',
    b'{"type": "train", "step": 9, "time": null}\n',
    b'{"type": "train", "step": 9, "time": 2e9, "loss": "much"}\n',
    b'{"type": "train", "step": 9, "time": 2e9, "tokens_per_second": NaN}\n',
    b'{"type": "start", "step": 0, "num_\n',
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:60].decode(errors="replace"))
def test_a_bad_line_is_passed_over_and_so_is_a_half_written_one(tmp_path: Path, line: bytes) -> None:
    good = [json.dumps(each).encode() + b"\n" for each in (start(0, NOW), report(3, NOW), report(4, NOW + 2))]
    for at in range(len(good) + 1):
        (tmp_path / LOG).write_bytes(b"".join([*good[:at], line, *good[at:], b'{"type": "train", "step": 9']))
        progress = progress_at(tmp_path, 0, NOW + 2)
        assert (progress.step, progress.steps, progress.loss, progress.tokens_per_second) == (4, 100, 2.5, 1000)


@given(damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=30), cut=st.integers(0, 9999))
@settings(max_examples=200)
def test_any_damage_is_lived_with(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    path = write(folder, [start(0, NOW), *(report(step, NOW + step) for step in range(1, 30))])
    content = bytearray(path.read_bytes())
    for at, value in damage:
        content[at % len(content)] = value
    path.write_bytes(content[: len(content) - cut % len(content)])
    progress = read_progress(folder, 0, NOW + 99)
    assert progress is None or LoggedProgress(**json.loads(json.dumps(asdict(progress)))) == progress


@pytest.mark.parametrize("content", [None, "", "no line's end", "\n"])
def test_nothing_yet(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        write(tmp_path, [], content)
    assert read_progress(tmp_path, 0, NOW) is None
    assert read_progress(tmp_path / "nowhere", 0, NOW) is None


def test_what_is_no_readable_file_tells_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOG)
    assert read_progress(tmp_path, 0, NOW) is None, "it does not wait for somebody to write"
    (tmp_path / "loop").symlink_to("loop")
    assert read_progress(tmp_path / "loop", 0, NOW) is None


def work_log(folder: Path, *lines: str, at: float = NOW) -> Path:
    path = folder / "preprocess-wiki.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    os.utime(path, (at, at))
    return path


def test_work_without_steps(tmp_path: Path) -> None:
    log = work_log(
        tmp_path,
        f"10:00:00 {ReadingProgress('wiki', 4_000_000, 1_000_000, 'words').line()}",
        "10:00:15 wiki: 200.0 of 400.0 MB, 60k tokens/s, 4:00 left",
        "a warning of somebody's",
        "10:00:25 another word",
    )
    progress = progress_at(log, NOW - 60, NOW + 5)
    assert (progress.work, progress.tokens_per_second) == ("wiki: 200.0/400.0 MB", 60_000)
    assert progress.seconds_left == pytest.approx(4 * 60 - 10 - 5), "from now on"
    assert (progress.step, progress.steps, progress.loss) == (0, None, None)


def test_work_of_an_earlier_start_is_not_this_ones(tmp_path: Path) -> None:
    earlier = "23:50:00 wiki: 100.0 of 400.0 MB"
    log = work_log(tmp_path, earlier, "00:10:00 wiki: 3 of 7 parts already finished")
    assert read_progress(log, NOW - 60, NOW) is None, "twenty minutes before the last word"
    assert read_progress(log, NOW - 30 * 60, NOW) is not None
    now = progress_at(work_log(tmp_path, earlier, "00:10:00 rows: 1 of 4 files"), NOW - 60, NOW)
    assert now.work == "rows: 1/4 files"


def test_the_log_of_an_earlier_start_is_not_this_ones(tmp_path: Path) -> None:
    write(tmp_path, [start(0, NOW - 100), report(3, NOW - 90)])
    os.utime(tmp_path / LOG, (NOW - 90, NOW - 90))
    assert read_progress(tmp_path, NOW - 50, NOW) is None
    # Touched since (its lines after the checkpoint are dropped before the first is added), but nothing is new in it.
    os.utime(tmp_path / LOG, (NOW, NOW))
    assert read_progress(tmp_path, NOW - 50, NOW) is None


@pytest.mark.parametrize("many", [0, 300])
def test_the_last_start_counts_however_far_back_it_is(tmp_path: Path, many: int) -> None:
    earlier = [start(0, NOW - 999, 50), *(report(step, NOW - 900 + step) for step in range(1, 20))]
    since = [start(10, NOW - 500, 70), *(report(11, NOW - 400) for _ in range(many))]
    write(tmp_path, [*earlier, *since, report(12, NOW - 10), report(14, NOW - 6)])
    progress = progress_at(tmp_path, 0, NOW)
    assert (progress.step, progress.steps) == (14, 70)
    assert many or progress.seconds_left == pytest.approx((70 - 14) * 2 - 6)


def test_of_several_runs_the_one_that_wrote_last(tmp_path: Path) -> None:
    for number, name in enumerate(("SST-2/a", "SST-2/b", "MRPC/c")):
        path = write(tmp_path / name, [start(0, NOW - 10), report(number, NOW - 5)])
        os.utime(path, (NOW - number, NOW - number))
    assert progress_at(tmp_path, NOW - 20, NOW).step == 0


def test_as_a_program(tmp_path: Path) -> None:
    write(tmp_path, [start(0, NOW - 3), report(3, NOW - 2)])

    def asked(since: float) -> str:
        # Isolated from site-packages: it runs inside containers beside the training, and shall import little.
        program = [sys.executable, "-S", "-m", "nystromformer.container.progress", str(tmp_path), str(since)]
        code = Path(__file__).parents[2] / "code"
        environment = {"PYTHONPATH": str(code), "PATH": os.environ["PATH"]}
        return subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout

    assert LoggedProgress(**json.loads(asked(0))) == progress_at(tmp_path, 0, NOW)
    assert asked(NOW + 1) == "null"
