"""`data-preprocessing/docstrings/preprocess.py`, run as users run it."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from corpora import contents
from small import run_command

from nystromformer.data.dataset import open_dataset
from nystromformer.data.preprocessing.unified import read_corpus

SCRIPT = Path(__file__).parents[3] / "data-preprocessing" / "docstrings" / "preprocess.py"
WORDS = [
    "the",
    "model",
    "reads",
    "text",
    "and",
    "returns",
    "some",
    "value",
    "of",
    "each",
    "row",
    "before",
    "its",
    "input",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for number in range(30):
        draw = random.Random(number)
        docs = [" ".join(draw.choices(WORDS, k=10)).capitalize() + f" {number}." for _ in range(12)]
        body = "\n".join(f'def f{n}():\n    """{doc}"""' for n, doc in enumerate(docs))
        (root / f"package{number}").mkdir()
        (root / f"package{number}" / "__init__.py").write_text(body)
    return root


def command(tree: Path, out: Path, *flags: str) -> list[str]:
    return [sys.executable, str(SCRIPT), "--source", str(tree), "--out", str(out), *flags]


def run(tree: Path, out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(tree, out, *flags), capture_output=True, text=True, check=False)


def test_a_run_from_beginning_to_end(tree: Path, tmp_path: Path) -> None:
    first = run(tree, tmp_path / "a", "--workers", "1")
    assert first.returncode == 0, first.stderr
    assert first.stdout == ""
    corpus = read_corpus(tmp_path / "a")
    assert f"{corpus.documents} documents" in first.stderr
    assert set(corpus.groups or ()) == {f"package{number}" for number in range(30)}
    before = contents(tmp_path / "a")

    assert run(tree, tmp_path / "b", "--workers", "3").returncode == 0
    assert contents(tmp_path / "b") == before

    again = run(tree, tmp_path / "a")
    assert (again.returncode, "finished already, nothing to do" in again.stderr) == (0, True)

    other = run(tree, tmp_path / "a", "--seed", "1")
    assert other.returncode == 2
    assert "seed: found 0, expected 1" in other.stderr
    assert "Traceback" not in other.stderr
    assert contents(tmp_path / "a") == before

    assert run(tree, tmp_path / "a", "--seed", "1", "--overwrite").returncode == 0
    assert read_corpus(tmp_path / "a").settings["seed"] == 1


def test_rows_of_docstrings_are_validated_on_other_packages(tree: Path, tmp_path: Path) -> None:
    assert run(tree, tmp_path / "docstrings" / "unified").returncode == 0
    flags = ["--corpus", "docstrings", "--tokenizer", "train", "--vocab_size", 300, "--length", 32]
    done = run_command(
        *("data-preprocessing/preprocess_data_512.py", "--corpora", tmp_path, "--out", tmp_path / "rows", *flags),
        *("--validation", 0.1, "--workers", 1),
    )
    assert done.returncode == 0, done.stderr
    dataset = open_dataset(tmp_path / "rows", verify=True)
    assert f"{len(dataset.train)} rows of 32" in done.stderr
    assert dataset.fingerprint in done.stderr
    assert dataset.manifest.validation.documents == 3


@pytest.mark.parametrize("flags", [("--limit_mb", "0"), ("--min_words", "0"), ("--workers", "0")])
def test_bad_flags_exit_with_status_2(tree: Path, tmp_path: Path, flags: tuple[str, str]) -> None:
    refused = run(tree, tmp_path, *flags)
    assert refused.returncode == 2
    assert flags[0] in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_killed_run_continues(tree: Path, tmp_path: Path) -> None:
    killed = subprocess.Popen(command(tree, tmp_path / "a", "--workers", "2"), stderr=subprocess.DEVNULL)
    wait_for((tmp_path / "a" / "stages" / "run.json").exists)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert run(tree, tmp_path / "a").returncode == 0
    assert run(tree, tmp_path / "b", "--workers", "1").returncode == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_killed_run_leaves_no_workers(tree: Path, tmp_path: Path) -> None:
    flags = ("--workers", "2")
    killed = subprocess.Popen(command(tree, tmp_path, *flags), stderr=subprocess.DEVNULL, start_new_session=True)
    # itself, the tracker of its semaphores, and a worker
    wait_for(lambda: processes_of(killed.pid) >= 3)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    wait_for(lambda: processes_of(killed.pid) == 0)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def processes_of(session: int) -> int:
    """Number of living processes in a session."""
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # after the name in parentheses: state, parent, group, session
            state, _, _, found = stat.read_text().rpartition(")")[2].split()[:4]
            count += int(found) == session and state != "Z"
    return count
