"""What becomes of containers: starting, listing, logs, ending, and building the image."""

from pathlib import Path
from typing import Any

import docker
import pytest
from fake_engine import FakeEngine, Launcher, refusal
from small import ROOT, write_experiment

Words = tuple[object, ...]


def test_an_ended_container_gives_way_and_others_do_not(
    fake: FakeEngine, launch: Launcher, words: Words, tmp_path: Path
) -> None:
    launch(*words)
    assert "already in use" in launch.refused(*words)
    fake.all[0].end(137)
    launch(*words)
    assert [each.id for each in fake.all] == ["id1"]
    fake.all[0].end(0)
    write_experiment(tmp_path / "elsewhere" / "small")
    assert "Give it another name with --name" in launch.refused(words[0], tmp_path / "elsewhere/small", *words[2:])
    assert [each.id for each in fake.all] == ["id1"], "another folder's container stays"


@pytest.mark.parametrize(("exit_code", "status"), [(2, 2), (1, 1), (137, 1)])
def test_what_ends_at_once_says_why(
    fake: FakeEngine, launch: Launcher, words: Words, home: Path, exit_code: int, status: int
) -> None:
    (home / "pretrain.txt").write_text("of an earlier start\n")
    fake.ends_with = exit_code
    said = launch(*words, status=status)
    assert "of an earlier start" not in said.out
    assert said.err.startswith("error: small-pretrain: ")
    fake.ends_with = 0
    assert launch(*words).out == "small-pretrain: done\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (refusal(404, "no such image: nystromformer"), "Build it with `python code/launch.py build`"),
        (refusal(500, "could not select device driver"), "--gpus none"),
        (docker.errors.DockerException("connection refused"), "no container engine answers (connection refused)"),
    ],
)
def test_errors_of_the_engine(
    launch: Launcher, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(**flags: Any) -> None:
        raise error

    monkeypatch.setattr(fake, "list", fail)
    assert said in launch.refused("ps")


def test_what_cannot_start_leaves_no_container(fake: FakeEngine, launch: Launcher, words: Words) -> None:
    fake.refuses_to_start = "unknown device"
    assert "--gpus none" in launch.refused(*words)
    assert not fake.all


def test_ps(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    assert launch("ps").out == "no containers of this project\n"
    ends = {"a": None, "b": 0, "c": 143, "d": 137, "e": 1, "f": 1}
    for name, exit_code in ends.items():
        launch(*words, "--name", name, "--gpus", "3")
        if exit_code is not None:
            fake.get(name).end(exit_code)
    fake.get("f").attrs["State"]["OOMKilled"] = True
    rows = [line.split("  ") for line in launch("ps").out.splitlines()[1:]]
    cells = {row[0]: [cell.strip() for cell in row if cell] for row in rows}
    expected = {"a": "running", "b": "done", "c": "stopped", "d": "killed", "e": "failed (1)", "f": "out of memory"}
    assert {name: row[2] for name, row in cells.items()} == expected
    assert [cells["a"][place] for place in (1, 3, 4)] == ["pretrain", "3", str(home)]


def test_logs(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    launch(*words)
    (home / "pretrain.txt").write_text("one\ntwo\nthree\n")
    for place in ("small-pretrain", "small", home):
        assert launch("logs", place).out == "one\ntwo\nthree\n"
    launch("validate", *words[1:])
    assert "has several containers; name one of small-validate, small-pretrain" in launch.refused("logs", "small")
    fake.get("small-validate").end(0)
    fake.get("small-pretrain").end(143)
    said = launch("logs", "small-pretrain", "-f", status=143)
    assert (said.out, said.err) == ("one\ntwo\nthree\n", "small-pretrain: stopped\n")
    launch("serve", home, "--name", "service")
    assert launch("logs", "service").out == "one\ntwo\n", "the engine's own"


def test_following_from_the_start(fake: FakeEngine, launch: Launcher, words: Words, home: Path) -> None:
    (home / "pretrain.txt").write_text("of an earlier start\n")
    fake.ends_with = 2
    said = launch(*words, "--follow", status=2)
    assert (said.out, said.err) == ("", "small-pretrain: failed (2)\n")


@pytest.mark.parametrize(("verb", "state"), [("stop", "stopped"), ("kill", "killed")])
def test_ends_and_resumes(fake: FakeEngine, launch: Launcher, words: Words, home: Path, verb: str, state: str) -> None:
    launch(*words)
    assert launch(verb, "small").out == f"small-pretrain: {state}\n"
    assert "small: nothing to stop: small-pretrain is" in launch.refused("stop", "small")
    assert launch("resume", home).out == "small-pretrain: running\n"
    launch("stop", "small", "--timeout", "7")
    assert fake.all[0].stops_after[-1] == 7
    assert "expected a container or its folder; there are: small-pretrain" in launch.refused("stop", "other")
    assert "Missing argument" in launch.refused("stop")


def test_several(fake: FakeEngine, launch: Launcher, words: Words) -> None:
    for name in "ab":
        launch(*words, "--name", name)
    assert launch("stop", "b", "a").out == "b: stopped\na: stopped\n"
    assert [each.stops_after for each in fake.all] == [[300], [300]]


def test_building(fake: FakeEngine, launch: Launcher) -> None:
    fake.steps = [{"status": "Pulling"}, {"stream": "Step 1/1\n"}]
    assert launch("build").out == "Step 1/1\nbuilt: nystromformer\n"
    (sent,) = fake.sent
    assert (sent["path"], sent["tag"]) == (str(ROOT), "nystromformer")
    fake.steps.append({"error": "RUN false returned 1\n"})
    assert "building nystromformer failed: RUN false returned 1" in launch.refused("build")
