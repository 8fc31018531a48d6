"""What the campaign says of a disturbed run: planted faults are called by their names."""

import random
import signal
from pathlib import Path

import pytest
from campaign.commands import Command, Ended, Running, run
from campaign.damages import damage_file, fails_to_open, fails_to_write
from campaign.files import look, newest_steps
from campaign.scenes import Prepared, Scene, prepare, scenes
from campaign.trial import GOOD, Sandbox, judge_end, try_out
from processes import processes_of, wait_for

NAMES = ("cp-0000.model", "model/")


@pytest.mark.parametrize(
    ("kind", "status", "stderr"),
    [
        ("hang", None, ""),
        ("identical", 0, ""),
        ("traceback", 0, "Traceback (most recent call last):\nKeyError\n"),
        ("traceback", -signal.SIGSEGV, ""),
        ("traceback", 1, "something went wrong\n"),
        ("traceback", 2, "error: cp-0000.model: x\nTraceback (most recent call last):\nKeyError\n"),
        ("unclear", 2, ""),
        ("unclear", 2, "error: cp-0000.model: damaged\n" * 2),
        ("unclear", 2, "reading cp-0000.model\nerror: something is wrong\n"),
        ("unclear", 2, "error: other-cp-0000.model is wrong\n"),
        ("clear error", 2, "error: model/: wrong\n"),
        ("clear error", 2, "error: something is wrong:\n  cp-0000.model\n"),
    ],
)
def test_what_status_and_output_say(kind: str, status: int | None, stderr: str) -> None:
    assert judge_end(Ended(status, "", stderr), NAMES).kind == kind


PROGRAM = """
import os, sys, time
from pathlib import Path
source, out = Path("in"), Path("out")
text = source.read_text()
match text:
    case "raise":
        raise KeyError(text)
    case "wait":
        time.sleep(60)
    case "refuse":
        sys.exit(print(f"error: {source}: refused", file=sys.stderr) or 2)
    case "unclear":
        sys.exit(print("error: something is wrong", file=sys.stderr) or 2)
    case "remove":
        Path("notes").unlink()
    case "forget":
        Path("out-cp/cp-0001.cp").unlink()
        sys.exit(print(f"error: {source}: refused", file=sys.stderr) or 2)
Path("new.tmp").write_text(text.upper())
os.replace("new.tmp", out)
"""


@pytest.fixture
def small(tmp_path: Path) -> Prepared:
    """A scene of a script that reads one file and writes another."""
    (tmp_path / "script.py").write_text(PROGRAM)
    world = tmp_path / "world"
    (world / "out-cp").mkdir(parents=True)
    for name, text in (("in", "text"), ("notes", "what a user wrote"), ("out-cp/cp-0001.cp", "a state")):
        (world / name).write_text(text)
    command = Command(str(tmp_path / "script.py"), ())
    return prepare(Scene("small", (command,), ("in", "notes", "out-cp"), ("out", "out-cp")), world, tmp_path / "scenes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            ("text", "identical"),
            ("lie", "silent"),
            ("raise", "traceback"),
            ("wait", "hang"),
            ("refuse", "clear error"),
        ),
        *(("unclear", "unclear"), ("remove", "lost"), ("forget", "lost")),
    ],
)
def test_a_planted_fault_is_called_by_its_name(small: Prepared, tmp_path: Path, text: str, expected: str) -> None:
    sandbox = Sandbox(small, tmp_path / "trial")
    (sandbox.folder / "in").write_text(text)
    before = look(sandbox.folder)
    ended = sandbox.run(limit=1 if text == "wait" else 20)
    assert sandbox.judge(ended, before, "in", ("in",)).kind == expected, ended


@pytest.mark.parametrize("kind", ["damage", pytest.param("kills", marks=pytest.mark.slow)])
def test_trials_of_a_program_that_checks_nothing(kind: str, small: Prepared, tmp_path: Path) -> None:
    """It writes atomically, so that only damage is its undoing; nothing is left behind."""
    verdicts = {try_out(kind, f"{kind}:{number}", {"small": small}, tmp_path / "trial")[1].kind for number in range(12)}
    assert bool(verdicts - set(GOOD)) == (kind == "damage"), verdicts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scenes", "script.py", "world"]


def test_newest_steps() -> None:
    tree = dict.fromkeys(("a/cp-0000.cp", "a/cp-0001-step-00000005.cp", "b/cp-0001.cp", "b/result.json"), "")
    assert newest_steps(tree) == {"a": (1, 5), "b": (10**9, 10**9)}
    assert newest_steps(tree, but="a/cp-0001-step-00000005.cp")["a"] == (0, 10**9)


def test_faults_come_to_pass(tmp_path: Path) -> None:
    folder, script = tmp_path / "folder", tmp_path / "script.py"
    folder.mkdir()
    script.write_text("import os\nopen('one', 'a').close()\nos.replace('one', 'other')")
    command = Command(str(script), ())
    for hook in (fails_to_open(folder / "one", "EIO", 0), fails_to_write("ENOSPC", 1)):
        assert run(command, folder, hook).status == 1
    for hook in (fails_to_open(folder / "another", "EIO", 0), fails_to_write("ENOSPC", 2)):
        assert run(command, folder, hook).status == 0


def test_what_a_run_started_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, time\nprint(os.fork(), flush=True)\ntime.sleep(60)")
    (tmp_path / "folder").mkdir()
    running = Running(Command(str(tmp_path / "script.py"), ()), tmp_path / "folder")
    wait_for(lambda: "\n" in running.read_output()[0])
    assert running.end(0).status is None
    wait_for(lambda: not processes_of(running.pid))


@pytest.mark.parametrize(("text", "status"), [("", 0), ("import sys; sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_fork_ends_as_a_process_does(tmp_path: Path, text: str, status: int) -> None:
    """Exit statuses, output that was not flushed, and what runs at an exit."""
    (tmp_path / "script.py").write_text(f"import atexit\natexit.register(print, 'at the exit')\nprint('out')\n{text}")
    (tmp_path / "folder").mkdir()
    ended = run(Command(str(tmp_path / "script.py"), ()), tmp_path / "folder")
    assert (ended.status, ended.stdout) == (status, "out\nat the exit\n")


@pytest.mark.parametrize("ending", [".cp", ".json", ".jsonl", ".txt"])
def test_damage_changes_the_file_and_repeats_by_its_seed(tmp_path: Path, ending: str) -> None:
    content = b'{"a": 1, "b": [2, {"c": 3}]}\n{"type": "train", "step": 4}\n'

    def damaged(seed: int, name: str) -> bytes | None:
        path = tmp_path / f"{name}-{seed}{ending}"
        path.write_bytes(content)
        damage_file(random.Random(seed), path)
        return path.read_bytes() if path.is_file() else None

    for seed in range(40):
        assert damaged(seed, "one") == damaged(seed, "other") != content


def test_scenes_have_names_of_their_own() -> None:
    names = [scene.name for scene in scenes()]
    assert len(set(names)) == len(names) > 40
