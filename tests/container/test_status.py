"""The table of `launch.py ps`."""

import json
import os
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Launcher, connected
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


WORK = LoggedProgress(0, None, None, 60_000.0, 75.0, "wiki: 3.0/9.0 MB")


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
    ("job", "progress", "now", "ending"),
    [
        (
            replace(JOB, command="validate", status="exited", exit_code=2),
            None,
            119,
            "119s         0         -     -         -     -  a mistake in config, data or flags, which its log names",
        ),
        (replace(JOB, command="preprocess wiki"), WORK, 120, "2min         0  wiki: 3.0/9.0 MB     -    60,000  1:15"),
        # It has done more than it said last.
        (
            replace(JOB, command="validate", status="exited"),
            WORK,
            172_800,
            "2d         0         -     -         -     -",
        ),
        (JOB, None, -5, "0s         0         -     -         -     -"),
    ],
)
def test_rows(job: Job, progress: LoggedProgress | None, now: float, ending: str) -> None:
    assert table([(job, progress)], MADE + now).endswith("  " + ending)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (3599.7, "1:00:00"),
        (86_399, "23:59:59"),
        (86_399.5, "1 d 00:00"),
        (266_460, "3 d 02:01"),
    ],
)
def test_interval(seconds: float, text: str) -> None:
    assert interval(seconds) == text


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


@pytest.mark.parametrize(
    ("script", "target"),
    [("/code/run_validation.py", "/model"), ("/data-preprocessing/wiki/preprocess.py", "/data-preprocessing")],
)
def test_commands_without_steps_tell_it_in_their_logs(
    fake: FakeEngine, remote: FakeEngine, tmp_path: Path, script: str, target: str
) -> None:
    write_experiment(tmp_path)
    log_of(tmp_path / "model", 7)  # of the pretraining
    fake.add("run", tmp_path, script=script, target=target)
    assert progress_in(fake) is None, "nothing yet"
    log = tmp_path / f"{Path(script).stem}.txt"
    log.write_text("10:00:00 it: 2 of 3 batches, 0:07 left\n")
    assert progress_in(fake) == LoggedProgress(work="it: 2/3 batches", seconds_left=pytest.approx(7, abs=2))
    os.utime(log, (0, 0))
    assert progress_in(fake) is None, "of an earlier start"
    remote.add("run", "/there", script=script, target=target)
    assert progress_in(remote) is None
    (request,) = remote.sent("POST", "/containers/[^/]+/exec")
    assert request.body["Cmd"][-2] == f"{target}/{Path(script).stem}.txt"


ASKED = "python3 -m nystromformer.container.progress /model/model "


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        (json.dumps(asdict(PROGRESS)).encode(), 1200),
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
