"""The queue's rules, with launchers that die or meet at every request they make."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Launcher, connected, fake_engine
from small import write_experiment

from nystromformer.container.engine import Engine
from nystromformer.container.jobs import QUEUE_LABEL, find_jobs
from nystromformer.container.options import LaunchOptions, Mount
from nystromformer.container.queue import all_gpus, drive, enqueue, make_slots, queue_length
from nystromformer.container.scripts import COMMAND_LABEL, GPUS_LABEL
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError

ONE, TWO = ["0"], ["0", "1"]
# Of the requests at which something happens, because each takes a queue of its own.
EVERY = pytest.mark.parametrize(
    "every", [pytest.param(7, id="each 7th"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)
NO_DRIVER = 'could not select device driver "" with capabilities: [[gpu]]'


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    with fake_engine() as engine:
        # Each runs for as long as it takes to look a few times.
        for name in "abcd":
            engine.plans[f"{name}-pretrain"] = (4, 0)
        yield engine


def spec(name: str, gpus: str = "0") -> RunSpec:
    return RunSpec(
        name=f"{name}-pretrain",
        options=LaunchOptions(),
        argv=("python3", "/code/run_pretrain.py"),
        output="/model/pretrain.txt",
        mounts=(Mount(f"/x/{name}", "/model"),),
        gpus=gpus,
        command="pretrain",
        home=f"/x/{name}",
    )


def put(fake: FakeEngine, names: str, slots: Sequence[str] = ONE) -> None:
    """Experiments into the queue."""
    enqueue(connected(fake), [spec(name, slots[0]) for name in names], slots)


def run(fake: FakeEngine, engine: Engine | None = None) -> list[str]:
    """The queue to its end; returns what is said."""
    said: list[str] = []
    drive(engine or connected(fake), said.append, seconds_between_looks=0)
    return said


def gpu_of(fake: FakeEngine, name: str) -> str:
    return str(fake.container(name)["Config"]["Labels"][GPUS_LABEL])


@pytest.mark.parametrize(
    ("gpus", "each", "slots"),
    [
        ("none", 1, ["none"]),
        ("0,1", 1, ["0", "1"]),
        ("3,1,2,0", 2, ["3,1", "2,0"]),
        *(("0,1,2", 2, None), ("0", 2, None), ("all", 1, None)),
    ],
)
def test_slots(gpus: str, each: int, slots: list[str] | None) -> None:
    if slots is not None:
        assert make_slots(gpus, each) == slots
        return
    with pytest.raises(UserError, match=f"--gpus {gpus} --gpus_each {each}: expected"):
        make_slots(gpus, each)


def test_what_waits_is_in_the_engine(fake: FakeEngine) -> None:
    put(fake, "ab", TWO)
    assert fake.names == ["a-pretrain.waiting", "b-pretrain.waiting"]
    assert [job.state for job in find_jobs(connected(fake))] == ["waiting", "waiting"]
    assert [job.gpus for job in find_jobs(connected(fake))] == ["0 or 1", "0 or 1"]
    assert queue_length(connected(fake)) == (2, 0)
    assert fake.started == []


def test_one_after_another_on_each_gpu(fake: FakeEngine) -> None:
    complaints = fake.watch_gpus()
    fake.plans["a-pretrain"] = (40, 0)
    put(fake, "abcd", TWO)
    said = run(fake)
    assert fake.started == ["a-pretrain", "b-pretrain", "c-pretrain", "d-pretrain"]
    assert [gpu_of(fake, name) for name in fake.started] == ["0", "1", "1", "1"]
    assert said[:3] == ["a-pretrain: running on GPU 0", "b-pretrain: running on GPU 1", "b-pretrain: done"]
    assert sorted(said[3:]) == sorted(
        [
            *("c-pretrain: running on GPU 1", "c-pretrain: done"),
            *("d-pretrain: running on GPU 1", "d-pretrain: done"),
            "a-pretrain: done",
        ]
    )
    assert fake.names == fake.started, "no placeholder is left"
    assert not complaints


def test_what_is_put_in_first_comes_first_and_gets_the_gpus_of_its_slot(fake: FakeEngine) -> None:
    slots = ["0,1", "2,3"]
    put(fake, "b", slots)
    put(fake, "a", slots)
    run(fake)
    assert fake.started == ["b-pretrain", "a-pretrain"]
    for name, ids in (("b-pretrain", ["0", "1"]), ("a-pretrain", ["2", "3"])):
        (request,) = fake.container(name)["HostConfig"]["DeviceRequests"]
        assert request["DeviceIDs"] == ids
        sent = fake.container(name)["Config"]
        assert sent["Cmd"] == ["/bin/bash", "-c", spec("a").shell]
        assert sent["Labels"][COMMAND_LABEL] == "pretrain"


@pytest.mark.parametrize(("slot", "where"), [("0", " on GPU 0"), ("none", "")])
@pytest.mark.parametrize("looks", [0, 3], ids=["before anybody looks again", "later"])
def test_a_failure_does_not_keep_the_next_from_its_turn(fake: FakeEngine, slot: str, where: str, looks: int) -> None:
    fake.plans["a-pretrain"] = (looks, 2)
    complaints = fake.watch_gpus()
    put(fake, "ab", [slot])
    said: list[str] = []
    ended = drive(connected(fake), said.append, seconds_between_looks=0)
    begun = [f"{name}-pretrain: running{where}" for name in "ab"]
    assert said == [begun[0], "a-pretrain: failed (2)", begun[1], "b-pretrain: done"] or not looks
    assert sorted(said) == sorted([*begun, "a-pretrain: failed (2)", "b-pretrain: done"])
    assert [(job.name, job.exit_code) for job in ended] == [("a-pretrain", 2), ("b-pretrain", 0)]
    assert not complaints


def test_all_are_put_in_or_none(fake: FakeEngine) -> None:
    fake.when("POST", "/containers/create", lambda: fake.refuse("POST", "/containers/create", 500, "disk full", 1))
    with pytest.raises(UserError, match=r"queueing b-pretrain: the engine refused: disk full"):
        put(fake, "ab")
    assert fake.names == []


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [(500, NO_DRIVER, "NVIDIA Container Toolkit"), (404, "network mine not found", "the engine refused: network mine")],
)
def test_a_failing_start_leaves_it_in_its_place(fake: FakeEngine, status: int, said: str, words: str) -> None:
    put(fake, "ab")
    fake.refuse("POST", "/start", status, said, times=1)
    with pytest.raises(UserError, match=f"starting a-pretrain: .*{words}"):
        run(fake)
    assert fake.names == ["a-pretrain.waiting", "b-pretrain.waiting"]
    run(fake)
    assert fake.started == ["a-pretrain", "b-pretrain"]


@pytest.mark.parametrize(
    ("home", "more", "said"),
    [
        (
            "/srv",
            {"target": "/srv", "command": "nginx"},
            "starting a-pretrain: the engine refused: .*already in use by",
        ),
        ("/elsewhere/a", {"status": "exited"}, r"for /elsewhere/a\. Give this one .* --name, or remove that one"),
    ],
    ids=["somebody else's", "another experiment's"],
)
def test_a_name_that_another_has(fake: FakeEngine, home: str, more: dict[str, str], said: str) -> None:
    put(fake, "a")
    fake.add("a-pretrain", home, **more)
    with pytest.raises(UserError, match=said):
        run(fake)
    assert fake.names == ["a-pretrain.waiting", "a-pretrain"]


def test_an_ended_container_of_the_same_experiment_gives_way(fake: FakeEngine) -> None:
    old = fake.add("a-pretrain", "/x/a", status="exited", exit_code=137)
    put(fake, "a")
    run(fake)
    assert fake.names == ["a-pretrain"]
    assert old not in fake.containers


@pytest.mark.parametrize("name", ["a-pretrain", "by-hand"])
def test_started_by_hand_in_the_meantime(fake: FakeEngine, name: str) -> None:
    put(fake, "ab", TWO)
    fake.plans[name] = (1000, 0)
    identity = fake.add(name, "/x/a", labels={GPUS_LABEL: "7"})
    started_until_then: list[str] = []

    def end_it() -> None:
        if not started_until_then and fake.find("b-pretrain") and fake.state("b-pretrain") == "exited":
            started_until_then.extend(fake.started)
            fake.plans["a-pretrain"] = (4, 0)
            fake.end(identity, 0)

    fake.when("GET", "/containers/json", end_it, times=1 << 30)
    run(fake)
    assert started_until_then == [name, "b-pretrain"], "two would write into one folder"
    assert fake.started == [name, "b-pretrain", "a-pretrain"]


@pytest.mark.parametrize(
    ("gpus", "status", "is_waited_for"),
    [
        *(("all", "running", True), ("0", "running", True), ("1,0", "running", True)),
        *((gpus, "running", False) for gpus in ("1,2", "none", "1:0", "GPU-1f,MIG-2")),
        # As a docker line leaves it whose start failed.
        ("all", "created", False),
    ],
)
def test_gpus_that_others_have_are_waited_for(fake: FakeEngine, gpus: str, status: str, is_waited_for: bool) -> None:
    fake.plans["other"] = (20, 0)
    fake.add("other", "/x/other", labels={GPUS_LABEL: gpus}, status=status)
    put(fake, "a")
    states: list[str] = []
    fake.when("POST", "/start", lambda: states.append(fake.state("other")))
    run(fake)
    assert states == ["exited" if is_waited_for else status]


def test_another_launcher_runs_the_same_experiment_again(fake: FakeEngine) -> None:
    put(fake, "a")

    def run_again() -> None:
        """Between two looks the first one ended and was replaced."""
        labels = fake.container("a-pretrain")["Config"]["Labels"]
        fake.remove("a-pretrain")
        fake.plans["a-pretrain"] = (5, 0)
        fake.add("a-pretrain", "/x/a", labels=labels)

    fake.plans["a-pretrain"] = (1000, 0)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            run_again()

    ended = drive(connected(fake), say, seconds_between_looks=0)
    assert [job.exit_code for job in ended] == [0]
    assert said[:2] == ["a-pretrain: running on GPU 0", "a-pretrain: running on GPU 0"]
    assert said[-1] == "a-pretrain: done"


def test_somebody_removes_a_running_one(fake: FakeEngine) -> None:
    fake.plans["a-pretrain"] = (1000, 0)
    put(fake, "a")

    def remove() -> None:
        if fake.started and fake.find("a-pretrain"):
            fake.remove("a-pretrain")

    fake.when("GET", "/containers/json", remove, times=1 << 30)
    said: list[str] = []
    ended = drive(connected(fake), said.append, seconds_between_looks=0)
    assert said == ["a-pretrain: running on GPU 0", "a-pretrain: somebody removed it"]
    assert ended == []


def test_taken_out_while_another_runs(fake: FakeEngine) -> None:
    put(fake, "ab")
    fake.when("POST", "/start", lambda: fake.remove("b-pretrain.waiting"))
    run(fake)
    assert fake.started == ["a-pretrain"]


# A launcher that is killed at any moment


class Killed(BaseException):
    """Not of the kinds that a program cleans up after."""


def through(fake: FakeEngine, act: Callable[[int, Callable[[], Any]], Any]) -> Engine:
    """A connection whose requests, with their numbers, are left to `act`."""
    engine, numbers = connected(fake), count()
    request: Callable[..., Any] = engine.api.request
    engine.api.request = lambda *words, **more: act(next(numbers), partial(request, *words, **more))
    return engine


@contextmanager
def two_queued() -> Iterator[FakeEngine]:
    """An engine with two experiments for one GPU, which they never share: each runs once, and is there at the end."""
    with fake_engine() as fake:
        fake.plans |= {"a-pretrain": (3, 0), "b-pretrain": (2, 3)}
        put(fake, "ab")
        complaints = fake.watch_gpus()
        yield fake
        assert sorted(fake.names) == ["a-pretrain", "b-pretrain"]
        assert not complaints


@EVERY
@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
def test_a_launcher_that_is_killed_loses_nothing(sent: bool, every: int) -> None:
    """At each of its requests, before or after the engine has got it."""
    at = 0

    def die(number: int, send: Callable[[], Any]) -> Any:
        if number == at and sent:
            send()
        if number >= at:
            raise Killed
        return send()

    for at in count(step=every):
        with two_queued() as fake:
            was_killed = False
            try:
                run(fake, through(fake, die))
            except Killed:
                was_killed = True
                run(fake)
            assert Counter(fake.started) == {"a-pretrain": 1, "b-pretrain": 1}, f"killed at request {at}"
        if not was_killed:
            break
    assert at > 20


# Two launchers at a time


class Pause(Exception):
    """Where the second launcher would sleep."""


@EVERY
@pytest.mark.parametrize("whole", [False, True], ids=["one look", "to the end"])
def test_two_launchers_do_each_others_work(monkeypatch: pytest.MonkeyPatch, whole: bool, every: int) -> None:
    """At each of the first one's requests the second comes in between."""

    def pause(seconds: float) -> None:
        if seconds:
            raise Pause

    monkeypatch.setattr("time.sleep", pause)
    last = 0
    for at in count(step=every):
        with two_queued() as fake:
            second = connected(fake)

            def come_in(number: int, send: Callable[[], Any], at: int = at, second: Engine = second) -> Any:
                nonlocal last
                last = number
                if number == at:
                    with suppress(Pause):
                        drive(second, lambda text: None, seconds_between_looks=0 if whole else 1)
                return send()

            run(fake, through(fake, come_in))
            # Once, but for the moment between the last look and the start.
            starts = Counter(fake.started)
            assert starts.keys() == {"a-pretrain", "b-pretrain"}, f"at request {at}"
            assert starts.total() <= 3
        if last < at:
            break
    assert last > 20


def take(fake: FakeEngine, name: str, gpu: str = "0") -> None:
    """As another launcher does that saw the GPU free: the container of a waiting experiment, not started yet."""
    labels = fake.container(f"{name}-pretrain.waiting")["Config"]["Labels"]
    fake.add(
        f"{name}-pretrain", f"/x/{name}", status="created", labels={**labels, QUEUE_LABEL: "taken", GPUS_LABEL: gpu}
    )


@pytest.mark.parametrize(
    ("moment", "taken", "started"),
    [(("POST", "/containers/create"), "b", "ba"), (("POST", "/start"), "b", "ab"), (None, "ab", "ab")],
    ids=["the other one was faster", "this one was faster", "both are left"],
)
def test_of_two_that_took_one_gpu_the_later_gives_way(
    fake: FakeEngine, moment: tuple[str, str] | None, taken: str, started: str
) -> None:
    put(fake, "ab")
    complaints = fake.watch_gpus()
    if moment is None:
        for name in taken:
            take(fake, name)
    else:
        fake.when(*moment, lambda: take(fake, taken))
    run(fake)
    assert fake.started == [f"{name}-pretrain" for name in started]
    assert sorted(fake.names) == ["a-pretrain", "b-pretrain"]
    assert not complaints


def test_one_that_another_launcher_took_and_gave_back_gets_its_turn_later(fake: FakeEngine) -> None:
    put(fake, "a")

    def take_first() -> None:
        take(fake, "a")
        fake.when("GET", "/containers/", lambda: fake.remove("a-pretrain"))

    fake.when("POST", "/containers/create", take_first)
    run(fake)
    assert fake.started == ["a-pretrain"]


def test_a_gpu_that_another_launcher_took_is_not_tried(fake: FakeEngine) -> None:
    put(fake, "abc", TWO)
    fake.when("POST", "/start", lambda: take(fake, "c", "1"))
    run(fake)
    assert fake.started[:2] == ["a-pretrain", "c-pretrain"]
    made = [request.query["name"] for request in fake.sent("POST", "/containers/create")]
    assert made.count("b-pretrain") == 1


def test_what_another_launcher_started_meanwhile_is_not_started_again(fake: FakeEngine) -> None:
    put(fake, "a")
    take(fake, "a")
    looks = iter(range(1000))

    def start() -> None:
        if next(looks) == 1:
            identity = fake.container("a-pretrain")["Id"]
            fake.start(identity)
            fake.end(identity, 143)

    fake.when("GET", "/containers/json", start, times=1000)
    run(fake)
    assert fake.started == ["a-pretrain"]
    assert fake.state("a-pretrain") == "exited"


@pytest.mark.parametrize(
    ("image", "listed", "refused", "said"),
    [
        ("nystromformer", b"nvidia10\nnvidia0\nnvidia2\nnvidiactl\nnvidia-uvm\n", False, "0,2,10"),
        ("nystromformer", b"null\n", False, "the engine gives containers no GPU"),
        ("nystromformer", b"", True, "asking for GPUs: .*NVIDIA Container Toolkit"),
        ("mine", b"", False, "asking for GPUs: the engine has no image mine"),
    ],
)
def test_all_gpus_are_those_that_a_container_sees(
    fake: FakeEngine, image: str, listed: bytes, refused: bool, said: str
) -> None:
    fake.own_logs[""] = listed
    if refused:
        fake.refuse("POST", "/start", 500, NO_DRIVER)
    if said == "0,2,10":
        assert all_gpus(connected(fake), image) == said
        assert fake.created["HostConfig"]["DeviceRequests"][0]["Count"] == -1
    else:
        with pytest.raises(UserError, match=said):
            all_gpus(connected(fake), image)
    assert fake.names == []


# The command


@pytest.fixture
def launch(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Launcher:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return Launcher(fake.url, monkeypatch, capsys)


def test_the_command(fake: FakeEngine, launch: Launcher, dataset_folder: Path, tmp_path: Path) -> None:
    for name in "ab":
        write_experiment(tmp_path / name)
    fake.plans["b-pretrain"] = (0, 1)
    flags = ("--dataset", dataset_folder, "--gpus", "0,1", "--gpus_each", "2", "--workers", "1")
    said = launch("queue", tmp_path / "a", *flags, tmp_path / "b", status=1)
    shown = said.out.splitlines()
    assert shown[:5] == [
        "queued: a-pretrain, b-pretrain",
        "a-pretrain: running on GPU 0,1",
        "a-pretrain: done",
        "b-pretrain: running on GPU 0,1",
        "b-pretrain: failed (1)",
    ]
    assert shown[6].startswith("CONTAINER ")
    assert [line.split()[0] for line in shown[7:]] == ["a-pretrain", "b-pretrain"]
    config = fake.container("a-pretrain")["Config"]
    assert "/code/run_pretrain.py --workers 1 --device cuda" in config["Cmd"][2]
    assert launch("queue").out == "the queue is empty\n"


def test_ctrl_c_leaves_the_queue(fake: FakeEngine, launch: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    put(fake, "ab")
    monkeypatch.setattr("time.sleep", interrupt)
    said = launch("queue", status=130)
    assert "1 still running, 1 waiting; `launch.py queue` continues with them" in said.err
    assert fake.names == ["b-pretrain.waiting", "a-pretrain"]
    assert launch("stop", "b").out == "b: taken out of the queue\n"
    assert fake.names == ["a-pretrain"]
