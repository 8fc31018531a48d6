"""Docker's words: those that mean the same are taken, others are answered in a sentence."""

from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Launcher
from typer.main import get_command

from launch import FUNCTIONS, launcher
from nystromformer import cli
from nystromformer.container.docker_words import ALIASES, answer
from nystromformer.data.preprocessing.commands import corpus_command, dataset_command
from nystromformer.data.preprocessing.corpora.formats import FORMATS


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec", "-it", "going", "bash"], "exec: that is docker's own, `docker exec`"),
        (["run", "--gpus", "all", "nystromformer"], "run: a container is named after what runs in it: `launch.py pret"),
        (["restart", "going"], "restart: `launch.py stop NAME`, then `launch.py resume NAME`"),
        (["container", "ls"], "container: leave the word out"),
        (["ps", "-aq"], "ps -q: leave it out, or ask `docker ps`"),
        (["ps", "--filter=status=exited"], "ps --filter: leave it out"),
        (["rm", "-f", "going"], "rm -f: `launch.py kill NAME` first"),
        (["start", "--attach", "going"], "start --attach: `launch.py resume NAME`, then `launch.py logs -f NAME`"),
        (["logs", "-ft", "going"], "logs -t: leave it out"),
        (["kill", "-s", "TERM", "going"], "kill -s: leave it out"),
        (["pretrain", "-d", "x"], "pretrain -d: leave it out"),
        (["glue", "x", "-v", "/a:/b"], "glue -v: here it is --mount HOST:CONTAINER"),
        (["build", "--no-cache"], "build --no-cache: --fresh does both"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_answers(three: FakeEngine, launch: Launcher, words: list[str], said: str) -> None:
    error = launch.refused(*words)
    assert error.startswith(f"error: {said}")
    assert len(error.splitlines()) == 1
    assert three.changes == []


def test_what_is_not_dockers_is_left_alone() -> None:
    assert answer("ps", ["--all", "-a"]) is None
    assert answer("pretrain", ["x", "--gpus", "0", "-f", "--", "-d"]) is None
    assert answer("frobnicate", ["-d"]) is None


def flags(command: Any) -> set[str]:
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}


def test_no_word_of_the_launchers_is_answered() -> None:
    commands = get_command(launcher()).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        passed_on = flags(get_command(cli.application(FUNCTIONS[name]))) if name in FUNCTIONS else set()
        assert answer(name, sorted(flags(command) | passed_on)) is None, name
    for each in (dataset_command(512, ("wiki",), Path()), corpus_command(FORMATS["wiki"], Path())):
        assert answer("preprocess", sorted(flags(get_command(cli.application(each))))) is None
    assert all(commands[alias].hidden for alias in ALIASES)
