"""An engine that is reached with the program ssh: the same as on a socket, and ssh's own words where it fails."""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Launcher, fake_engine
from ssh_program import SshProgram, on_path, write_ssh

from nystromformer.container import ssh
from nystromformer.container.engine import Engine, NoEngine, clear_errors, connect
from nystromformer.container.jobs import find_jobs
from nystromformer.container.output import follow, read_output
from nystromformer.container.ssh import Target
from nystromformer.errors import UserError

ADDRESS = "ssh://user@machine"
Write = Callable[..., SshProgram]


@pytest.fixture
def write(tmp_path: Path, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts a stand-in on PATH."""

    def make(before: str = "") -> SshProgram:
        program = write_ssh(tmp_path / "ssh", fake.url, before)
        monkeypatch.setenv("PATH", on_path(program))
        return program

    return make


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Those that the launcher starts."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def keep(*words: Any, **settings: Any) -> subprocess.Popen[bytes]:
        started.append(start(*words, **settings))
        return started[-1]

    monkeypatch.setattr(ssh.subprocess, "Popen", keep)
    return started


@pytest.fixture
def over_ssh(write: Write, programs: list[subprocess.Popen[bytes]]) -> Engine:
    write()
    return connect({"DOCKER_HOST": ADDRESS})


@pytest.mark.parametrize(
    ("address", "target", "words"),
    [
        ("ssh://machine", Target("machine"), ["-T", "--", "machine", "docker system dial-stdio"]),
        (
            "ssh://user@Machine:2222/",
            Target("Machine", "user", 2222),
            ["-T", "-l", "user", "-p", "2222", "--", "Machine", "docker system dial-stdio"],
        ),
        (
            "ssh://first.last+x@my_host-2.example",
            Target("my_host-2.example", "first.last+x"),
            ["-T", "-l", "first.last+x", "--", "my_host-2.example", "docker system dial-stdio"],
        ),
        ("ssh://D%5Cme@a", Target("a", "D\\me"), ["-T", "-l", "D\\me", "--", "a", "docker system dial-stdio"]),
        ("ssh://[fe80::1%25eth0]", Target("fe80::1%eth0"), ["-T", "--", "fe80::1%eth0", "docker system dial-stdio"]),
        (
            "ssh://[fe80::1]:22/run/user/1000/my%20sock",
            Target("fe80::1", port=22, path="/run/user/1000/my sock"),
            ["-T", "-p", "22", "--", "fe80::1", "docker --host 'unix:///run/user/1000/my sock' system dial-stdio"],
        ),
    ],
)
def test_addresses(address: str, target: Target, words: list[str]) -> None:
    assert Target.parse(address) == target
    assert list(target.argv[2:]) == words


@pytest.mark.parametrize(
    "address",
    [
        *(
            "ssh://",
            "ssh://user@",
            "ssh://user:secret@machine",
            "ssh://machine:port",
            "ssh://-oX",
            "ssh://a b",
            "ssh://a?b",
        ),
        *("ssh://h;id", "ssh://%2doProxy", "ssh://a%3bid", "ssh://a$(id)", "ssh://a`id`", "ssh://a|b", "ssh://[-oX]"),
        *("ssh://a%20b", "ssh://a%0a", "ssh://a'b", "ssh://ä", "ssh://user@-h"),
        *("ssh://-oX@machine", "ssh://%2doX@machine", "ssh://a;id@machine", "ssh://a%20b@machine", "ssh://a'b@machine"),
        *(
            "ssh://%22a@machine",
            "ssh://a%7cb@machine",
            "ssh://a&b@machine",
            "ssh://$HOME@machine",
            "ssh://a%0ab@machine",
        ),
        *("ssh://`id`@machine", "ssh://machine/a%00b"),
    ],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match=r"expected ssh://|Port could not be cast|IPv"):
        Target.parse(address)
    with pytest.raises(NoEngine, match="no container engine answers at"):
        connect({"DOCKER_HOST": address})


def test_one_connection_serves_many_requests(write: Write, fake: FakeEngine) -> None:
    program = write()
    engine = connect({"DOCKER_HOST": ADDRESS})
    assert engine.address == ADDRESS
    assert not engine.is_local
    for number in range(3):
        fake.add(f"run{number}", "/x/run")
        assert [job.name for job in find_jobs(engine)] == [f"run{each}" for each in range(number + 1)]
    assert program.calls[-1] == list(Target("machine", "user").argv)
    assert len(program.calls) <= 2, "one for asking which version is spoken, and one for the rest"


def test_a_context_and_the_path_of_a_socket(tmp_path: Path, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_ssh(tmp_path / "ssh", "unix:///nowhere")
    monkeypatch.setenv("PATH", on_path(program))
    engine = connect({"DOCKER_HOST": f"ssh://machine{fake.url.removeprefix('unix://')}"})
    assert find_jobs(engine) == []


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


@pytest.mark.parametrize("before", ["", "export PAUSE=0.1"], ids=["as it comes", "with the answer's head"])
def test_streams_are_whole(write: Write, fake: FakeEngine, before: str) -> None:
    write(before)
    over_ssh = connect({"DOCKER_HOST": ADDRESS})
    fake.add("run", "/x/run", command="python3 /code/run_pretrain.py >> /model/run.txt 2>&1")
    log = b"".join(b"line %d\n" % number for number in range(20_000))
    fake.answers["tail -n +1 -F /model/run.txt"] = log
    fake.archives["run", "/model/run.txt"] = log
    (job,) = find_jobs(over_ssh)
    pieces: list[bytes] = []
    follow(over_ssh, job, pieces.append)
    assert b"".join(pieces) == log
    assert read_output(over_ssh, job) == log


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("echo 'user@machine: Permission denied (publickey).' >&2; exit 255", "Permission denied (publickey)."),
        ("PATH=/nowhere", "docker: not found"),
        ("sleep 0.2; echo no route >&2; exit 255", "no route"),
    ],
    ids=["no permission", "no docker there", "after a while"],
)
def test_what_ssh_says(write: Write, before: str, said: str) -> None:
    write(before)
    with pytest.raises(NoEngine) as info:
        connect({"DOCKER_HOST": ADDRESS})
    assert str(info.value).startswith(f"no container engine answers at {ADDRESS} (")
    assert said in str(info.value)
    assert "`ssh HOST docker version`" in str(info.value)


def test_something_else_that_answers(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_LAST_WORDS_SECONDS", 0.1)
    write("echo Welcome")
    with pytest.raises(NoEngine, match="Welcome"):
        connect({"DOCKER_HOST": ADDRESS})


def test_an_engine_that_never_answers(
    write: Write, programs: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nystromformer.container.engine._SECONDS", 0.3)
    write("exec sleep 98")
    with pytest.raises(NoEngine, match="timed out"):
        connect({"DOCKER_HOST": ADDRESS})
    (program,) = programs
    assert program.wait(10) == -signal.SIGTERM, "it could be asking for a password"


def test_no_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoEngine, match="there is no program ssh here"):
        connect({"DOCKER_HOST": ADDRESS})


def test_a_connection_that_breaks(write: Write) -> None:
    with fake_engine() as fake:
        program = write()
        text = (program.folder / "ssh").read_text().replace("DOCKER_HOST=", f"DOCKER_HOST={fake.url} #", 1)
        (program.folder / "ssh").write_text(text)
        engine = connect({"DOCKER_HOST": ADDRESS})
        engine.client.close()
    with pytest.raises(UserError, match="starting x: the engine stopped answering"), clear_errors("starting x"):
        engine.api.start("x")


def test_no_ssh_stays(over_ssh: Engine, programs: list[subprocess.Popen[bytes]]) -> None:
    find_jobs(over_ssh)
    assert programs[-1].poll() is None
    over_ssh.client.close()
    for program in programs:
        assert program.wait(10) == 0


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker command (the client alone is enough)")
def test_dockers_own_command_over_there(tmp_path: Path, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_ssh(tmp_path / "ssh", fake.url, docker=Path(str(shutil.which("docker"))))
    monkeypatch.setenv("PATH", on_path(program))
    fake.add("run", "/x/run")
    assert [job.name for job in find_jobs(connect({"DOCKER_HOST": ADDRESS}))] == ["run"]
