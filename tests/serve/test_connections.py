"""Clients that keep a service waiting: each limit ends them, and everybody else is answered."""

import asyncio
import errno
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from processes import wait_for
from served import FakeModel, ask, ask_json, served

from nystromformer.errors import UserError
from nystromformer.serve import connections
from nystromformer.serve.app import Limits, create_app
from nystromformer.serve.connections import Patience, most_connections
from nystromformer.serve.limits import allowed_hosts

SHORT = Patience(header=0.2, body=0.2, idle=0.2, stopping=0.2)
HEADER = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HALF_BODY = HEADER + b'content-length: 100\r\n\r\n{"text"'
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
PAGE = "x" * (32 << 20)


@contextmanager
def service(patience: Patience = SHORT, most: int | None = None, **limits: Any) -> Iterator[str]:
    with served(create_app(FakeModel(PAGE), Limits(**limits), {}), patience, most) as address:
        yield address


@contextmanager
def client(address: str, content: bytes = b"") -> Iterator[socket.socket]:
    """A connection that has sent so much."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(content)
        yield connection


def to_the_end(connection: socket.socket) -> bytes:
    """What comes until the service ends the connection."""
    content = b""
    with suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            content += piece
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the request's header was not complete after 0.2 seconds"),
        (HEADER, "the request's header was not complete after 0.2 seconds"),
        (HALF_BODY, "the request's body was not complete after 0.2 seconds"),
        (HEADER + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", "the request's body was not complete"),
        (GET + HEADER, "the request's header was not complete"),
        (GET + HALF_BODY, "the request's body was not complete"),
    ],
    ids=["nothing", "half a header", "half a body", "half of the chunks", "second header", "second body"],
)
def test_half_a_request_is_answered_408_and_ended(content: bytes, words: str) -> None:
    with service(replace(SHORT, idle=60)) as address, client(address, content) as connection:
        said = to_the_end(connection).decode()
        assert "HTTP/1.1 408 " in said
        assert words in json.loads(said.rpartition("\r\n\r\n")[2])["error"]
        assert ask_json(f"{address}/predict", text="on")[0] == 200


@pytest.mark.parametrize(
    "begun",
    [
        b"GET / HTTP/1.1\r\nhost: ",
        HALF_BODY.replace(b"100", b"999999"),
        # Answered before it is there, as nobody reads it.
        b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999\r\n\r\n",
    ],
    ids=["header", "body", "body of a GET"],
)
def test_byte_by_byte_does_not_renew_the_time(begun: bytes) -> None:
    with service() as address, client(address, begun) as connection:
        connection.setblocking(False)
        deadline = time.monotonic() + 20
        with suppress(ConnectionError):
            while time.monotonic() < deadline:
                connection.send(b"x")
                time.sleep(0.02)
        assert time.monotonic() < deadline, "it was not ended"


def test_an_idle_connection_is_ended() -> None:
    with service() as address, client(address, GET) as connection:
        assert to_the_end(connection).endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("keeps", [b"", b"connection: close\r\n"])
def test_who_does_not_read_the_answer_is_ended(keeps: bytes) -> None:
    body = b'{"text": "a"}'
    request = HEADER.replace(b"predict", b"explain") + keeps + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    with service(most=1) as address, client(address, request):
        assert ask_json(f"{address}/predict", text="on")[0] == 200, "the only connection is free again"


def test_connections_beyond_the_limit_wait_and_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    with service(most=4) as address, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(client(address, HEADER))
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda text: ask_json(f"{address}/predict", text=text)[0], "abcdefgh"))
        assert found == [200] * 8
    assert caplog.text == "", "of what clients do nothing is logged"


def test_connections_at_a_time_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((100, 50), (1024, 512), (1 << 20, 512), (connections.resource.RLIM_INFINITY, 512)):
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, files=files: (files, files))
        assert most_connections() == most


def test_a_machine_without_descriptors_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_RETRY_SECONDS", 0.001)
    failures, real = [], asyncio.SelectorEventLoop.sock_accept

    async def fails(loop: Any, listener: socket.socket) -> Any:
        if len(failures) < 50:
            failures.append(listener)
            raise OSError(errno.EMFILE, "Too many open files")
        return await real(loop, listener)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", fails)
    with service() as address:
        assert ask_json(f"{address}/predict", text="on")[0] == 200
    assert len(failures) == 50
    assert [record.getMessage() for record in caplog.records] == [
        "no connection can be accepted (Too many open files); it is tried again every second"
    ]


@pytest.mark.parametrize("content", [HEADER, HALF_BODY, GET], ids=["half a header", "half a body", "idle"])
def test_stopping_waits_for_no_client(content: bytes) -> None:
    """The end of `served` asserts it."""
    with ExitStack() as stack, service(Patience(header=60, body=60, idle=60, stopping=0.2)) as address:
        stack.enter_context(client(address, content))
        assert ask_json(f"{address}/predict", text="on")[0] == 200


def test_stopping_gives_up_an_answer_that_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    model = FakeModel()
    model.go.clear()
    body = b'{"text": "wait"}'
    with ExitStack() as stack:
        with served(create_app(model, Limits(), {}), SHORT) as address:
            request = HEADER + b"content-length: %d\r\n\r\n%s" % (len(body), body)
            connection = stack.enter_context(client(address, request))
            wait_for(lambda: model.begun)
        assert to_the_end(connection) == b""
        model.go.set()
    assert "stopping: 1 requests were not answered within 0.2 seconds" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LocalHost.:80", "127.0.0.1", "[::1]:8000")),
        *((host, 200) for host in ("models.example", "10.0.0.7:1")),
        *((host, 400) for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "")),
        *((host, 400) for host in ("localhost@evil.example", "evil.example:localhost", "[evil.example]")),
    ],
)
@pytest.mark.parametrize("path", ["/health", "/", "/predict"])
def test_only_its_own_names_are_answered(path: str, host: str, status: int, named: str) -> None:
    content = b'{"text": "a"}' if path == "/predict" else None
    found, text = ask(named + path, content, host=host)
    assert found == status, text
    if status == 400:
        assert "Start it with --allowed_hosts NAME" in json.loads(text)["error"]


@pytest.fixture(scope="module")
def named() -> Iterator[str]:
    """A service that is told two names."""
    with service(Patience(), hosts=allowed_hosts("Models.example, 10.0.0.7", "127.0.0.1")) as address:
        yield address


def test_every_name_may_be_allowed() -> None:
    with service(hosts=allowed_hosts("*", "0.0.0.0")) as address:
        assert ask(f"{address}/health", host="evil.example")[0] == 200


@pytest.mark.parametrize("text", ["http://a.example", "a.example:80", "a b", "a,,b", "a/b", ","])
def test_a_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--allowed_hosts .* is no host name; expected names with commas between them"):
        allowed_hosts(text, "127.0.0.1")
