"""docker-py's client without an engine: containers are objects of this process, and what it is sent is kept."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import docker
import pytest
import requests
from typer.main import get_command

from launch import launcher


def refusal(status: int, text: str) -> docker.errors.APIError:
    """What docker-py raises for an answer of the engine."""
    response = requests.Response()
    response.status_code = status
    kind = docker.errors.ImageNotFound if "image" in text else docker.errors.APIError
    return kind(text, response=response, explanation=text)


class FakeContainer:
    """One of the engine's."""

    def __init__(self, engine: "FakeEngine", number: int, name: str, config: dict[str, Any]) -> None:
        self.id, self.name, self.labels, self.status = f"id{number}", name, config["Labels"], "created"
        self.attrs: dict[str, Any] = {"State": {"ExitCode": 0}}
        self.stops_after: list[int] = []
        self._engine = engine

    def start(self) -> None:
        if self._engine.refuses_to_start:
            raise refusal(500, self._engine.refuses_to_start)
        self.status = "running"
        if self._engine.ends_with is not None:
            self.end(self._engine.ends_with)

    def end(self, exit_code: int) -> None:
        self.status = "exited"
        self.attrs["State"]["ExitCode"] = exit_code

    def stop(self, timeout: int) -> None:
        self.stops_after.append(timeout)
        self.end(143)

    def kill(self) -> None:
        self.end(137)

    def wait(self, timeout: float | None = None) -> None:
        if self.status == "running":
            raise requests.ReadTimeout

    def reload(self) -> None:
        """There is nothing behind it."""

    def logs(self, stream: bool, follow: bool) -> Iterator[bytes]:
        yield from (b"one\n", b"two\n")

    def remove(self, force: bool = False) -> None:
        self._engine.all.remove(self)


class FakeEngine:
    """What `docker.from_env` returns.

    Args:
        sent: the bodies of the requests for containers, and `build`'s arguments.
        ends_with: exit status that each container ends with as soon as it is started; None: it runs on.
        refuses_to_start: what the engine says to each start.
        steps: of a build.
    """

    def __init__(self) -> None:
        self.all: list[FakeContainer] = []
        self.sent: list[dict[str, Any]] = []
        self.images, self.security = {"nystromformer"}, ["name=seccomp"]
        self.ends_with: int | None = None
        self.refuses_to_start = ""
        self.steps: list[dict[str, str]] = []
        self._numbers = itertools.count()
        self.containers = self
        # Connected to nothing: with a version given it asks nobody for one.
        self.api = docker.APIClient("http://localhost:1", version="1.43")
        self.api.create_container_from_config = self._create
        self.api.build = self._build

    def info(self) -> dict[str, Any]:
        return {"SecurityOptions": self.security}

    def list(self, all: bool, filters: dict[str, str], ignore_removed: bool) -> list[FakeContainer]:
        assert all
        return [*reversed(self.all)]

    def get(self, name: str) -> FakeContainer:
        """By id or name."""
        (found,) = [each for each in self.all if name in (each.id, each.name)]
        return found

    @property
    def states(self) -> dict[str, str]:
        return {each.name: each.status for each in self.all}

    def _create(self, config: dict[str, Any], name: str, platform: str | None = None) -> dict[str, str]:
        if config["Image"] not in self.images:
            raise refusal(404, f"no such image: {config['Image']}")
        if name in self.states:
            raise refusal(409, f"Conflict. The container name {name} is already in use")
        self.sent.append({**config, "Name": name})
        self.all.append(FakeContainer(self, next(self._numbers), name, config))
        return {"Id": self.all[-1].id}

    def _build(self, **arguments: Any) -> Iterator[dict[str, str]]:
        self.sent.append(arguments)
        yield from self.steps


class Launcher:
    """`launch.py` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._command = get_command(launcher())

    def __call__(self, *words: object, status: int = 0) -> Any:
        """What it printed: `out` and `err`."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            self._command(list(map(str, words)), prog_name="launch.py")
        code, said = exit_info.value.code or 0, self._capsys.readouterr()
        assert code == status, f"status {code}\n{said.out}\n{said.err}"
        return said

    def refused(self, *words: object) -> str:
        """A mistake: status 2, one message, no traceback; returns the message."""
        said = self(*words, status=2).err
        assert len(re.findall(r"^error: |^Error: ", said, re.MULTILINE)) == 1, said
        return str(said)
