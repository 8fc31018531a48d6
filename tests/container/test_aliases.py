"""Docker's names of commands and flags, where they mean the same."""

from pathlib import Path

import pytest
from fake_engine import FakeEngine, Launcher


@pytest.fixture
def three(fake: FakeEngine, tmp_path: Path) -> FakeEngine:
    for name, status, exit_code in (("done", "exited", 0), ("killed", "exited", 137), ("going", "running", 0)):
        fake.add(name, tmp_path / name, status=status, exit_code=exit_code)
    return fake


def listed(printed: str) -> list[str]:
    return [line.split()[0] for line in printed.splitlines()[1:]]


@pytest.mark.parametrize(("words", "names"), [(["ps", "-a"], 3), (["ls", "-a"], 3), (["ls"], 2), (["ps", "--all"], 3)])
def test_lists(three: FakeEngine, launch: Launcher, words: list[str], names: int) -> None:
    assert listed(launch(*words).out) == ["done", "killed", "going"][-names:]


def test_rm_and_start(three: FakeEngine, launch: Launcher) -> None:
    launch("rm", "done")
    launch("start", "killed")
    assert three.names == ["killed", "going"]
    assert three.state("killed") == "running"
    assert "nothing to remove" in launch.refused("rm", "going")


def test_stop_with_a_time(three: FakeEngine, launch: Launcher) -> None:
    for option in ("-t", "--time", "--timeout"):
        three.start(three.find("going") or "")
        launch("stop", option, "5", "going")
        assert three.sent("POST", "/containers/[^/]+/stop")[-1].query == {"t": "5"}


def test_the_last_lines(three: FakeEngine, launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "going").mkdir()
    (tmp_path / "going" / "run_pretrain.txt").write_text("one\ntwo\nthree\n")
    assert launch("logs", "-n", "1", "going").out == "three\n"
    assert launch("logs", "-n2", "going").out == "two\nthree\n"
    for many in ("all", "9" * 30):
        assert launch("logs", "--tail", many, "going").out == "one\ntwo\nthree\n"
    for wrong in ("-1", "some", "1.5"):
        assert f"expected a number of lines, or all, found {wrong}" in launch.refused("logs", "-n", wrong, "going")
