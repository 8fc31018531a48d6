"""Commands side by side: all are run, each in its log, and a failure is named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nystromformer.side_by_side import Job, Runner, job

ROOT = Path(__file__).parents[1]


def python(name: str, code: str) -> Job:
    return Job(name, [sys.executable, "-c", code])


@pytest.fixture(autouse=True)
def _handlers() -> object:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_all_are_run_and_a_failure_is_named(tmp_path: Path) -> None:
    run = Runner(tmp_path, 2)
    run([python("first", "print('one'); print(__import__('os').environ['OMP_NUM_THREADS'])")])
    assert (tmp_path / "logs" / "first.log").read_text() == "one\n1\n"
    with pytest.raises(SystemExit, match=r"failed: bad, worse; see .*logs"):
        run([python("bad", "exit(3)"), python("good", "print('two')"), python("worse", "exit(2)")])
    assert (tmp_path / "logs" / "good.log").read_text() == "two\n"


def test_words_are_cut_at_spaces_but_within_quotes() -> None:
    made = job("name", "code/run.py", "--a 1 --b 'two words'", Path("with space"), 3)
    assert made.words[1:] == ["code/run.py", "--a", "1", "--b", "two words", "with space", "3"]


def test_paths_of_the_checkout_tell_nothing_of_the_machine(tmp_path: Path) -> None:
    made = job("name", "code/run.py", "--model", ROOT / "runs" / "tiny", "--data", tmp_path)
    assert made.words[1:] == ["code/run.py", "--model", "runs/tiny", "--data", str(tmp_path)]


def test_sigterm_reaches_the_commands(tmp_path: Path) -> None:
    waits = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(5)); print(1, flush=True); time.sleep(60)"
    )
    code = f"""
import sys
from pathlib import Path
from nystromformer.side_by_side import Job, Runner
Runner(Path({str(tmp_path)!r}), 1)([Job(name, [sys.executable, "-c", {waits!r}]) for name in ("running", "waiting")])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    log = tmp_path / "logs" / "running.log"
    for _ in range(600):
        if log.is_file() and log.read_text():
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert said.startswith("stopped: running, waiting; see ")
    assert not (tmp_path / "logs" / "waiting.log").exists()
