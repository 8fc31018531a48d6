"""A container is well while the log that its processes write to is young."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from container_engine import Engine
from small import ROOT

from nystromformer.container.health import LIMIT_VARIABLE
from nystromformer.container.health import judge as judge_by

HOUR = 3600.0


def judge(minutes: float, proc: Path) -> tuple[bool, str]:
    return judge_by({LIMIT_VARIABLE: str(minutes)}, proc)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc without processes but for process 1, which has been running for two hours and writes to no file."""
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "uptime").write_text("500000.25 900000.00\n")
    (folder / "cmdline").write_text("")
    add_process(folder, 1, stdout=Path("/dev/null"))
    set_running(folder, 2 * HOUR)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "pretrain.txt"


def add_process(proc: Path, number: int, stdout: Path, stderr: Path = Path("/dev/null")) -> None:
    (proc / str(number) / "fd").mkdir(parents=True)
    (proc / str(number) / "fd" / "0").symlink_to("/dev/null")
    (proc / str(number) / "fd" / "1").symlink_to(stdout)
    (proc / str(number) / "fd" / "2").symlink_to(stderr)


def set_running(proc: Path, seconds: float, name: str = "python3") -> None:
    started = round((500000.25 - seconds) * os.sysconf("SC_CLK_TCK"))
    before = "S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0"
    (proc / "1" / "stat").write_text(f"1 ({name}) {before} {started} 1234567 890\n")


def write(path: Path, age: float) -> Path:
    path.write_text("{}\n")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


@pytest.mark.parametrize(
    ("limit", "minutes", "healthy"),
    [
        *(("30", 47, False), ("48", 47, True), ("20.5", 29, False)),
        *((default, minutes, minutes < 30) for default in (None, "") for minutes in (29, 31)),
    ],
)
def test_a_log_may_be_half_an_hour_old_unless_it_is_set(
    proc: Path, log: Path, limit: str | None, minutes: int, healthy: bool
) -> None:
    add_process(proc, 7, write(log, age=minutes * 60), log)
    # Those that end, or are others', are passed over.
    (proc / "8").mkdir()
    add_process(proc, 9, proc / "gone")
    is_healthy, message = judge_by({} if limit is None else {LIMIT_VARIABLE: limit}, proc)
    assert is_healthy is healthy
    assert message.startswith(f"{log} was last written {minutes} minutes ago")
    assert message.endswith(f", more than {limit or 30}") is not healthy


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf", "half an hour"])
def test_a_limit_that_is_no_positive_number_is_said(proc: Path, value: str) -> None:
    said = f"{LIMIT_VARIABLE}: expected a positive number of minutes, found {value!r}"
    assert judge_by({LIMIT_VARIABLE: value}, proc) == (False, said)


@pytest.mark.parametrize("kind", ["none", "a pipe", "the check's own"])
def test_without_a_log_there_is_nothing_to_judge_by(proc: Path, log: Path, tmp_path: Path, kind: str) -> None:
    if kind == "a pipe":
        os.mkfifo(tmp_path / "pipe")
        os.utime(tmp_path / "pipe", (0, 0))
        add_process(proc, 7, tmp_path / "pipe", Path("pipe:[4711]"))
    elif kind == "the check's own":
        add_process(proc, os.getpid(), write(log, age=9 * HOUR))
    is_healthy, message = judge(30, proc)
    assert is_healthy
    assert "no log" in message


def test_the_newest_of_all_logs_counts_whoever_writes_it(proc: Path, log: Path, tmp_path: Path) -> None:
    add_process(proc, 7, write(log, age=5 * HOUR))
    other = write(tmp_path / "other.txt", age=40 * 60)
    add_process(proc, 12, Path("/dev/null"), stderr=other)
    assert judge(30, proc)[1] == f"{other} was last written 40 minutes ago, more than 30"
    write(other, age=0)
    assert judge(30, proc)[0]


@pytest.mark.parametrize("name", ["bash", "a) S 1 (b", "docker-init"])
def test_an_earlier_starts_log_says_nothing(proc: Path, log: Path, name: str) -> None:
    add_process(proc, 7, write(log, age=24 * HOUR))
    set_running(proc, seconds=29 * 60, name=name)
    is_healthy, message = judge(30, proc)
    assert is_healthy
    assert "has been running for only 29" in message
    set_running(proc, seconds=31 * 60, name=name)
    assert not judge(30, proc)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_real_processes(log: Path, tmp_path: Path) -> None:
    with log.open("w") as file, subprocess.Popen(["sleep", "60"], stdout=file, stderr=file) as process:
        try:
            # Only ours of the processes here: others write to files as well.
            proc = tmp_path / "proc"
            proc.mkdir()
            (proc / "1").symlink_to(f"/proc/{process.pid}")
            (proc / "uptime").symlink_to("/proc/uptime")
            write(log, age=2 * HOUR)
            assert "has been running for only 0" in judge(1, proc)[1]
            time.sleep(0.1)
            is_healthy, message = judge(0.05 / 60, proc)
            assert not is_healthy
            assert message.startswith(f"{log} was last written 120 minutes ago")
            log.unlink()
            assert not judge(0.05 / 60, proc)[0], "a deleted file is still written to"
        finally:
            process.kill()


def test_the_command_needs_the_standard_library_only() -> None:
    code = "import sys, nystromformer.container.health; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'code')!r}); {code}"]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    ours = {name for name in modules if name.startswith("nystromformer")}
    assert ours == {"nystromformer", "nystromformer.container", "nystromformer.container.health"}
    assert {name.partition(".")[0] for name in modules} - ours <= {*sys.stdlib_module_names, "__main__"}


@pytest.mark.engine
def test_in_a_container(engine: Engine, log: Path, tmp_path: Path) -> None:
    log.write_text("")
    container = engine.client.containers.run(
        engine.image,
        ["/bin/bash", "-c", "exec sleep 100 >> /model/pretrain.txt 2>&1"],
        volumes=[f"{ROOT / 'code'}:/code:ro", f"{tmp_path}:/model"],
        user=f"{tmp_path.stat().st_uid}",
        network_mode="host",
        init=True,
        detach=True,
    )
    try:
        command = ["python3", "-m", "nystromformer.container.health"]
        status, output = container.exec_run(command)
        assert (status, output.strip()) == (0, b"/model/pretrain.txt was last written 0 minutes ago")
        write(log, age=2 * HOUR)
        status, output = container.exec_run(command)
        assert (status, b"for only 0" in output) == (0, True)
        status, output = container.exec_run(command, environment={LIMIT_VARIABLE: "0.001"})
        assert status == 1
        assert output.startswith(b"/model/pretrain.txt was last written 120 minutes ago, more than 0.001")
    finally:
        container.remove(force=True)
