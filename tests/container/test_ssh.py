"""An engine that is reached with the program ssh."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import FakeEngine, Launcher
from ssh_program import on_path, write_ssh

from nystromformer.container.engine import Engine, NoEngine
from nystromformer.container.jobs import find_jobs
from nystromformer.container.output import follow_output, read_output

ADDRESS = "ssh://user@machine"
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts a stand-in on PATH."""
    return lambda before="": monkeypatch.setenv("PATH", on_path(write_ssh(tmp_path / "ssh", fake.url, before)))


def test_a_run_from_start_to_end(
    write: Write,
    fake: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[object, ...],
) -> None:
    write()
    launch = Launcher(ADDRESS, monkeypatch, capsys)
    assert "small-pretrain: started" in launch(*words).out
    assert fake.state("small-pretrain") == "running"
    assert "small-pretrain" in launch("ps").out
    launch("stop", "small-pretrain")
    assert fake.state("small-pretrain") == "exited"


def test_logs_are_whole(write: Write, fake: FakeEngine) -> None:
    write()
    engine = Engine({"DOCKER_HOST": ADDRESS})
    fake.add("run", "/x/run", command="python3 /code/run_pretrain.py >> /model/run.txt 2>&1")
    log = b"".join(b"line %d\n" % number for number in range(20_000))
    fake.answers["tail -n +1 -F /model/run.txt"] = log
    fake.archives["run", "/model/run.txt"] = log
    (job,) = find_jobs(engine)
    assert not engine.is_local
    pieces: list[bytes] = []
    follow_output(engine, job, pieces.append)
    assert b"".join(pieces) == log
    assert read_output(engine, job) == log


@pytest.mark.parametrize("before", ["exit 255", "PATH=/nowhere", "echo Welcome"])
def test_nothing_answers_there(write: Write, before: str) -> None:
    write(before)
    with pytest.raises(NoEngine, match=f"no container engine answers at {ADDRESS} .*`ssh HOST docker version`"):
        _ = Engine({"DOCKER_HOST": ADDRESS}).client


def test_no_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoEngine, match="No such file or directory"):
        _ = Engine({"DOCKER_HOST": ADDRESS}).client
