"""Building the image: what the engine is asked for, what is shown, and how it fails."""

import io
import json
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import FakeEngine, Launcher, connected

from nystromformer.container.build import build_image, build_line
from nystromformer.container.options import BuildOptions
from nystromformer.errors import UserError


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "secret").write_text("-")
    (tmp_path / ".dockerignore").write_text("secret\n")
    return tmp_path


def build(fake: FakeEngine, context: Path, network: str | None = None, fresh: bool = False) -> str:
    shown: list[str] = []
    options = BuildOptions(tag="mine", base="ubuntu:24.04", network=network, fresh=fresh)
    build_image(connected(fake), context, options, shown.append)
    return "".join(shown)


@pytest.mark.parametrize(("network", "fresh"), [("host", True), (None, False)])
def test_what_the_engine_is_asked_for(fake: FakeEngine, context: Path, network: str | None, fresh: bool) -> None:
    build(fake, context, network, fresh)
    (request,) = fake.sent("POST", "/build")
    assert request.query["t"] == "mine"
    assert json.loads(request.query["buildargs"]) == {"BASE_IMAGE": "ubuntu:24.04"}
    assert request.query.get("networkmode") == network
    assert (request.query["nocache"], request.query["pull"]) == (str(fresh), str(fresh))
    assert (request.query["rm"], request.query["forcerm"]) == ("True", "True"), "no container of a step stays"
    with tarfile.open(fileobj=io.BytesIO(request.body)) as sent:
        assert "Dockerfile" in sent.getnames()
        assert "secret" not in sent.getnames()


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda fake, context: fake.steps.append({"error": "RUN false returned 1\n"}), "failed: RUN false returned 1$"),
        (lambda fake, context: fake.refuse("POST", "/build", 400, "invalid tag"), ": the engine refused: invalid tag"),
        (lambda fake, context: setattr(fake, "cut_streams", True), ": the engine stopped answering"),
        (lambda fake, context: (context / "Dockerfile").unlink(), "Dockerfile: no such file"),
    ],
    ids=["a step", "the engine refuses", "the engine dies", "no Dockerfile"],
)
def test_a_build_fails(fake: FakeEngine, context: Path, fails: Callable[[FakeEngine, Path], object], said: str) -> None:
    fake.steps = [{"stream": "Step 1/2 : FROM ubuntu\n"}]
    fails(fake, context)
    with pytest.raises(UserError, match=said):
        build(fake, context)


def test_the_builders_output_is_shown(fake: FakeEngine, context: Path) -> None:
    fake.steps = [
        {"status": "Pulling from library/ubuntu", "id": "24.04"},
        {"status": "Downloading", "progress": "[=>] 1/2", "id": "a1"},
        {"stream": "Step 1/2 : FROM ubuntu\n"},
        {"aux": "something else"},
    ]
    assert build(fake, context) == (
        "24.04 Pulling from library/ubuntu\na1 Downloading [=>] 1/2\nStep 1/2 : FROM ubuntu\n"
    )


def test_the_docker_line() -> None:
    line = build_line(Path("/a b"), BuildOptions(tag="my tag", build_arg=["A=x y", "B=$c"], network="host", fresh=True))
    assert shlex.split(line) == [
        *("docker", "build", "--tag", "my tag", "--build-arg", "A=x y", "--build-arg", "B=$c"),
        *("--network", "host", "--pull", "--no-cache", "/a b"),
    ]
    assert build_line(Path("/x"), BuildOptions(tag="t")) == "docker build --tag t /x"


def test_the_command(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], context: Path
) -> None:
    launch = Launcher(fake.url, monkeypatch, capsys)
    monkeypatch.setattr("nystromformer.container.commands.PROJECT", context)
    said = launch("build", "--base", "ubuntu:24.04", "--dry_run")
    assert said.out == f"docker build --tag nystromformer --build-arg BASE_IMAGE=ubuntu:24.04 {context}\n"
    assert not fake.requests, "no engine is needed to print a line"
    fake.steps = [{"stream": "Step 1/1\n"}]
    assert launch("build", "--tag", "other").out == "Step 1/1\nbuilt: other\n"
    assert "expected NAME=VALUE" in launch.refused("build", "--build_arg", "x")
