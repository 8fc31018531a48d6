"""Which containers are ours, and what `docker inspect` says of them, by Docker and by Podman."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, connected

from nystromformer.container.jobs import Job, describe, find_job, find_jobs, select_jobs
from nystromformer.container.scripts import COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL
from nystromformer.errors import UserError

NANOSECONDS = "2026-11-21T11:14:38.257055973Z"
SECONDS = 1795259678.0
PRETRAIN = "exec python3 /code/run_pretrain.py >> /model/pretrain.txt 2>&1"


def docker_says(command: str = PRETRAIN, home: str = "/home/x/nystrom-512", **changes: Any) -> dict[str, Any]:
    """`docker inspect` of a running container, shortened; changes are `Section__Key=value`."""
    detail: dict[str, Any] = {
        "Id": "8f3e" * 16,
        "Created": "2026-11-21T11:14:37.9Z",
        "Name": "/pretrain",
        "State": {
            "Status": "running",
            "OOMKilled": False,
            "ExitCode": 0,
            "StartedAt": NANOSECONDS,
            "Health": {"Status": "healthy", "FailingStreak": 0},
        },
        "HostConfig": {
            "DeviceRequests": [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}]
        },
        "Mounts": [
            {"Type": "bind", "Source": f"{home}/../data", "Destination": "/dataset", "RW": True},
            {"Type": "bind", "Source": home, "Destination": "/model", "RW": True},
        ],
        "Config": {
            "Cmd": ["/bin/bash", "-c", command],
            "Entrypoint": None,
            "Labels": {},
            "StopTimeout": 300,
        },
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            detail[section][key] = value
        else:
            detail[section] = value
    return detail


def job(**changes: Any) -> Job:
    described = describe(docker_says(**changes))
    assert described is not None
    return described


def test_a_documented_docker_line() -> None:
    assert job() == Job(
        id="8f3e" * 16,
        name="pretrain",
        command="pretrain",
        home="/home/x/nystrom-512",
        home_target="/model",
        output="/model/pretrain.txt",
        status="running",
        exit_code=0,
        created=SECONDS - 0.1,
        started=SECONDS,
        health="healthy",
        gpus="all",
        out_of_memory=False,
        stop_seconds=300,
        labels={},
    )
    assert job().output_path == Path("/home/x/nystrom-512/pretrain.txt")


def test_podman_has_other_words_for_what_is_not_there() -> None:
    changes = {"Health": {"Status": "", "FailingStreak": 0, "Log": None}, "StartedAt": "2026-11-21T12:14:38.25+01:00"}
    described = describe(
        docker_says(
            State={**docker_says()["State"], **changes},
            HostConfig__DeviceRequests=None,
            Config__Entrypoint=[],
            Config__StopTimeout=0,
        )
    )
    assert described is not None
    assert (described.started, described.health, described.gpus, described.stop_seconds) == (SECONDS, "", "none", 10)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (NANOSECONDS, SECONDS),
        ("2026-11-21T11:14:38Z", SECONDS),
        ("2026-11-21T11:14:38.257055973+00:00", SECONDS),
        ("2026-11-21T16:44:38+05:30", SECONDS),
        ("0001-01-01T00:00:00Z", None),
        (None, None),
    ],
)
def test_the_time_of_its_start(text: str | None, seconds: float | None) -> None:
    assert job(State__StartedAt=text).started == seconds


@pytest.mark.parametrize(
    ("command", "script", "output"),
    [
        (PRETRAIN, "pretrain", "/model/pretrain.txt"),
        ("python3 /code/run_pretrain.py > /model/pretrain.txt 2>&1", "pretrain", "/model/pretrain.txt"),
        ("python3 /code/run_glue.py >>'/model/my log.txt' 2>>/model/errors.txt", "glue", "/model/my log.txt"),
        ('python3 /code/run_imdb.py 2>&1 >> "/model/my log.txt"', "imdb", "/model/my log.txt"),
        ("torchrun --standalone --nproc_per_node 2 /code/run_wikihop.py", "wikihop", None),
        ("python3 -m nystromformer.container.per_gpu /code/run_pretrain.py 2>&1", "pretrain", None),
        ("exec python3 /code/run_glue.py --set 'a=b > /c' >> /model/glue.txt 2>&1", "glue", "/model/glue.txt"),
        ("python3 /code/run_validation.py --rows 8 | tee /model/x.txt", "validate", None),
        ("python3 /code/run_report.py table2 /model > /model/table.txt", "run_report.py", "/model/table.txt"),
        (
            "python3 /data-preprocessing/wiki/preprocess.py >> /model/x.txt",
            "preprocess wiki/preprocess.py",
            "/model/x.txt",
        ),
    ],
)
def test_scripts_and_their_logs(command: str, script: str, output: str | None) -> None:
    described = job(command=command)
    assert (described.command, described.output) == (script, output)


@pytest.mark.parametrize(
    "detail",
    [
        docker_says(command="nginx -g 'daemon off;'"),
        docker_says(command="python3 /code/train.py"),
        docker_says(Mounts=[{"Source": "/home/x", "Destination": "/work"}]),
        docker_says(Mounts=None),
        docker_says(Config__Cmd=None, Config__Entrypoint=["/model-server"], Config__Labels=None),
    ],
    ids=["another program", "another script", "another folder", "no folder", "an entrypoint"],
)
def test_containers_of_others(detail: dict[str, Any]) -> None:
    assert describe(detail) is None


def test_labels_say_it_where_they_are() -> None:
    labels = {COMMAND_LABEL: "glue", EXPERIMENT_LABEL: "/there/nystrom-512", GPUS_LABEL: "0"}
    described = job(Config__Labels=labels)
    assert (described.command, described.home, described.gpus) == ("glue", "/there/nystrom-512", "0")


@pytest.mark.parametrize(
    ("requests", "gpus"),
    [
        (None, "none"),
        ([], "none"),
        ([{"Count": -1, "DeviceIDs": None}], "all"),
        ([{"Count": 2, "DeviceIDs": []}], "all"),
        ([{"Count": 0, "DeviceIDs": ["0", "2"]}], "0,2"),
        ([{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]}], "0,1"),
        ([{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}], "all"),
        ([{"DeviceIDs": ["0"]}, {"DeviceIDs": ["3"]}], "0,3"),
        ([{"DeviceIDs": ["0"]}, {"DeviceIDs": ["nvidia.com/gpu=all"]}], "all"),
    ],
)
def test_gpus_that_were_asked_for(requests: list[dict[str, Any]] | None, gpus: str) -> None:
    assert job(HostConfig__DeviceRequests=requests).gpus == gpus


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"Status": "running"}, "running"),
        ({"Status": "running", "Health": {"Status": "unhealthy"}}, "silent"),
        ({"Status": "restarting", "ExitCode": 1}, "restarting"),
        ({"Status": "created"}, "created"),
        ({"Status": "exited"}, "done"),
        ({"Status": "exited", "ExitCode": 143}, "stopped"),
        ({"Status": "exited", "ExitCode": 137}, "killed"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "out of memory"),
        ({"Status": "exited", "ExitCode": 2}, "failed (2)"),
        ({"Status": "dead", "ExitCode": 1}, "failed (1)"),
        ({"Status": "exited", "Health": {"Status": "unhealthy"}}, "done"),
    ],
)
def test_state(state: dict[str, Any], words: str) -> None:
    described = describe(docker_says(State={**docker_says()["State"], **state}))
    assert described is not None
    assert described.state == words
    assert described.is_active == (state["Status"] in ("running", "restarting", "paused"))
    assert described.has_ended == (state["Status"] in ("exited", "dead"))


def test_the_same_work() -> None:
    glue, log = job(command="python3 /code/run_glue.py >> /model/glue.txt"), "/model/pretrain.txt"
    assert job().does_work_of(replace(job(), output="/model/another.txt")), "one run of pretraining in a folder"
    assert replace(glue, output=log).does_work_of(job()), "one log"
    assert not job().does_work_of(glue)
    assert not job().does_work_of(replace(job(), home="/home/x/another"))
    assert not job(command="python3 /code/run_glue.py").does_work_of(job(command="python3 /code/run_imdb.py"))


def test_finding_ours_among_others(fake: FakeEngine, tmp_path: Path) -> None:
    fake.add("web", "/srv/www", target="/srv", command="nginx")
    fake.add("first", tmp_path / "b")
    fake.add("second", tmp_path / "a")
    other = fake.add("other-model", "/srv/model", command="serve /model")
    assert [each.name for each in find_jobs(connected(fake))] == ["first", "second"], "the newest last"
    assert find_job(connected(fake), other) is None


def test_a_container_that_goes_while_it_is_looked_at(fake: FakeEngine, tmp_path: Path) -> None:
    identity = fake.add("ours", tmp_path)
    fake.when("GET", f"/containers/{identity}/json", lambda: fake.containers.pop(identity))
    assert find_jobs(connected(fake)) == []


def test_selecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, home: Path, number: str) -> Job:
        return job(Name=f"/{name}", Id=number * 64, home=str(home))

    jobs = [
        made("a-pretrain", tmp_path / "a", "1"),
        made("b", tmp_path / "b", "2"),
        made("a-glue", tmp_path / "a", "3"),
    ]
    a, b, c = jobs
    assert select_jobs(jobs, "a-glue") == [c]
    assert select_jobs(jobs, "a") == [a, c]
    assert select_jobs(jobs, str(tmp_path / "a")) == [a, c]
    assert select_jobs(jobs, "2" * 12) == [b]
    monkeypatch.chdir(tmp_path)
    assert select_jobs(jobs, "./a/") == [a, c]
    with pytest.raises(UserError, match=r"^c: no container or .*\. There are: a-pretrain, b, a-glue"):
        select_jobs(jobs, "c")
    with pytest.raises(UserError, match="There are none"):
        select_jobs([], "c")
    with pytest.raises(UserError):
        select_jobs(jobs, "2" * 11)
