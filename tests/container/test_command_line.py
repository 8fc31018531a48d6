"""launch.py's commands, and what each asks of the engine."""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, Launcher, connected
from small import command as script
from small import write_experiment
from typer.main import get_command

from launch import FUNCTIONS
from nystromformer.command_line import cli
from nystromformer.container import control
from nystromformer.container.jobs import QUEUE_LABEL, WAITING, find_jobs
from nystromformer.container.scripts import CODE_FOLDER, SCRIPTS
from nystromformer.errors import UserError

Words = tuple[object, ...]


def bind(source: Path, target: str, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}


def test_a_start(
    fake: FakeEngine,
    launch: Launcher,
    words: Words,
    home: Path,
    dataset_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1234)
    monkeypatch.setattr("os.getgid", lambda: 99)
    said = launch(*words, "--gpus", "0", "--workers", "2")
    sent, host = fake.created, fake.created["HostConfig"]
    assert sent["name"] == "small-pretrain"
    assert sent["Image"] == "nystromformer"
    command = "exec python3 /code/run_pretrain.py --workers 2 --device cuda >> /model/pretrain.txt 2>&1"
    assert sent["Cmd"] == ["/bin/bash", "-c", command]
    assert sent["User"] == "1234:99"
    assert sent["StopTimeout"] == 300
    assert not sent.get("Env")
    assert sent["Labels"] == {
        "nystromformer.command": "pretrain",
        "nystromformer.experiment": str(home),
        "nystromformer.gpus": "0",
    }
    assert host["Mounts"] == [
        bind(home, "/model"),
        bind(CODE_FOLDER, "/code", True),
        bind(dataset_folder, "/dataset", True),
    ]
    assert host["Init"] is True
    assert host["NetworkMode"] == host["IpcMode"] == "host"
    assert host["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["0"]
    assert [change.split()[0] + " " + change.rsplit("/", 1)[1] for change in fake.changes] == [
        "POST create",
        "POST start",
    ]
    assert said.out == (
        "small-pretrain: starting on GPU 0\n"
        f"small-pretrain: started; its log is {home / 'pretrain.txt'}\n"
        "`launch.py logs -f small-pretrain` follows it, `launch.py stop small-pretrain` ends it\n"
    )


def test_every_flag_of_the_launchers(fake: FakeEngine, launch: Launcher, words: Words, tmp_path: Path) -> None:
    fake.images.add("mine:2")
    launch(
        *words,
        *("--image", "mine:2", "--name", "first", "--shm_size", "8g", "--network", "none", "--restart", "on-failure:3"),
        *("--mount", f"{tmp_path}:/a b:ro", "--mount", f"{tmp_path}:/c", "--env", "A=1", "--env", "B=x y=z"),
        *("--code", "image", "--gpus", "none", "--user", "70:71"),
    )
    assert fake.created["User"] == "70:71"
    sent, host = fake.created, fake.created["HostConfig"]
    assert (sent["Image"], sent["name"], sent["Env"]) == ("mine:2", "first", ["A=1", "B=x y=z"])
    assert sent["Cmd"][2].endswith(">> /model/first.txt 2>&1")
    assert host["ShmSize"] == 8 << 30
    assert "IpcMode" not in host
    assert host["NetworkMode"] == "none"
    assert host["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 3}
    assert [mount["Target"] for mount in host["Mounts"]] == ["/model", "/dataset", "/a b", "/c"]
    assert [mount["ReadOnly"] for mount in host["Mounts"]] == [False, True, True, False]


def test_a_rootless_engines_root_is_who_calls(fake: FakeEngine, launch: Launcher, words: Words) -> None:
    fake.security = ["name=seccomp,profile=default", "name=rootless"]
    launch(*words)
    assert fake.created["User"] == "0:0"


def test_an_earlier_container_gives_way(fake: FakeEngine, launch: Launcher, words: Words) -> None:
    launch(*words)
    for status in ("exited", "created"):
        first = fake.container("small-pretrain")["Id"]
        fake.end(first, 137, status)
        launch(*words)
        assert fake.container("small-pretrain")["Id"] != first
        assert fake.names == ["small-pretrain"]


def writes_when_started(fake: FakeEngine, home: Path, text: str) -> None:
    """A run that goes on in the log of an earlier start."""
    log = home / "pretrain.txt"
    log.write_text("of an earlier start\n")

    def write() -> None:
        with log.open("a") as file:
            file.write(text)

    fake.when("POST", "/start", write)


@pytest.mark.parametrize(
    ("exit_code", "to_log", "to_engine", "said"),
    [
        # Before the launcher hears that it has started, it may have ended.
        (2, "error: no such thing\n", b"", "error: small-pretrain failed (2):\nerror: no such thing\n"),
        (1, "", b"bash: Permission denied\n", "error: small-pretrain failed (1):\nbash: Permission denied\n"),
        (137, "", b"", "error: small-pretrain killed:\nit wrote nothing\n"),
        (143, "", b"", "error: small-pretrain stopped:\nit wrote nothing\n"),
        (0, "", b"", ""),
    ],
)
def test_what_ends_at_once_says_why_and_is_gone_if_it_cannot_be_resumed(
    fake: FakeEngine,
    launch: Launcher,
    words: Words,
    home: Path,
    exit_code: int,
    to_log: str,
    to_engine: bytes,
    said: str,
) -> None:
    writes_when_started(fake, home, to_log)
    fake.own_logs["small-pretrain"] = to_engine
    fake.plans["small-pretrain"] = (0, exit_code)
    printed = launch(*words, "--gpus", "none", status=min(exit_code, 2) if exit_code < 100 else 1)
    assert printed.out == "small-pretrain: starting\n" + "small-pretrain: done\n" * (exit_code == 0)
    assert printed.err == said
    assert fake.names == (["small-pretrain"] if exit_code in (0, 143) else [])


def test_following(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    writes_when_started(fake, home, "step 1\nstep 2\n")
    fake.plans["small-pretrain"] = (0, 143)
    said = launch(*words, "-f", status=143)
    assert said.out == "step 1\nstep 2\n"
    assert said.err == "small-pretrain: stopped\n"


@pytest.mark.parametrize(("waits_in", "flags"), [("follow_output", ["--follow"]), ("control.settle", [])])
def test_ctrl_c_leaves_it_running(
    fake: FakeEngine, launch: Launcher, words: Words, monkeypatch: pytest.MonkeyPatch, waits_in: str, flags: list[str]
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"nystromformer.container.commands.{waits_in}", interrupt)
    said = launch(*words, *flags, status=130)
    assert "small-pretrain is still running; `launch.py stop small-pretrain` ends it" in said.err
    assert fake.state("small-pretrain") == "running"


def test_dry_run(fake: FakeEngine, launch: Launcher, words: Words, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = launch(*words, "--gpus", "0,1", "--dry_run").out
    assert fake.changes == []
    assert line.startswith("docker run --detach \\\n  --name small-pretrain \\\n")
    assert "--gpus '\"device=0,1\"'" in line
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/sock")
    assert launch(*words, "--gpus", "0,1", "--dry_run").out == line, "no engine is needed"
    queued = launch("queue", *words[1:], "--gpus", "0,1", "--dry_run").out
    assert "--name small-pretrain" in queued
    assert "--gpus '\"device=0\"' " in queued


def test_logs(fake: FakeEngine, launch: Launcher, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = fake.add("run", home, command="python3 /code/run_pretrain.py >> /model/log.txt 2>&1")
    assert "log.txt: no log yet" in launch.refused("logs", "run")
    (home / "log.txt").write_text("".join(f"line {number}\n" for number in range(30)))
    assert launch("logs", "small").out.count("\n") == 30

    def end() -> None:
        with (home / "log.txt").open("a") as file:
            file.write("the last\n")
        fake.end(identity, 0)

    monkeypatch.setattr("nystromformer.container.output.time.sleep", lambda seconds: end())
    said = launch("logs", "-f", "run")
    assert said.out.splitlines() == [f"line {number}" for number in range(10, 30)] + ["the last"]
    assert said.err == "run: done\n"
    fake.add("again", home, command="python3 /code/run_glue.py >> /model/log.txt 2>&1", status="exited")
    assert "has several containers; name one of run, again" in launch.refused("logs", "small")


def test_logs_that_the_engine_has(fake: FakeEngine, launch: Launcher, home: Path) -> None:
    fake.add("run", home, command="python3 /code/run_pretrain.py", status="exited", exit_code=3)
    fake.own_logs["run"] = b"one\ntwo\n"
    assert launch("logs", "run", "--tail", "1").out == "two\n"
    assert launch("logs", "-f", "run", status=3).out == "one\ntwo\n"


def test_on_another_machine(
    remote: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = Launcher(remote.url, monkeypatch, capsys)
    launch("pretrain", "nystrom-512", "--remote_root", "/srv/clone", "--dataset", "/data/rows")
    sources = {mount["Target"]: mount["Source"] for mount in remote.created["HostConfig"]["Mounts"]}
    assert sources == {"/model": "/srv/clone/nystrom-512", "/code": "/srv/clone/code", "/dataset": "/data/rows"}
    name, log = "nystrom-512-pretrain", "/model/pretrain.txt"
    assert "Could not find the file" in launch.refused("logs", name)
    remote.archives[name, log] = b"one\ntwo\nthree\n"
    assert launch("logs", name, "--tail", "2").out == "two\nthree\n"
    remote.answers[f"tail -n 20 -F {log}"] = b"three\nfour\n"
    remote.when("POST", "/exec/", lambda: remote.end(remote.find(name) or "", 0))
    said = launch("logs", "-f", name)
    assert (said.out, said.err) == ("three\nfour\n", f"{name}: done\n")
    assert launch("logs", "-f", name).out == "one\ntwo\nthree\n"
    remote.plans["nystrom-512-glue"] = (0, 2)
    remote.archives["nystrom-512-glue", "/model/glue.txt"] = b"".join(b"line %d\n" % number for number in range(100))
    said = launch("glue", "nystrom-512", "--task", "MRPC", "--glue", "hub", status=2)
    assert said.err.splitlines()[1:] == [f"line {number}" for number in range(80, 100)], "not of all earlier starts"


def test_stop(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    launch(*words)
    (home / "model").mkdir()
    (home / "model" / "cp-0000.cp").touch()
    said = launch("stop", "small").out
    assert said == f"small-pretrain: stopped; its last checkpoint is {home / 'model' / 'cp-0000.cp'}\n"
    (request,) = fake.sent("POST", "/containers/[^/]+/stop")
    assert request.query == {"t": "300"}, "what the container was made with"


@pytest.mark.parametrize(("verb", "said"), [("stop", "stopped"), ("kill", "killed")])
def test_ends_and_resumes(fake: FakeEngine, launch: Launcher, words: Words, home: Path, verb: str, said: str) -> None:
    launch(*words, "--gpus", "0")
    assert launch(verb, "small-pretrain").out == f"small-pretrain: {said}\n"
    fake.requests.clear()
    assert launch("resume", "small").out.startswith("small-pretrain: starting on GPU 0\n")
    assert fake.names == ["small-pretrain"]
    assert [change.rsplit("/", 1)[1] for change in fake.changes] == ["start"], "the same container"
    fake.add("by-hand", home, removes_itself=True, script="/code/run_glue.py")
    assert launch(verb, "by-hand").out == "by-hand: ended\n"


def test_a_resume_that_fails_can_be_tried_again(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    launch(*words)
    launch("kill", "small")
    (home / "pretrain.txt").write_text("of the first start\n")
    fake.plans["small-pretrain"] = (0, 2)
    said = launch("resume", "small", status=2)
    assert said.err == "error: small-pretrain failed (2):\nit wrote nothing\n"
    del fake.plans["small-pretrain"]
    launch("resume", "small")
    assert fake.state("small-pretrain") == "running"


def test_all_of_them(fake: FakeEngine, launch: Launcher, tmp_path: Path) -> None:
    for name, status, exit_code in (("a", "running", 0), ("b", "exited", 1), ("c", "exited", 0), ("d", "running", 0)):
        write_experiment(tmp_path / name)
        fake.add(name, tmp_path / name, status=status, exit_code=exit_code)
    fake.add("w", tmp_path / "w", status="created", labels={QUEUE_LABEL: WAITING})
    fake.add("web", "/srv", target="/srv", command="nginx")

    def states() -> dict[str, str]:
        return {job.name: job.state for job in find_jobs(connected(fake))}

    launch("kill", "--all")
    assert states() == {"a": "killed", "b": "failed (1)", "c": "done", "d": "killed", "w": "waiting"}
    launch("resume", "--all")
    assert states() == {"a": "running", "b": "running", "c": "done", "d": "running", "w": "waiting"}
    launch("stop", "b")
    launch("remove", "--all")
    assert states() == {"a": "running", "d": "running", "w": "waiting"}, "those that run and those that wait stay"
    assert launch("stop", "--all").out.count("stopped") == 2
    assert states() == {"a": "stopped", "d": "stopped"}
    assert fake.state("web") == "running"


def test_waiting_for_a_run_to_settle(fake: FakeEngine, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = connected(fake), SimpleNamespace(now=0.0, each=lambda: None)

    def sleep(seconds: float) -> None:
        clock.now += 5 * seconds  # so that it is looked at less often
        clock.each()

    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    identity = fake.add("run", home)
    (job,) = find_jobs(engine)
    assert control.settle(engine, job, lambda now: False).is_active
    assert clock.now == pytest.approx(60, abs=3), "silent: torch may take that long to be imported"
    clock.now = 0
    assert control.settle(engine, job, lambda now: clock.now >= 20).is_active
    assert clock.now == pytest.approx(20, abs=3), "at work: nothing to wait for"
    clock.each = lambda: fake.end(identity, 2)
    assert control.settle(engine, job, lambda now: False).exit_code == 2
    assert clock.now < 25, "ended: nothing to wait for"
    clock.each = lambda: fake.containers.pop(identity)
    with pytest.raises(UserError, match="run: somebody else removed the container"):
        control.settle(engine, job, lambda now: False)


def test_dockers_words(fake: FakeEngine, launch: Launcher, tmp_path: Path) -> None:
    for name, status, exit_code in (("done", "exited", 0), ("killed", "exited", 137), ("going", "running", 0)):
        fake.add(name, tmp_path / name, status=status, exit_code=exit_code)
    for words, number in ((["ps", "-a"], 3), (["ls", "-a"], 3), (["ls"], 2), (["ps", "--all"], 3)):
        listed = [line.split()[0] for line in launch(*words).out.splitlines()[1:]]
        assert listed == ["done", "killed", "going"][-number:]
    launch("rm", "done")
    launch("start", "killed")
    assert fake.names == ["killed", "going"]
    assert fake.state("killed") == "running"
    for option in ("-t", "--time", "--timeout"):
        fake.start(fake.find("going") or "")
        launch("stop", option, "5", "going")
        assert fake.sent("POST", "/containers/[^/]+/stop")[-1].query == {"t": "5"}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        *((["-n", "1"], "three\n"), (["-n2"], "two\nthree\n"), (["--tail", "0"], "")),
        *((["--tail", many], "one\ntwo\nthree\n") for many in ("all", "9" * 30)),
        *((["-n", wrong], None) for wrong in ("-1", "some", "1.5")),
    ],
)
def test_the_last_lines(fake: FakeEngine, launch: Launcher, home: Path, words: list[str], shown: str | None) -> None:
    fake.add("run", home)
    (home / "run_pretrain.txt").write_text("one\ntwo\nthree\n")
    if shown is None:
        assert f"expected a number of lines, or all, found {words[-1]}" in launch.refused("logs", *words, "run")
    else:
        assert launch("logs", *words, "run").out == shown


def test_help_says_what_is_passed_on(launch: Launcher) -> None:
    said = launch("--help").out
    helps: dict[str, str] = {}
    for name in (*SCRIPTS, "preprocess", "queue", "ps", "logs", "stop", "kill", "resume", "remove", "build"):
        assert re.search(rf"^  {name} ", said, re.MULTILINE)
        helps[name] = launch(name, "--help").out
        assert helps[name].startswith(f"Usage: launch.py {name}")
    for name, function in FUNCTIONS.items():
        own, _, passed = helps[name].partition(f"Options passed on to {name}:")
        flags = {flag for each in get_command(cli.application(function)).params for flag in each.opts}
        assert set(re.findall(r"^  (--\w+)", passed, re.MULTILINE)) == flags - {"--model", "--help"}
        assert "--gpus" in own
    assert "Options passed on to pretrain" in helps["queue"]


def test_as_a_process(fake: FakeEngine, tmp_path: Path) -> None:
    done = subprocess.run(
        script("code/launch.py", "ps"),
        env={**os.environ, "DOCKER_HOST": fake.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "no containers of this project\n", "")
