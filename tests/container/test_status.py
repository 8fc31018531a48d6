"""The table of `launch.py ps`."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Launcher, connected, fake_engine
from small import write_experiment

from nystromformer.container.engine import Engine
from nystromformer.container.jobs import Job, find_jobs
from nystromformer.container.progress import LoggedProgress
from nystromformer.container.status import ended_by_stop, interval, progress_of_job, state, table
from nystromformer.training.log import RunLog

JOB = Job(
    id="1" * 64,
    name="a-pretrain",
    command="pretrain",
    home="/home/x/a",
    home_target="/model",
    output="/model/pretrain.txt",
    status="running",
    exit_code=0,
    created="",
    started=0.0,
    health="",
    gpus="all",
    out_of_memory=False,
    stop_seconds=300,
    labels={},
)
PROGRESS = LoggedProgress(1200, 500_000, 3.14159, 123_456.7, 93_784.4, None, "/model/model/log.jsonl")


@pytest.fixture
def remote() -> Iterator[FakeEngine]:
    with fake_engine(tcp=True) as engine:
        yield engine


def test_table() -> None:
    rows = [
        (JOB, PROGRESS),
        (
            replace(JOB, name="b", status="exited", gpus="0,1", home="/home/x/much-longer"),
            replace(PROGRESS, steps=None),
        ),
        (replace(JOB, name="c", command="validate", status="exited", exit_code=2), None),
        (replace(JOB, name="d"), LoggedProgress(0, 5, None, None, None, None, "log")),
    ]
    assert table(rows).splitlines() == [
        "CONTAINER   EXPERIMENT   COMMAND   STATE       GPU         STEP   LOSS  TOKENS/S       LEFT",
        "a-pretrain  a            pretrain  running     all  1200/500000  3.142   123,457  1 d 02:03",
        "b           much-longer  pretrain  done        0,1         1200  3.142   123,457          -",
        "c           a            validate  failed (2)  all            -      -         -          -",
        "d           a            pretrain  running     all          0/5      -         -          -",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (61, "1:01"),
        (3599.7, "1:00:00"),
        (3661, "1:01:01"),
        (86_399, "23:59:59"),
        (86_399.5, "1 d 00:00"),
        (266_460, "3 d 02:01"),
    ],
)
def test_interval(seconds: float, text: str) -> None:
    assert interval(seconds) == text


@pytest.mark.parametrize(
    ("status", "exit_code", "stopped_by", "words"),
    [
        ("exited", 143, None, "stopped"),
        ("exited", 130, None, "stopped"),
        ("exited", 1, "SIGTERM", "stopped"),
        ("exited", 1, None, "failed (1)"),
        ("exited", 137, None, "killed"),
        ("running", 0, "SIGTERM", "running"),
    ],
    ids=["SIGTERM", "SIGINT", "torchrun's status, a stop in the log", "failure", "kill", "not ended yet"],
)
def test_stopped_or_failed(status: str, exit_code: int, stopped_by: str | None, words: str) -> None:
    job = replace(JOB, status=status, exit_code=exit_code)
    progress = replace(PROGRESS, stopped_by=stopped_by)
    assert state(job, progress) == words
    assert ended_by_stop(job, progress) == (words == "stopped")
    if stopped_by is None:
        assert state(job, None) == words


def log_of(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    log = RunLog(folder, 0, 40)
    log.event("start", 0, num_steps=40)
    log.train(step, 0, {"loss": 1.0}, {"tokens_per_second": 500.0, "memory_mib": 1.0})
    log.close()


def only_job(engine: Engine) -> Job:
    (job,) = find_jobs(engine)
    return job


@pytest.mark.parametrize(
    ("script", "below", "step"),
    [
        ("/code/run_pretrain.py", "", 7),
        ("/code/run_glue.py", "glue/SST-2/run", 7),
        ("/code/run_imdb.py", "imdb/run", 7),
        ("/code/run_wikihop.py", "wikihop/run", 7),
        ("/code/run_validation.py", "", None),
        ("/code/run_report.py", "", None),
    ],
)
def test_each_script_has_its_logs(fake: FakeEngine, tmp_path: Path, script: str, below: str, step: int | None) -> None:
    write_experiment(tmp_path)
    log_of(tmp_path / "model" / below, 7)
    fake.add("run", tmp_path, script=script)
    engine = connected(fake)
    progress = progress_of_job(engine, only_job(engine))
    assert (None if progress is None else progress.step) == step


def test_checkpoints_elsewhere_below_the_experiment(fake: FakeEngine, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("{", '{"model_checkpoints": "/model/other/place",', 1))
    log_of(experiment.folder / "other" / "place", 3)
    fake.add("run", tmp_path)
    engine = connected(fake)
    progress = progress_of_job(engine, only_job(engine))
    assert progress is not None
    assert progress.step == 3


def test_a_folder_without_a_config_any_more(fake: FakeEngine, tmp_path: Path) -> None:
    log_of(tmp_path / "model", 3)
    fake.add("run", tmp_path)
    engine = connected(fake)
    assert progress_of_job(engine, only_job(engine)) is not None


def test_what_waits_or_preprocesses_has_none(fake: FakeEngine, tmp_path: Path) -> None:
    log_of(tmp_path / "model", 3)
    fake.add("waiting", tmp_path, status="created")
    engine = connected(fake)
    job = only_job(engine)
    assert progress_of_job(engine, job) is None
    assert progress_of_job(engine, replace(job, started=0.0, home_target="/data-preprocessing")) is None


ASKED = "python3 -m nystromformer.container.progress /model/model "


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        (PROGRESS.to_json().encode(), 1200),
        (b"null", None),
        (b"", None),
        (b"{", None),
        (b'{"another": "version"}', None),
        (b"\xff{", None),
    ],
)
def test_through_the_engine(remote: FakeEngine, answer: bytes, step: int | None) -> None:
    remote.add("run", "/there/nystrom-512")
    engine = connected(remote)
    job = only_job(engine)
    remote.answers[f"{ASKED}{job.started}"] = answer
    progress = progress_of_job(engine, job)
    assert (None if progress is None else progress.step) == step
    (request,) = remote.sent("POST", "/containers/[^/]+/exec")
    assert request.body["Cmd"][-2] == "/model/model"


def test_through_the_engine_only_what_runs(remote: FakeEngine) -> None:
    identity = remote.add("run", "/there/nystrom-512")
    engine = connected(remote)
    job = only_job(engine)
    remote.end(identity, 0)
    assert progress_of_job(engine, job) is None, "it ended while it was asked"
    assert progress_of_job(engine, only_job(engine)) is None
    assert len(remote.sent("POST", "/containers/[^/]+/exec")) == 1


def test_what_has_no_steps_is_not_asked(remote: FakeEngine) -> None:
    remote.add("run", "/there/nystrom-512", script="/code/run_validation.py")
    engine = connected(remote)
    assert progress_of_job(engine, only_job(engine)) is None
    assert not remote.sent("POST", "/containers/[^/]+/exec")


def test_ps(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = Launcher(fake.url, monkeypatch, capsys)
    assert launch("ps").out == "no containers of this project\n"
    fake.add("old", tmp_path / "old", status="exited")
    assert launch("ps").out == "no containers of this project, but 1 that are done (--all)\n"
    write_experiment(tmp_path / "new")
    log_of(tmp_path / "new" / "model", 7)
    fake.add("new", tmp_path / "new", script="/code/run_pretrain.py")
    fake.add("web", "/srv", target="/srv", command="nginx")
    shown = rows(launch("ps").out)
    assert [row["CONTAINER"] for row in shown] == ["new"]
    assert (shown[0]["STATE"], shown[0]["STEP"], shown[0]["LOSS"], shown[0]["TOKENS/S"]) == (
        "running",
        "7/40",
        "1",
        "500",
    )
    assert [row["CONTAINER"] for row in rows(launch("ps", "--all").out)] == ["old", "new"]


def rows(printed: str) -> list[dict[str, Any]]:
    head, *lines = printed.splitlines()
    return [dict(zip(head.split(), line.split(), strict=True)) for line in lines]


def test_a_clock_that_moved(fake: FakeEngine, tmp_path: Path) -> None:
    """A log that is older than the container says nothing about it."""
    write_experiment(tmp_path)
    log_of(tmp_path / "model", 7)
    fake.add("run", tmp_path)
    engine = connected(fake)
    job = only_job(engine)
    assert progress_of_job(engine, replace(job, started=time.time() + 60)) is None
