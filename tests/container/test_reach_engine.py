"""Which engine is meant, and what is said where it cannot be reached."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from docker.transport.unixconn import UnixHTTPConnection
from fake_engine import FakeEngine, Launcher, connected, fake_engine

from nystromformer.container.engine import Engine, NoEngine, clear_errors, engine_address
from nystromformer.errors import UserError

DEFAULT = "unix:///var/run/docker.sock"


class Contexts:
    """A folder of docker's settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.use("default")

    def use(self, name: str) -> None:
        (self.folder / "config.json").write_text(json.dumps({"currentContext": name}))

    def add(self, name: str, host: str) -> Path:
        path = self.folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}))
        return path


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Contexts:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return Contexts(tmp_path / "docker")


def test_where_docker_would_look(contexts: Contexts) -> None:
    contexts.add("far", "ssh://user@machine")
    contexts.add("near", "unix:///run/near.sock")
    assert engine_address({}) == DEFAULT
    contexts.use("far")
    assert engine_address({}) == "ssh://user@machine"
    assert engine_address({"DOCKER_CONTEXT": "near"}) == "unix:///run/near.sock"
    assert engine_address({"DOCKER_CONTEXT": "default"}) == DEFAULT
    assert engine_address({"DOCKER_CONTEXT": "near", "DOCKER_HOST": "tcp://x:1"}) == "tcp://x:1"
    assert engine_address({"DOCKER_CONTEXT": "", "DOCKER_HOST": ""}) == "ssh://user@machine"


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("unix:///var/run/docker.sock", True),
        ("npipe:////./pipe/docker_engine", True),
        ("tcp://127.0.0.1:2375", False),
        ("ssh://user@machine", False),
    ],
)
def test_whose_folders_it_sees(address: str, is_local: bool) -> None:
    assert Engine({"DOCKER_HOST": address}).is_local == is_local


def test_a_context_that_works(contexts: Contexts, fake: FakeEngine) -> None:
    contexts.add("mine", fake.url)
    contexts.use("mine")
    engine = Engine({})
    assert engine.address == fake.url
    assert engine.is_local
    assert engine.client
    assert fake.sent("GET", "/_ping")


def test_a_context_that_does_not_exist(contexts: Contexts) -> None:
    with pytest.raises(NoEngine, match=r"there is no docker context far: `docker context ls` lists them"):
        _ = Engine({"DOCKER_CONTEXT": "far"}).client
    contexts.use("gone")
    with pytest.raises(NoEngine, match="there is no docker context of the name that is set as the current one"):
        _ = Engine({}).client


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"Name": "far", "Endpoints": 3}', '{"Endpoints": {}}'])
def test_a_damaged_context(contexts: Contexts, content: str) -> None:
    contexts.add("far", "ssh://user@machine").write_text(content)
    with pytest.raises(NoEngine, match=r"the docker context far cannot be read: |there is no docker context far"):
        _ = Engine({"DOCKER_CONTEXT": "far"}).client


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (
            "unix:///nowhere/sock",
            r"\(No such file or directory\). .*systemctl start docker.*DOCKER_HOST",
        ),
        ("tcp://127.0.0.1:1", r"\(Connection refused\)"),
        *((address, "") for address in ("tcp://", "nonsense", "ftp://x", "unix:/x?y", "tcp://x:notaport")),
    ],
)
def test_nothing_answers_there(address: str, why: str) -> None:
    with pytest.raises(NoEngine, match=f"^no container engine answers at {re.escape(address)} {why}"):
        _ = Engine({"DOCKER_HOST": address}).client


def test_something_else_that_answers(fake: FakeEngine) -> None:
    fake.refuse("GET", "/version", 404, "not found")
    with pytest.raises(NoEngine, match=r"\(404 Client Error"):
        _ = connected(fake).client


def test_no_permission(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(connection: UnixHTTPConnection) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(UnixHTTPConnection, "connect", refuse)
    with pytest.raises(NoEngine, match=r"no permission to use this container engine\. .*usermod -aG docker"):
        _ = Engine({"DOCKER_HOST": fake.url}).client


def test_every_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = Launcher(f"unix://{tmp_path}/no", monkeypatch, capsys)
    for words in (
        *("pretrain nystrom-512", "preprocess wiki", "queue", "queue nystrom-512", "queue nystrom-512 --dry_run", "ps"),
        *("logs x", "stop x", "kill --all", "resume x", "remove x", "build"),
    ):
        assert "no container engine answers at" in launch.refused(*words.split())


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (
            404,
            "No such image: mine",
            "the engine has no image mine. Build it with `python code/launch.py build --tag mine`",
        ),
        (404, "image not known", "the engine has no image mine"),
        (404, "No such container: 12", "the engine refused: No such container: 12"),
        (500, 'could not select device driver "" with capabilities: [[gpu]]', "NVIDIA Container Toolkit"),
        (500, "nvidia-container-cli: initialization error: nvml error", "--gpus none"),
        (
            500,
            "nvidia-container-cli: device error: 5: unknown device",
            "--gpus names a GPU that the engine's",
        ),
        (500, "unresolvable CDI devices nvidia.com/gpu=all", "the engine cannot give GPUs to containers"),
        (400, "invalid mount config: bind source path does not exist: /x", "a folder to mount is not on the engine's"),
        (500, "statfs /x: no such file or directory", "a folder to mount is not on the engine's machine: statfs /x"),
        (500, "", "the engine refused: 500 Server Error"),
    ],
)
def test_what_an_engine_says(fake: FakeEngine, status: int, said: str, words: str) -> None:
    fake.refuse("POST", "/containers/x/start", status, said)
    engine = connected(fake)
    with pytest.raises(UserError) as info, clear_errors("starting x", "mine"):
        engine.api.start("x")
    assert str(info.value).startswith("starting x: ")
    assert words in str(info.value)


def test_an_engine_that_does_not_say_who_it_runs_as(fake: FakeEngine) -> None:
    fake.refuse("GET", "/info", 500, "no")
    with pytest.raises(UserError, match="asking the engine who it runs as: the engine refused: no"):
        assert connected(fake).is_rootless


def test_an_engine_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_engine() as fake:
        engine = connected(fake)
        engine.client.close()
    with pytest.raises(UserError, match="starting x: the engine stopped answering"), clear_errors("starting x"):
        engine.api.start("x")
