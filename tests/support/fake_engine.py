"""Docker's API without an engine: containers are entries of a dictionary, and every request is kept for the test."""

import base64
import contextlib
import functools
import io
import itertools
import json
import re
import shutil
import struct
import tarfile
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer, ThreadingUnixStreamServer
from typing import Any

import pytest
from typer.main import get_command

from launch import launcher
from nystromformer.container import control
from nystromformer.container.engine import Engine
from nystromformer.container.jobs import find_job
from nystromformer.container.scripts import GPUS_LABEL

NEVER = "0001-01-01T00:00:00Z"
_API = "1.43"


@dataclass(frozen=True)
class Request:
    """What was asked of the engine; `path` is without the API's version."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


class Refusal(Exception):
    """An answer that docker-py raises an error for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class _Rule:
    method: str
    path: str
    act: Callable[[], None]
    times: int


@dataclass
class FakeEngine:
    """The engine's state, and what tests ask of it.

    Args:
        url: where it listens.
        images: those that it has.
        containers: what `docker inspect` says, by id, in the order of their making.
        requests: all that came, the oldest first.
        product: what it is.
        security: its SecurityOptions.
        plans: by a container's name, after how many listings it ends once started (0: at once), and its exit status.
        archives: files in containers, by name and path.
        answers: to programs run inside a container, by the program's words joined.
        own_logs: what it kept of a container's stdout and stderr, by name; "" for those that have no entry.
        started: the names of containers, in the order of their starts.
        steps: of a build.
        patience: after how many listings it refuses more, for tests of what looks again and again.
        cut_streams: whether a build's output ends before it is whole.
    """

    url: str = ""
    images: set[str] = field(default_factory=lambda: {"nystromformer"})
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    product: str = "Engine"
    security: list[str] = field(default_factory=list)
    plans: dict[str, tuple[int, int]] = field(default_factory=dict)
    archives: dict[tuple[str, str], bytes] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    own_logs: dict[str, bytes] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    steps: list[dict[str, str]] = field(default_factory=list)
    patience: int = 1000
    cut_streams: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._rules: list[_Rule] = []
        self.looks_left: dict[str, int] = {}

    # What tests arrange

    def refuse(self, method: str, path: str, status: int, message: str, times: int = 1 << 30) -> None:
        """Answer requests, whose path the pattern is found in, with an error."""

        def act() -> None:
            raise Refusal(status, message)

        self._rules.append(_Rule(method, path, act, times))

    def when(self, method: str, path: str, act: Callable[[], object], times: int = 1) -> None:
        """Do something before requests are answered, whose path the pattern is found in."""
        self._rules.append(_Rule(method, path, lambda: (act(), None)[1], times))

    def add(
        self,
        name: str,
        home: Path | str | None = None,
        script: str = "/code/run_pretrain.py",
        status: str = "running",
        exit_code: int = 0,
        labels: Mapping[str, str] | None = None,
        target: str = "/model",
        command: str | None = None,
        removes_itself: bool = False,
        **config: Any,
    ) -> str:
        """A container that somebody else made, as a line of `docker run` does; returns its id."""
        command = f"python3 {script} >> {target}/{Path(script).stem}.txt 2>&1" if command is None else command
        body = {
            "Image": "nystromformer",
            "Cmd": ["/bin/bash", "-c", command],
            "Labels": dict(labels or {}),
            "HostConfig": {
                "Mounts": [] if home is None else [{"Source": str(home), "Target": target}],
                "AutoRemove": removes_itself,
            },
            **config,
        }
        identity = self.create(body, name)
        if status != "created":
            self.start(identity)
        if status not in ("created", "running"):
            self.end(identity, exit_code, status)
        return identity

    def start(self, identity: str) -> None:
        state = self.containers[identity]["State"]
        state.update(Status="running", StartedAt=self._now(), ExitCode=0)
        self.started.append(self.name_of(identity))
        looks, exit_code = self.plans.get(self.name_of(identity), (1 << 30, 0))
        self.looks_left[identity] = looks
        if looks == 0:
            self.end(identity, exit_code)

    def end(self, identity: str, exit_code: int, status: str = "exited") -> None:
        self.containers[identity]["State"].update(Status=status, ExitCode=exit_code)
        if self.containers[identity]["HostConfig"].get("AutoRemove"):
            del self.containers[identity]

    def find(self, name: str) -> str | None:
        """The id of the container of that name, or that begins so."""
        for identity in self.containers:
            if name in (self.name_of(identity), identity) or (len(name) >= 12 and identity.startswith(name)):
                return identity
        return None

    # What tests look at

    def watch_gpus(self) -> list[str]:
        """Complaints, from now on, about GPUs with two containers at a time."""
        complaints: list[str] = []

        def look() -> None:
            running = [each for each in self.containers.values() if each["State"]["Status"] == "running"]
            gpus = Counter(gpu for each in running for gpu in each["Config"]["Labels"][GPUS_LABEL].split(","))
            complaints.extend(f"{count} on {gpu}" for gpu, count in gpus.items() if count > 1)

        for method in ("GET", "POST", "DELETE"):
            self.when(method, "/containers/", look, times=1 << 60)
        return complaints

    @property
    def names(self) -> list[str]:
        return [self.name_of(identity) for identity in self.containers]

    def container(self, name: str) -> dict[str, Any]:
        """What `docker inspect` says of a container that is there."""
        identity = self.find(name)
        assert identity is not None, f"no container {name} among {self.names}"
        return self.containers[identity]

    def state(self, name: str) -> str:
        return str(self.container(name)["State"]["Status"])

    def remove(self, name: str) -> None:
        """As somebody else does, whatever it is doing."""
        del self.containers[self.container(name)["Id"]]

    def sent(self, method: str, path: str) -> list[Request]:
        """The requests whose whole path the pattern describes."""
        return [each for each in self.requests if each.method == method and re.fullmatch(path, each.path)]

    @property
    def changes(self) -> list[str]:
        """All but looking: method and path, with names in place of ids."""
        return [f"{each.method} {each.path}" for each in self.requests if each.method != "GET"]

    @property
    def created(self) -> dict[str, Any]:
        """The body of the only request for a container."""
        (request,) = self.sent("POST", "/containers/create")
        assert isinstance(request.body, dict)
        return {**request.body, "name": request.query.get("name")}

    # The API

    def handle(self, request: Request) -> Any:
        with self._lock:
            self.requests.append(request)
            for rule in list(self._rules):
                if rule.times > 0 and rule.method == request.method and re.search(rule.path, request.path):
                    rule.times -= 1
                    rule.act()
            for method, pattern, answer in _ROUTES:
                match = re.fullmatch(pattern, request.path)
                if match and method == request.method:
                    return answer(self, request, *match.groups())
            raise Refusal(404, "page not found")

    def create(self, body: dict[str, Any], name: str) -> str:
        if any(name == other for other in self.names):
            raise Refusal(
                409,
                f'Conflict. The container name "/{name}" is already in use by container "{self.find(name)}". You have '
                "to remove (or rename) that container to be able to reuse that name.",
            )
        identity = f"{next(self._numbers):064x}"
        mounts = [
            {
                "Type": "bind",
                "Source": mount["Source"],
                "Destination": mount["Target"],
                "RW": not mount.get("ReadOnly", False),
            }
            for mount in body.get("HostConfig", {}).get("Mounts") or []
        ]
        self.containers[identity] = {
            "Id": identity,
            "Name": f"/{name}",
            "Created": self._now(),
            "Config": {"Tty": False, **{key: value for key, value in body.items() if key != "HostConfig"}},
            "HostConfig": body.get("HostConfig", {}),
            "Mounts": mounts,
            "State": {"Status": "created", "ExitCode": 0, "StartedAt": NEVER, "OOMKilled": False},
        }
        return identity

    def present(self, name: str) -> str:
        identity = self.find(name)
        if identity is None:
            raise Refusal(404, f"No such container: {name}")
        return identity

    def name_of(self, identity: str) -> str:
        return str(self.containers[identity]["Name"]).removeprefix("/")

    def exit_code(self, name: str) -> int:
        return int(self.containers[self.present(name)]["State"]["ExitCode"])

    def _now(self) -> str:
        """A time long ago, later at each call."""
        number = next(self._numbers)
        return f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000000001Z"


@dataclass(frozen=True)
class Answer:
    """An answer with headers of its own."""

    body: bytes
    headers: Mapping[str, str]


def _image(engine: FakeEngine, request: Request, name: str) -> Any:
    if name not in engine.images:
        raise Refusal(404, f"No such image: {name}")
    return {"Id": f"sha256:{name}"}


def _list(engine: FakeEngine, request: Request) -> Any:
    engine.patience -= 1
    if engine.patience < 0:
        raise Refusal(500, "this does not end")
    for identity, looks in list(engine.looks_left.items()):
        if engine.containers.get(identity, {}).get("State", {}).get("Status") == "running":
            engine.looks_left[identity] = looks - 1
            if looks <= 1:
                engine.end(identity, engine.plans[engine.name_of(identity)][1])
    return [{"Id": identity} for identity in reversed(engine.containers)]


def _make(engine: FakeEngine, request: Request) -> Any:
    _image(engine, request, request.body["Image"])
    return {"Id": engine.create(request.body, request.query.get("name", "unnamed")), "Warnings": []}


def _start(engine: FakeEngine, request: Request, name: str) -> None:
    identity = engine.present(name)
    if engine.containers[identity]["State"]["Status"] != "running":
        engine.start(identity)


def _remove(engine: FakeEngine, request: Request, name: str) -> None:
    identity = engine.present(name)
    if engine.containers[identity]["State"]["Status"] == "running" and request.query.get("force") != "True":
        raise Refusal(409, f"You cannot remove a running container {identity}.")
    del engine.containers[identity]


def _archive(engine: FakeEngine, request: Request, name: str) -> Answer:
    path = request.query["path"]
    content = engine.archives.get((engine.name_of(engine.present(name)), path))
    if content is None:
        raise Refusal(404, f"Could not find the file {path} in container {name}")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(Path(path).name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    about = base64.b64encode(json.dumps({"name": Path(path).name}).encode()).decode()
    return Answer(buffer.getvalue(), {"X-Docker-Container-Path-Stat": about})


def _logs(engine: FakeEngine, request: Request, name: str) -> bytes:
    return _frame(engine.own_logs.get(engine.name_of(engine.present(name)), engine.own_logs.get("", b"")))


def _prepare_program(engine: FakeEngine, request: Request, name: str) -> Any:
    identity = engine.present(name)
    if engine.containers[identity]["State"]["Status"] != "running":
        raise Refusal(409, f"container {identity} is not running")
    return {"Id": " ".join(request.body["Cmd"]).encode().hex()}


def _run_program(engine: FakeEngine, request: Request, words: str) -> Answer:
    answer = engine.answers.get(bytes.fromhex(words).decode(), b"")
    return Answer(_frame(answer), {"Content-Type": "application/vnd.docker.raw-stream"})


def _build(engine: FakeEngine, request: Request) -> Answer:
    return Answer("".join(json.dumps(step) + "\r\n" for step in engine.steps).encode(), {"Chunked": "1"})


def _frame(content: bytes) -> bytes:
    """As the engine sends stdout beside stderr."""
    return struct.pack(">BxxxL", 1, len(content)) + content if content else b""


_ROUTES: Sequence[tuple[str, str, Callable[..., Any]]] = (
    ("GET", "/_ping", lambda engine, request: b"OK"),
    ("GET", "/version", lambda engine, request: {"ApiVersion": _API, "Components": [{"Name": engine.product}]}),
    ("GET", "/info", lambda engine, request: {"SecurityOptions": engine.security}),
    ("GET", "/images/(.+)/json", _image),
    ("GET", "/containers/json", _list),
    ("POST", "/containers/create", _make),
    ("GET", "/containers/([^/]+)/json", lambda engine, request, name: engine.containers[engine.present(name)]),
    ("POST", "/containers/([^/]+)/start", _start),
    ("POST", "/containers/([^/]+)/stop", lambda engine, request, name: engine.end(engine.present(name), 143)),
    ("POST", "/containers/([^/]+)/kill", lambda engine, request, name: engine.end(engine.present(name), 137)),
    ("POST", "/containers/([^/]+)/wait", lambda engine, request, name: {"StatusCode": engine.exit_code(name)}),
    ("DELETE", "/containers/([^/]+)", _remove),
    ("GET", "/containers/([^/]+)/archive", _archive),
    ("GET", "/containers/([^/]+)/logs", _logs),
    ("POST", "/containers/([^/]+)/exec", _prepare_program),
    ("POST", "/exec/([^/]+)/start", _run_program),
    ("POST", "/build", _build),
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body together: sent one by one, each answer takes as long as an acknowledgement
    engine: FakeEngine

    def handle_any(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        content = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
        is_json = self.headers.get("Content-Type") == "application/json" and content
        request = Request(
            self.command,
            urllib.parse.unquote(re.sub(r"^/v\d+\.\d+", "", url.path)),
            dict(urllib.parse.parse_qsl(url.query)),
            json.loads(content) if is_json else content,
        )
        try:
            self._send(200, self.engine.handle(request))
        except Refusal as refusal:
            self._send(refusal.status, {"message": str(refusal)})

    do_GET = do_POST = do_DELETE = do_HEAD = handle_any

    def _send(self, status: int, answer: Any) -> None:
        """An `Answer`, text as bytes, or what JSON can hold."""
        if not isinstance(answer, Answer):
            is_text = isinstance(answer, bytes)
            content = answer if is_text else json.dumps(answer).encode()
            answer = Answer(content, {"Content-Type": "text/plain" if is_text else "application/json"})
        content, headers = answer.body, dict(answer.headers)
        is_chunked, is_stream = headers.pop("Chunked", None), "raw-stream" in headers.get("Content-Type", "")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
            content = (b"%x\r\n%b\r\n" % (len(content), content) if content else b"") + b"0\r\n\r\n"
            if self.engine.cut_streams:
                content = content[: len(content) // 2]
                self.close_connection = True
        elif is_stream:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if is_stream:
            # docker-py reads the bare socket from here on, and would miss what arrives together with the headers.
            self.wfile.flush()
            time.sleep(0.02)
            self.close_connection = True
        self.wfile.write(content)

    def _chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are kept; they need not be printed."""


@contextlib.contextmanager
def fake_engine(tcp: bool = False) -> Iterator[FakeEngine]:
    """An engine that listens on a socket file, or at a port of this machine."""
    engine = FakeEngine()
    # Not one of pytest's folders: a socket's path may have about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="fake-"))
    handler = type("Handler", (_Handler,), {"engine": engine})
    server: ThreadingTCPServer
    if tcp:
        server = ThreadingTCPServer(("127.0.0.1", 0), handler)
        engine.url = f"tcp://127.0.0.1:{server.server_address[1]}"
    else:
        server = ThreadingUnixStreamServer(str(folder / "sock"), handler)
        engine.url = f"unix://{folder}/sock"
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        shutil.rmtree(folder)


def connected(engine: FakeEngine) -> Engine:
    """The launcher's own connection to it."""
    return Engine({"DOCKER_HOST": engine.url})


@functools.cache
def _commands() -> Callable[..., Any]:
    """Made once, which takes longer than what most of them do."""
    return get_command(launcher())


class Launcher:
    """`launch.py` in this process."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        monkeypatch.setenv("DOCKER_HOST", url)
        for name in ("DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
            monkeypatch.delenv(name, raising=False)
        # Docker's own settings of who runs the tests may add variables to containers.
        monkeypatch.setenv("HOME", "/nowhere")
        # Whether it is well, is seen at once here; waiting for that has tests of its own.
        monkeypatch.setattr(control, "settle", lambda engine, job, *more: find_job(engine, job.id) or job)
        # What lies there without having been started was left over.
        monkeypatch.setattr(control, "_STARTING_SECONDS", 0.0)

    def __call__(self, *words: object, status: int = 0) -> Any:
        """What it printed: `out` and `err`."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            _commands()(list(map(str, words)), prog_name="launch.py")
        code = exit_info.value.code or 0
        said = self._capsys.readouterr()
        assert code == status, f"status {code}\n{said.out}\n{said.err}"
        return said

    def refused(self, *words: object) -> str:
        """A mistake: status 2, one message, no traceback; returns the message."""
        said = self(*words, status=2)
        assert len(re.findall(r"^error: |^Error: ", said.err, re.MULTILINE)) == 1, said.err
        assert "Traceback" not in said.err
        return str(said.err)
