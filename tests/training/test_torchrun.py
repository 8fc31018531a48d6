"""What is seen last where several processes end: a sentence and the right status, whoever got which signal."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from processes import processes_of, wait_for
from small import ROOT, write_experiment
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from nystromformer.command_line import torchrun
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import find_checkpoints
from nystromformer.training.stop import StopSignal

STEPS = 100_000
"""More than anybody waits for."""


@pytest.fixture(autouse=True)
def handlers_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, torchrun.MISTAKE)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def launched(monkeypatch: pytest.MonkeyPatch, main: Callable[[], None]) -> int:
    """The launcher's status where this is PyTorch's part of the work."""
    monkeypatch.setattr("torch.distributed.run.main", lambda flags: main())
    return torchrun.launch(["script.py"])


def failure(status: int) -> Callable[[], NoReturn]:
    def main() -> NoReturn:
        raise ChildFailedError("script.py", {3: ProcessFailure(3, 1, status, "<N/A>")})

    return main


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_counts(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    ended = []

    def main() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            for other in (signal.SIGTERM, signal.SIGINT, number):
                os.kill(os.getpid(), other)
            ended.append("waited for the processes")

    assert launched(monkeypatch, main) == 128 + number
    assert ended
    assert capsys.readouterr().err.startswith(f"stopped by {number.name}: ")


def test_a_signal_before_pytorch_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torchrun, "_launch", lambda flags, signals: os.kill(os.getpid(), signal.SIGTERM))
    assert torchrun.launch([]) == 143
    assert capsys.readouterr().err.startswith("stopped by SIGTERM: ")


def test_nohup_is_left_alone() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    torchrun.OneSignal()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("status", "expected", "word"), [(2, 2, "exit status 2"), (1, 1, "exit status 1"), (-9, 137, "SIGKILL")]
)
def test_a_failure_has_the_status_of_the_first_process(
    status: int, expected: int, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launched(monkeypatch, failure(status)) == expected
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"process 3 ended with {word}" in said


def test_a_mistake_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    passed_on = []

    def main() -> None:
        try:
            os.kill(os.getpid(), torchrun.MISTAKE)
            time.sleep(10)
        except Exception as error:
            passed_on.append(error.sigval)  # type: ignore[attr-defined]
            raise

    assert launched(monkeypatch, main) == 2
    assert passed_on == [signal.SIGTERM], "which ends the processes"
    assert capsys.readouterr().err.startswith("error: ")


def test_what_fails_because_of_a_stop_is_a_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            raise RendezvousConnectionError("The connection to the C10d store has failed.")

    assert launched(monkeypatch, main) == 143
    assert capsys.readouterr().err.startswith("stopped by SIGTERM: ")


@pytest.mark.parametrize(("number", "said"), [("0", "expected at least 1, found 0"), ("x", "nproc_per_node value: x")])
def test_flags_of_the_launcher(number: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert torchrun.launch(["--standalone", "--nproc_per_node", number, "script.py"]) == 2
    told = capsys.readouterr().err
    assert "error: torchrun's flags: " in told
    assert said in told


def test_machines_that_lose_each_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> NoReturn:
        raise RendezvousConnectionError("The connection to the C10d store has failed.")

    assert launched(monkeypatch, main) == 1
    assert "--rdzv_endpoint" in capsys.readouterr().err


def test_that_others_left_first_is_no_news(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        logger = logging.getLogger("torch.distributed.elastic.agent.server.api")
        logger.error("Error waiting on exit barrier. Elapsed: %s seconds", 0.02)
        logger.error("something else")

    assert launched(monkeypatch, main) == 0
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_what_is_no_users_doing_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> NoReturn:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        launched(monkeypatch, main)


def test_only_the_launcher_that_started_the_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *words: told.append(words))
    monkeypatch.delenv(torchrun.LAUNCHER, raising=False)
    torchrun.tell_launcher(15)
    monkeypatch.setenv(torchrun.LAUNCHER, f"{os.getppid() + 1}")
    torchrun.tell_launcher(15)
    torchrun.tell_launcher_of_mistake()
    assert not told
    monkeypatch.setenv(torchrun.LAUNCHER, f"{os.getppid()}")
    torchrun.tell_launcher(15)
    torchrun.tell_launcher_of_mistake()
    assert told == [(os.getppid(), 15), (os.getppid(), torchrun.MISTAKE)]


def test_only_the_process_that_spoke_tells_of_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(os, "kill", lambda *words: pytest.fail("told"))
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setenv(torchrun.LAUNCHER, f"{os.getppid()}")
    monkeypatch.setenv("LOCAL_RANK", "1")
    torchrun.tell_launcher_of_mistake()
    assert waited


@pytest.mark.parametrize("patient", [True, False])
def test_after_a_stop_one_of_several_processes_is_not_ended_before_the_others(patient: bool) -> None:
    with StopSignal(patient=patient) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received
    assert (signal.getsignal(signal.SIGTERM) is signal.SIG_IGN) == patient


class Launchers:
    """Launchers of a run, each in a session of its own, as on several machines."""

    def __init__(self, folder: Path, dataset_folder: Path) -> None:
        self.folder = folder
        self.dataset_folder = dataset_folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        script = [ROOT / "code/run_pretrain.py", "--model", self.folder, "--dataset", self.dataset_folder]
        words = [sys.executable, ROOT / "code/torchrun.py", *flags, *script, "--device", "cpu"]
        with self.output(len(self.started)).open("wb") as out:
            process = subprocess.Popen([str(word) for word in words], stdout=out, stderr=out, start_new_session=True)
        self.started.append(process)
        return process

    def output(self, number: int) -> Path:
        return self.folder / f"launcher-{number}.txt"

    def said(self, number: int = 0) -> str:
        return self.output(number).read_text()

    def workers(self, number: int = 0) -> list[int]:
        launcher = self.started[number].pid
        return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]

    def is_under_way(self) -> bool:
        log = self.folder / "model" / "log.jsonl"
        return any(each.poll() is not None for each in self.started) or (
            log.exists() and '"step": 5,' in log.read_text()
        )


@pytest.fixture
def launchers(tmp_path: Path, dataset_folder: Path) -> Iterator[Launchers]:
    settings = {"batch_size": 16, "batches_per_report": 1, "batches_per_epoch": STEPS}
    write_experiment(tmp_path, **{f"pretraining_setting__{key}": value for key, value in settings.items()})
    launchers = Launchers(tmp_path, dataset_folder)
    yield launchers
    for process in launchers.started:
        for each in processes_of(process.pid) + (launchers.workers(0) if process.poll() is None else []):
            os.kill(each, signal.SIGKILL)
        process.wait()


def assert_stopped(launchers: Launchers, number: signal.Signals) -> None:
    for index, process in enumerate(launchers.started):
        assert process.wait(timeout=120) == 128 + number, launchers.said(index)
        said = launchers.said(index)
        assert said.splitlines()[-1].startswith(f"stopped by {number.name}: "), said
        assert "Traceback" not in said
    newest = read_checkpoint(find_checkpoints(launchers.folder / "model")[-1].path)
    assert f"stopped by {number.name} after step {newest['step']};" in launchers.said()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["launcher", "launcher, by Ctrl-C", "all, twice", "one worker"])
def test_stops_of_a_real_run(whom: str, launchers: Launchers) -> None:
    process = launchers.start("--standalone", "--nproc_per_node", "2", "--max_restarts", "3")
    wait_for(launchers.is_under_way, 120)
    number = signal.SIGINT if "Ctrl-C" in whom else signal.SIGTERM
    pids = {"all, twice": [process.pid, *launchers.workers()] * 2, "one worker": launchers.workers()[1:]}
    for pid in pids.get(whom, [process.pid]):
        os.kill(pid, number)
    assert_stopped(launchers, number)


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_stop_of_one_machine_stops_the_other_for_good(signalled: int, launchers: Launchers) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(2):
        endpoint = ("--rdzv_backend", "c10d", "--rdzv_id", "x", "--rdzv_endpoint", f"127.0.0.1:{port}")
        launchers.start("--nnodes", "2", "--nproc_per_node", "1", "--max_restarts", "3", *endpoint)
    wait_for(launchers.is_under_way, 120)
    os.kill(launchers.started[signalled].pid, signal.SIGTERM)
    for index, process in enumerate(launchers.started):
        assert process.wait(timeout=120) == 143, launchers.said(index)
        assert launchers.said(index).splitlines()[-1].startswith("stopped by SIGTERM: ")
        assert "Traceback" not in launchers.said(index)


@pytest.mark.slow
def test_a_mistake_ends_with_its_status(launchers: Launchers, tmp_path: Path) -> None:
    launchers.dataset_folder = tmp_path / "nowhere"
    flags = ("--standalone", "--nproc_per_node", "2", "--max_restarts", "3")
    assert launchers.start(*flags).wait(timeout=120) == 2
    assert launchers.said().count("error: ") == 2, "one process', and the launcher's last word"
    assert "expected a dataset folder" in launchers.said()
    assert "Traceback" not in launchers.said()
