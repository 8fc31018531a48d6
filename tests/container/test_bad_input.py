"""Each mistake gives one clear error and exit status 2, before there is a container, or with none left behind."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from docker.api.container import ContainerApiMixin
from fake_engine import FakeEngine, Launcher, Refusal
from small import write_experiment

from nystromformer.container import control
from nystromformer.container.jobs import QUEUE_LABEL, WAITING

Words = tuple[object, ...]


class Refused:
    """Runs a command that must refuse, and change nothing at the engine; returns what it said."""

    def __init__(self, fake: FakeEngine, launch: Launcher) -> None:
        self._fake, self._launch = fake, launch

    def __call__(self, *words: object) -> str:
        self._fake.requests.clear()
        said = self._launch.refused(*words)
        assert self._fake.changes == []
        return said


@pytest.fixture
def refused(fake: FakeEngine, launch: Launcher) -> Refused:
    return Refused(fake, launch)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpus", "0,0"], "--gpus 0,0: expected all, none, or the numbers (or UUIDs) of different GPUs"),
        (["--restart", "always"], "--restart always: expected no, or on-failure:N with N at least 1"),
        (["--name", "a b"], "--name a b: engines take"),
        (["--code", "/nowhere"], "--code /nowhere: not a code folder"),
        (["--model", "/model"], "No such option: --model"),
        (["--learning_rate", "1"], "No such option: --learning_rate"),
        (["--workers", "two"], "--workers"),
        (["--workers", "-1"], "--workers"),
        (["--workers"], "requires an argument"),
        (["--verify=no"], "does not take a value"),
        (["--set", "model.num_layers=0"], "model.num_layers"),
        (["--set", "x"], "section.key=value"),
        (
            ["--dataset", "/nowhere"],
            "/nowhere: no such folder. Make it (`python code/launch.py preprocess 512 --length 32`",
        ),
        (["another"], "another"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags(refused: Refused, words: Words, flags: list[str], said: str) -> None:
    assert said in refused(*words, *flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "mrcp"], "unknown GLUE task 'mrcp'; did you mean MRPC? Valid ones: CoLA"),
        (["--task", "QNIL"], "unknown GLUE task 'QNIL'; did you mean QNLI?"),
        (["--task", "RTE", "--lr", "0"], "--lr: expected a number from 1e-12 to 10"),
        (["--task", "RTE", "--batch_size", "8,8"], "--batch_size 8,8: expected different numbers"),
        (
            ["--task", "RTE", "--device", "gpu"],
            "--device gpu: expected auto, cpu, cuda or cuda:N; --gpus says where",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_the_script_would_refuse(refused: Refused, home: Path, flags: list[str], said: str) -> None:
    for words in (("glue", home), ("queue", home, "--command", "glue", "--gpus", "none")):
        assert said in refused(*words, "--glue", "hub", *flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "listop"], "--task listop: expected one of listops"),
        (["--task", "text", "--track", "papers"], "--track papers: expected one of paper"),
        (["--task", "text", "--freeze"], "--freeze"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_the_arena_would_refuse(refused: Refused, home: Path, flags: list[str], said: str) -> None:
    for words in (("lra", home), ("queue", home, "--command", "lra", "--gpus", "none")):
        assert said in refused(*words, *flags)


def test_the_folder_of_out_is_made_for_a_container_and_is_all_that_is_mounted(
    fake: FakeEngine, launch: Launcher, refused: Refused, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "rows"
    words = ("preprocess", "512", "--out", out, "--name", "rows")
    said = launch(*words, "--dry_run").out.splitlines()
    assert said[0] == f"mkdir -p {out}"
    assert said[1].startswith("docker run ")
    assert "rows: engines take" in refused(*words[:-1], "/rows")
    assert "no image mine" in refused(*words, "--image", "mine")
    assert not (tmp_path / "new").exists()
    launch(*words)
    assert out.is_dir()
    assert [each["Source"] for each in fake.created["HostConfig"]["Mounts"] if not each["ReadOnly"]][1:] == [str(out)]


def test_folders_that_are_no_experiments(refused: Refused, tmp_path: Path, dataset_folder: Path) -> None:
    flags = ("--dataset", dataset_folder)
    assert "nowhere: no such folder, here or in" in refused("pretrain", "nowhere", *flags)
    (tmp_path / "empty").mkdir()
    said = refused("pretrain", tmp_path / "empty", *flags)
    assert "config.json: no such file" in said
    assert "with the launcher FOLDER alone" in said
    write_experiment(tmp_path / "wrong")
    config = tmp_path / "wrong" / "config.json"
    config.write_text(config.read_text().replace('"num_layers"', '"num_layer"'))
    said = refused("pretrain", tmp_path / "wrong", *flags)
    assert "model.num_layer:" in said
    assert "model.num_layers" in said


def test_the_image_is_missing(fake: FakeEngine, refused: Refused, words: Words) -> None:
    assert "the engine has no image mine. Build it with `python code/launch.py build --tag mine`" in refused(
        *words, "--image", "mine"
    )
    fake.images.clear()
    assert "no image nystromformer. Build it with `python code/launch.py build`, or" in refused(*words)
    assert "no image nystromformer" in refused("queue", *words[1:], "--gpus", "0")
    assert "no image nystromformer" in refused("queue", *words[1:])


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_container_that_cannot_be_started_is_removed(
    fake: FakeEngine, launch: Launcher, words: Words, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    if is_interrupted:

        def interrupt(api: object, container: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ContainerApiMixin, "start", interrupt)
        launch(*words, status=130)
    else:
        fake.refuse("POST", "/start", 400, "failed to create task: exec: /bin/bash: no such file")
        said = launch.refused(*words)
        assert "error: starting small-pretrain: the engine refused: failed to create task" in said
    assert fake.names == []
    assert len(fake.sent("POST", "/containers/create")) == 1


def test_a_folder_that_cannot_be_written_or_made(
    refused: Refused, words: Words, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *given: Any, **more: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.access", lambda path, mode: path != home)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert f"{home}: cannot be written by this user" in refused(*words)
    out = tmp_path / "new" / "rows"
    assert f"error: {out}: Permission denied" in refused("preprocess", "512", "--out", out)


BY_HAND = "exec python3 /code/run_pretrain.py >> /model/my.txt 2>&1"


@pytest.mark.parametrize("status", ["running", "paused", "restarting"])
def test_an_experiment_that_runs(
    fake: FakeEngine, launch: Launcher, refused: Refused, words: Words, home: Path, status: str
) -> None:
    name = "small-pretrain" if status == "running" else "first"
    if status == "running":
        launch(*words)
    else:
        fake.add(name, home, command=BY_HAND, status=status)
    for more in ((), ("--name", "second")):
        said = refused(*words, *more)
        assert f"pretrain is running already, in the container {name}. `launch.py logs -f {name}`" in said
        assert f"`launch.py stop {name}` ends it" in said
    assert "is running already" in refused("queue", *words[1:], "--gpus", "0")


def test_an_experiment_that_waits(
    fake: FakeEngine, launch: Launcher, refused: Refused, words: Words, home: Path
) -> None:
    fake.add("small-pretrain.waiting", home, status="created", labels={QUEUE_LABEL: WAITING})
    for more in ((), ("--name", "other")):
        said = refused(*words, *more)
        assert "small: waits in the queue already, as small-pretrain.waiting. Take it out with `launch.py stop" in said
    assert "waits in the queue already" in refused("queue", *words[1:], "--gpus", "0")
    launch("glue", home, "--task", "SST-2", "--glue", "hub")


def test_other_work_on_the_same_experiment(fake: FakeEngine, launch: Launcher, refused: Refused, home: Path) -> None:
    glue = ("glue", home, "--task", "SST-2", "--glue", "hub")
    launch(*glue)
    assert "glue is running already, in the container small-glue" in refused(*glue, "--lr", "1e-5")
    launch(*glue, "--name", "another", "--lr", "1e-5")
    assert fake.names == ["small-glue", "another"]


@pytest.mark.parametrize("status", ["exited", "running"])
def test_a_name_of_another_experiments(
    fake: FakeEngine, refused: Refused, words: Words, tmp_path: Path, status: str
) -> None:
    fake.add("mine", tmp_path / "other", status=status, labels={"nystromformer.command": "pretrain"})
    said = refused(*words, "--name", "mine")
    assert f"mine: the engine already has a container of that name, for {tmp_path / 'other'}" in said
    assert f"`launch.py {'remove' if status == 'exited' else 'stop'} mine`" in said
    fake.add("small-pretrain", tmp_path / "elsewhere" / "small", status=status)
    assert "already has a container of that name, for" in refused("queue", *words[1:], "--gpus", "0")


@pytest.mark.parametrize("status", [409, 500], ids=["Docker", "Podman"])
def test_a_name_of_somebody_elses(fake: FakeEngine, launch: Launcher, words: Words, status: int) -> None:
    fake.add("mine", "/srv", target="/srv", command="nginx")
    if status == 500:
        message = 'creating container storage: the container name "mine" is already in use by 12'
        fake.refuse("POST", "/containers/create", 500, message)
    said = launch.refused(*words, "--name", "mine")
    assert "starting mine: the engine refused: " in said
    assert "is already in use by" in said
    assert fake.names == ["mine"]
    assert fake.state("mine") == "running"


@pytest.mark.parametrize("status", [409, 500], ids=["Docker", "Podman"])
@pytest.mark.parametrize("looks", [0, 2], ids=["at once", "a little later"])
def test_another_launcher_is_faster(
    fake: FakeEngine,
    launch: Launcher,
    words: Words,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    looks: int,
) -> None:
    monkeypatch.setattr(control, "_STARTING_SECONDS", 10.0)

    def start_it() -> None:
        identity, number = fake.add("small-pretrain", home, status="created"), count()

        def look() -> None:
            if next(number) == looks:
                fake.start(identity)

        fake.when("GET", "/containers/json", look, times=looks + 1)
        raise Refusal(status, 'the container name "/small-pretrain" is already in use by 12')

    fake.when("POST", "/containers/create", start_it)
    said = launch.refused(*words)
    assert "pretrain is running already, in the container small-pretrain. `launch.py logs -f" in said
    assert fake.started == ["small-pretrain"]


def test_another_launcher_queues_it_first(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    def queue_it() -> None:
        fake.add("small-pretrain.waiting", home, status="created", labels={QUEUE_LABEL: WAITING})

    fake.when("POST", "/containers/create", queue_it)
    said = launch.refused("queue", *words[1:], "--gpus", "0")
    assert "small: waits in the queue already, as small-pretrain.waiting" in said
    assert fake.names == ["small-pretrain.waiting"]


def test_another_launcher_fails_meanwhile(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    fake.refuse("POST", "/containers/create", 409, "the name is already in use by 12", times=1)
    launch(*words)
    fake.end("".join(fake.containers), 1)
    fake.refuse("DELETE", "/containers/", 409, "removal of container small-pretrain is already in progress", times=1)
    launch(*words)
    assert fake.state("small-pretrain") == "running"


@pytest.mark.parametrize("name", ["a,ro", 'a"b', "a\nb"])
def test_folders_that_podman_would_take_for_others(
    fake: FakeEngine, launch: Launcher, refused: Refused, dataset_folder: Path, tmp_path: Path, name: str
) -> None:
    write_experiment(tmp_path / name)
    words = ("pretrain", tmp_path / name, "--dataset", dataset_folder, "--gpus", "none")
    fake.product = "Podman Engine"
    for command in (words, ("queue", *words[1:])):
        said = refused(*command)
        assert f"error: {str(tmp_path / name)!r}: Podman cannot mount a folder that has a comma" in said
    fake.product = "Engine"
    launch(*words)
    assert fake.created["HostConfig"]["Mounts"][0]["Source"] == str(tmp_path / name)


def test_queue(refused: Refused, words: Words, home: Path, tmp_path: Path) -> None:
    flags = words[2:]
    write_experiment(tmp_path / "second")
    assert "--gpus_each" in refused("queue", home, *flags, "--gpus", "0,1", "--gpus_each", "0")
    unknown = refused("queue", home, "--command", "train")
    assert "--command train: expected one of pretrain, validate, classify, glue" in unknown
    assert "named twice" in refused("queue", home, tmp_path / "second", home, *flags, "--gpus", "0")
    assert "queue --dry_run: expected experiments" in refused("queue", "--dry_run")
    assert "Missing option '--task'" in refused("queue", home, "--command", "glue", "--gpus", "0")
    assert "nowhere: no such folder" in refused("queue", home, "nowhere", *flags, "--gpus", "0")


@pytest.mark.parametrize("verb", ["stop", "kill", "resume", "remove"])
def test_whom(fake: FakeEngine, refused: Refused, home: Path, verb: str) -> None:
    said = refused(verb)
    assert f"{verb}: expected containers, experiments, or --all" in said
    assert "nobody: no container or experiment of that name. There are none" in refused(verb, "nobody")
    fake.add("run", home, status="exited" if verb in ("resume", "remove") else "running", exit_code=1)
    assert f"{verb}: expected containers" in refused(verb, "run", "--all")
    # Of several names all are looked for before anything is done.
    assert "nobody: no container or experiment of that name. There are: run" in refused(verb, "run", "nobody")


@pytest.mark.parametrize(
    ("verb", "status", "exit_code", "is_waiting", "state"),
    [
        ("stop", "exited", 0, False, "done"),
        ("kill", "exited", 1, False, "failed (1)"),
        ("resume", "exited", 0, False, "done"),
        ("resume", "running", 0, False, "running"),
        ("resume", "created", 0, False, "created"),
        ("remove", "running", 0, False, "running"),
        ("remove", "restarting", 1, False, "restarting"),
        *((verb, "created", 0, True, "waiting") for verb in ("kill", "resume", "remove")),
    ],
)
def test_of_a_state_that_does_not_fit(
    fake: FakeEngine, refused: Refused, home: Path, verb: str, status: str, exit_code: int, is_waiting: bool, state: str
) -> None:
    fake.add("run", home, status=status, exit_code=exit_code, labels={QUEUE_LABEL: WAITING} if is_waiting else {})
    assert f"run: nothing to {verb}: run is {state}" in refused(verb, "run")


def test_resume_of_what_another_one_does(fake: FakeEngine, refused: Refused, home: Path) -> None:
    fake.add("first", home, status="exited", exit_code=137)
    fake.add("second", home, command=BY_HAND)
    assert "first: the container second already does this work" in refused("resume", "first")
