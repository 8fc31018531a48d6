"""The table of `launch.py ps`."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Launcher, connected, fake_engine
from small import write_experiment

from nystromformer.container.engine import Engine
from nystromformer.container.jobs import Job, find_jobs
from nystromformer.container.progress import LoggedProgress
from nystromformer.container.status import ended_by, interval, progress_of_job, table
from nystromformer.tables import display_width
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
    created=datetime(2026, 1, 1, tzinfo=UTC).timestamp(),
    started=0.0,
    health="",
    gpus="all",
    out_of_memory=False,
    stop_seconds=300,
    labels={},
)
PROGRESS = LoggedProgress(1200, 500_000, 3.14159, 123_456.7, 93_784.4)


@pytest.fixture
def remote() -> Iterator[FakeEngine]:
    with fake_engine(tcp=True) as engine:
        yield engine


MADE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def test_table() -> None:
    rows = [
        (JOB, PROGRESS),
        (
            replace(JOB, name="b", status="exited", gpus="0,1", home="/home/x/much-longer", restarts=2),
            replace(PROGRESS, steps=None),
        ),
        (replace(JOB, name="d"), LoggedProgress(0, 5)),
    ]
    assert table(rows, MADE + 7_500).splitlines() == [
        "CONTAINER   EXPERIMENT   COMMAND   STATE    GPU  AGE  RESTARTS     PROGRESS   LOSS  TOKENS/S       LEFT",
        "a-pretrain  a            pretrain  running  all   2h         0  1200/500000  3.142   123,457  1 d 02:03",
        "b           much-longer  pretrain  done     0,1   2h         2         1200  3.142   123,457          -",
        "d           a            pretrain  running  all   2h         0          0/5      -         -          -",
    ]


def test_table_with_what_ended_and_what_has_no_steps() -> None:
    work = LoggedProgress(0, None, None, 60_000.0, 75.0, "wiki: 3.0/9.0 MB")
    rows = [
        (replace(JOB, name="c", command="validate", status="exited", exit_code=2), None),
        (replace(JOB, name="w", command="preprocess wiki", home="/x/data-preprocessing"), work),
        (replace(JOB, name="v", command="validate", status="exited"), work),
    ]
    head, *lines = table(rows, MADE + 119).splitlines()
    assert head.endswith("  ENDED BY")
    nothing = "  119s         0                 -     -         -     -"
    assert lines[0].endswith(nothing + "  a mistake in config, data or flags, which its log names")
    assert lines[1].endswith("running     all  119s         0  wiki: 3.0/9.0 MB     -    60,000  1:15")
    assert lines[2].endswith("done        all" + nothing), "it has done more than it said last"


def test_names_in_any_script_stand_in_their_columns() -> None:
    homes = ["/x/plain", "/x/実験", "/x/Nystro\u0308m", "/x/🙂", "/x/a\nb\x1b[31m"]
    head, *lines = table([(replace(JOB, home=home), PROGRESS) for home in homes], MADE).splitlines()
    assert len(lines) == len(homes)
    assert {display_width(line) for line in (head, *lines)} == {display_width(head)}
    assert {display_width(line[: line.index("  pretrain")]) for line in lines} == {
        display_width(head[: head.index("  COMM")])
    }
    assert "a\\nb\\x1b[31m" in lines[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0, "0s"), (119.4, "119s"), (120, "2min"), (7_199, "119min"), (7_200, "2h"), (172_800, "2d")],
)
def test_age(seconds: float, text: str) -> None:
    (row,) = rows(table([(JOB, None)], MADE + seconds))
    assert row["AGE"] == text


RESUMES = "goes on with `launch.py resume`"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "running"}, ""),
        ({"status": "created"}, ""),
        ({"exit_code": 0}, ""),
        ({"exit_code": 143}, f"SIGTERM (143); {RESUMES}"),
        ({"exit_code": 130}, f"SIGINT (130); {RESUMES}"),
        ({"exit_code": 1}, "an error, which its log names"),
        ({"exit_code": 2}, "a mistake in config, data or flags, which its log names"),
        ({"exit_code": 3}, "exit status 3"),
        ({"exit_code": 127}, "its program, which is not in the image"),
        ({"exit_code": 137}, f"SIGKILL (137): killed, or out of the machine's memory; {RESUMES}"),
        ({"exit_code": 137, "out_of_memory": True}, "the kernel (137): out of the container's memory"),
        ({"exit_code": 135}, "SIGBUS (135); its shared memory may be too small (--shm_size)"),
        ({"exit_code": 139}, "SIGSEGV (139), which its log may explain"),
        ({"exit_code": 255}, "exit status 255"),
        ({"status": "restarting", "exit_code": 1}, "an error, which its log names"),
        ({"status": "created", "exit_code": 128, "fault": "no such\n device: gpu"}, "no such device: gpu"),
        ({"status": "created", "exit_code": 128, "fault": "no device " * 500}, "no device " * 9 + "no device…"),
        ({"status": "running", "fault": "an old one"}, ""),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_ended_it(changes: dict[str, Any], words: str) -> None:
    assert ended_by(replace(JOB, **{"status": "exited", **changes})) == words


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


def log_of(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    log = RunLog(folder, 0, 40)
    log.event("start", 0, num_steps=40)
    log.train(step, 0, {"loss": 1.0}, {"tokens_per_second": 500.0, "memory_mib": 1.0})
    log.close()


def progress_in(fake: FakeEngine) -> LoggedProgress | None:
    """That of its only job."""
    engine = connected(fake)
    return progress_of_job(engine, only_job(engine))


def only_job(engine: Engine) -> Job:
    (job,) = find_jobs(engine)
    return job


@pytest.mark.parametrize(
    ("script", "below", "step"),
    [
        ("/code/run_pretrain.py", "", 7),
        ("/code/run_glue.py", "glue/SST-2/run", 7),
        ("/code/run_imdb.py", "imdb/run", 7),
        ("/code/run_imdb.py", "imdb-from-1024/run", 7),
        ("/code/run_classify.py", "documents/reviews/run", 7),
        ("/code/run_lra.py", "lra/text/run", 7),
        ("/code/run_wikihop.py", "wikihop/run", 7),
        ("/code/run_report.py", "", None),
    ],
)
def test_each_script_has_its_logs(fake: FakeEngine, tmp_path: Path, script: str, below: str, step: int | None) -> None:
    write_experiment(tmp_path)
    log_of(tmp_path / "model" / below, 7)
    fake.add("run", tmp_path, script=script)
    progress = progress_in(fake)
    assert (None if progress is None else progress.step) == step


def test_checkpoints_elsewhere_below_the_experiment(fake: FakeEngine, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("{", '{"model_checkpoints": "/model/other/place",', 1))
    log_of(experiment.folder / "other" / "place", 3)
    fake.add("run", tmp_path)
    progress = progress_in(fake)
    assert progress is not None
    assert progress.step == 3


def test_what_waits_has_none(fake: FakeEngine, tmp_path: Path) -> None:
    log_of(tmp_path / "model", 3)
    fake.add("waiting", tmp_path, status="created")
    assert progress_in(fake) is None


@pytest.mark.parametrize(
    ("script", "target"),
    [("/code/run_validation.py", "/model"), ("/data-preprocessing/wiki/preprocess.py", "/data-preprocessing")],
)
def test_commands_without_steps_tell_it_in_their_logs(
    fake: FakeEngine, tmp_path: Path, script: str, target: str
) -> None:
    write_experiment(tmp_path)
    log_of(tmp_path / "model", 7)  # of the pretraining
    fake.add("run", tmp_path, script=script, target=target)
    assert progress_in(fake) is None, "nothing yet"
    log = tmp_path / f"{Path(script).stem}.txt"
    log.write_text("10:00:00 it: 2 of 3 batches, 0:07 left\n")
    progress = progress_in(fake)
    assert progress is not None
    assert progress.work == "it: 2/3 batches"
    os.utime(log, (0, 0))
    assert progress_in(fake) is None, "of an earlier start"
    (shown,) = rows(
        table([(only_job(connected(fake)), progress)]).replace("it: 2/3 batches", "2/3").replace("preprocess ", "")
    )
    assert shown["PROGRESS"] == "2/3"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_tells_nothing(fake: FakeEngine, tmp_path: Path) -> None:
    write_experiment(tmp_path / "locked" / "run")
    fake.add("run", tmp_path / "locked" / "run")
    engine = connected(fake)
    (tmp_path / "locked").chmod(0)
    assert progress_of_job(engine, only_job(engine)) is None
    (tmp_path / "locked").chmod(0o700)


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


def test_commands_without_steps_are_asked_for_their_logs(remote: FakeEngine) -> None:
    remote.add("run", "/there/nystrom-512", script="/code/run_validation.py")
    assert progress_in(remote) is None
    (request,) = remote.sent("POST", "/containers/[^/]+/exec")
    assert request.body["Cmd"][-2] == "/model/run_validation.txt"


def test_what_has_no_log_is_not_asked(remote: FakeEngine) -> None:
    remote.add("run", "/there/nystrom-512", command="python3 /code/run_validation.py")
    assert progress_in(remote) is None
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
    assert (shown[0]["STATE"], shown[0]["PROGRESS"], shown[0]["LOSS"], shown[0]["TOKENS/S"]) == (
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
