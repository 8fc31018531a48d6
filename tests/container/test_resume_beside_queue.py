"""GPUs that the queue has promised, which `resume` leaves alone, and places in the queue that nobody can read."""

import json

import pytest
from fake_engine import FakeEngine, Launcher

from nystromformer.container.jobs import QUEUE_LABEL, WAITING
from nystromformer.container.scripts import GPUS_LABEL, LABEL

SPEC, PLACE = LABEL + "spec", LABEL + "place"


def ended(fake: FakeEngine, name: str, gpus: str) -> str:
    return fake.add(name, f"/x/{name}", status="exited", exit_code=143, labels={GPUS_LABEL: gpus})


def queued(fake: FakeEngine, name: str, slots: str = "", status: str = "created", gpus: str = "", **labels: str) -> str:
    """A job of the queue: one that waits for a slot, or has GPUs."""
    told = {GPUS_LABEL: gpus or slots, QUEUE_LABEL: "taken" if gpus else WAITING, PLACE: "1"}
    spec = {"command": "pretrain", "home": f"/x/{name}", "mounts": [], "argv": []}
    spec |= {"name": name, "options": {}, "output": "/model/x.txt"}
    told |= {SPEC: json.dumps(spec)} | labels
    return fake.add(name, f"/x/{name}", status=status, exit_code=143 if status == "exited" else 0, labels=told)


@pytest.mark.parametrize(
    ("gpus", "theirs", "is_refused"),
    [
        *((gpus, slots, True) for gpus, slots in (("0", "0"), ("0", "1 or 0"), ("0,1", "1,2"), ("all", "3"))),
        *((gpus, slots, False) for gpus, slots in (("0", "1 or 2"), ("none", "0"), ("none", "none"), ("0", "none"))),
        ("1", "10 or 11", False),
        *(("0", status, status != "exited") for status in ("running", "created", "exited")),
    ],
)
def test_a_gpu_that_one_waits_for_or_has_is_not_taken(
    fake: FakeEngine, launch: Launcher, gpus: str, theirs: str, is_refused: bool
) -> None:
    ended(fake, "mine", gpus)
    waits = theirs not in ("running", "created", "exited")
    name = "theirs.waiting" if waits else "theirs"
    if waits:
        queued(fake, name, theirs)
    else:
        queued(fake, name, status=theirs, gpus="0")
    if not is_refused:
        launch("resume", "mine")
        assert fake.started.count("mine") == 2
        return
    said = launch.refused("resume", "mine")
    assert fake.started.count("mine") == 1
    if waits:
        assert f"mine: GPU {gpus} is reserved for {name}, which waits in the queue" in said
        assert f"`launch.py stop {name}` takes it out" in said
        launch("stop", name)
        launch("resume", "mine")
    else:
        assert f"mine: the queue has given GPU 0 to {name}. Resume this one when that one has ended" in said


def test_of_several_the_others_are_resumed(fake: FakeEngine, launch: Launcher) -> None:
    for name, gpus in (("a", "0"), ("b", "1"), ("c", "0,2")):
        ended(fake, name, gpus)
    for name in "de":
        queued(fake, name, status="exited", gpus="3")
    queued(fake, "theirs.waiting", "0")
    fake.add("by-hand", "/x/by-hand", labels={GPUS_LABEL: "1"})
    said = launch.refused("resume", "--all")
    assert "a: GPU 0 is reserved" in said
    assert "c: GPU 0,2 is reserved" in said
    assert "e: the queue has given GPU 3 to d" in said
    assert [fake.started.count(name) for name in "abcde"] == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("spec", ["", "{", "null", '{"restart": 3}', '{"restart": "no"}', "[" * 5000])
def test_a_place_in_the_queue_that_cannot_be_read_is_told(fake: FakeEngine, launch: Launcher, spec: str) -> None:
    queued(fake, "theirs.waiting", "0", **{SPEC: spec})
    said = launch.refused("queue")
    assert "theirs.waiting: waits in the queue, and its labels do not say what to run" in said
    launch("stop", "theirs.waiting")
    assert launch("queue").out == "the queue is empty\n"
