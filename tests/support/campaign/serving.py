"""Trials of the service: clients that half send, flood, speak nonsense or leave, and signals while it answers.

However they behave, everybody else is answered as by an undisturbed service, its log stays short, a signal ends it, and
nothing in the folder changes. All sockets are of this machine.
"""

import contextlib
import json
import random
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ask_service import QUESTION, ask

from campaign import trees
from campaign.commands import Command, Running
from campaign.scenes import Scene
from campaign.trial import LIMIT, Attempt, Outcome, Sandbox
from campaign.verdicts import Verdict, crash
from nystromformer.serve import app, connections

_FLAGS = ("--port", "0", "--device", "cpu")
ASK = "tests/support/ask_service.py"
SERVE = Scene("serve", (Command(ASK, ("model", *_FLAGS)),), ("model",), ("served.json",), edited=("model/config.json",))
SERVE_RUN = Scene(
    "serve-run", (Command(ASK, ("model/model/glue/SST-2/cp-*", *_FLAGS)),), ("model",), ("served.json",),
    edited=("model/config.json",),
)  # fmt: skip
_COMMAND = Command("code/run_serve.py", ("model", *_FLAGS))
_LOG_BYTES = 20_000
_ROUNDING = 1e-4
_ENDS = (-signal.SIGTERM, -signal.SIGKILL, 130)
assert app  # imported here, so that no fork has to


def service(attempt: Attempt) -> Outcome:
    """Clients that misbehave, then one that does not; then a signal."""
    sandbox = attempt.open(attempt.prepared[SERVE.name])
    expected = json.loads((sandbox.prepared.done / "served.json").read_text())["answers"]
    attack = attempt.draw.choice(_ATTACKS)
    number = attempt.draw.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGKILL))
    before = sandbox.look()
    with _running(sandbox, attempt.real) as (running, port), _Clients(port) as clients:
        wrong = attack(attempt.draw, clients) if port else "it does not listen"
        if not wrong and not _same(ask(f"http://127.0.0.1:{port}/").get("answers"), expected):
            wrong = "another answer than that of an undisturbed service"
        running.send(number)
        if not wrong and not all(_same(each, expected) for each in clients.last_answers()):
            wrong = "a wrong answer to one who was served when the signal came"
        ended = running.end(LIMIT)
    if crashed := crash(ended, _ENDS):
        verdict = crashed
    elif len(ended.text) > _LOG_BYTES:
        verdict = Verdict("unclear", f"{len(ended.text):,} bytes of log")
    elif wrong:
        verdict = Verdict("silent", wrong)
    elif trees.listing(sandbox.folder) != before:
        verdict = Verdict("lost", "the folder is not as it was")
    else:
        verdict = Verdict("identical")
    return attempt.outcome(sandbox, f"{attack.__name__.strip('_')}, then {number.name}", verdict)


@contextmanager
def _running(sandbox: Sandbox, real: bool) -> Iterator[tuple[Running, int]]:
    """A service, and where it listens; 0 where it does not."""
    running = Running(_COMMAND, sandbox.folder, real, None if real else _be_impatient, sandbox.output)
    try:
        found = running.wait_for(r"http://127\.0\.0\.1:(\d+)/", 4 * LIMIT)
        yield running, int(found[1]) if found else 0
    finally:
        running.send(signal.SIGKILL, whole=True)


def _be_impatient() -> None:
    short = connections.Patience(header=0.5, body=0.5, idle=0.5, stopping=1.0)
    connections.Patience.for_bodies_of = lambda most_bytes: short  # type: ignore[assignment, method-assign]


class _Clients(ExitStack):
    """Clients of a service, whose connections end with the context.

    waiting: those that are to be answered when the signal comes.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.waiting: list[socket.socket] = []

    def send(self, content: bytes) -> socket.socket:
        connection = self.enter_context(socket.create_connection(("127.0.0.1", self._port), timeout=60))
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
        return connection

    def last_answers(self) -> Iterator[object]:
        """What those were told that were waiting, without those whom the end cut off."""
        for connection in self.waiting:
            head, _, body = _all_of(connection).partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if length is not None and len(body) >= int(length[1]) and b" 200 " in head[:15]:
                yield json.loads(body)["answers"]


def _all_of(connection: socket.socket) -> bytes:
    content = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            content += piece
    return content


def _request(body: bytes, headers: bytes = b"", path: bytes = b"/predict", host: bytes = b"localhost") -> bytes:
    head = b"POST %s HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\n" % (path, host)
    return head + (headers or b"content-length: %d\r\n" % len(body)) + b"\r\n" + body


_GOOD = _request(json.dumps(QUESTION).encode())


def _half_sent(draw: random.Random, clients: _Clients) -> str:
    for _ in range(draw.randint(1, 30)):
        clients.send(_GOOD[: draw.randrange(len(_GOOD))])
    return ""


def _flood(draw: random.Random, clients: _Clients) -> str:
    """More than the descriptors that the service may open."""
    for _ in range(300):
        clients.send(draw.choice((b"", _GOOD[:40], b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")))
    return ""


def _gone(draw: random.Random, clients: _Clients) -> str:
    for _ in range(draw.randint(1, 30)):
        clients.send(_GOOD[: draw.choice((len(_GOOD), draw.randrange(len(_GOOD))))]).close()
    return ""


def _signal_while_answering(draw: random.Random, clients: _Clients) -> str:
    clients.waiting = [clients.send(_GOOD) for _ in range(draw.randint(1, 30))]
    return ""


def _hostile(draw: random.Random, clients: _Clients) -> str:
    for content in draw.sample(_hostile_requests(draw), 6):
        said = _all_of(clients.send(content))
        if said and not re.match(rb"HTTP/1\.1 4\d\d ", said):
            return f"{content[:80]!r} was answered {said[:40]!r}"
    return ""


def _same(one: Any, other: Any) -> bool:
    """Whether answers are the same, but for the rounding of a batch."""
    if not one or len(one) != len(other):
        return False
    pairs = [pair for x, y in zip(one, other, strict=True) for pair in zip(x["choices"], y["choices"], strict=True)]
    return all(a["label"] == b["label"] and abs(a["probability"] - b["probability"]) < _ROUNDING for a, b in pairs)


def _hostile_requests(draw: random.Random) -> list[bytes]:
    bodies = [b"", b"{", b"[" * 20_000, draw.randbytes(200), b'{"text": NaN}', b'{"text": 1e999}', b'{"text": "\xff"}',
              b'{"text": "\\ud800 <mask>"}', b'{"texts": []}', b'{"text": "no mask"}', b"9" * 5000, b"\x00" * 100,
              b'{"text": "%s"}' % (b"<mask>" * 300_000), b'{"texts": [%s"<mask>"]}' % (b'"<mask>",' * 99),
              b'{"text": "<mask>", "__proto__": 1}', b'{"text": {"$ref": "/etc/passwd"}}']  # fmt: skip
    good = json.dumps(QUESTION).encode()
    headers = [
        *(b"content-length: -1\r\n", b"content-length: 1" + b"0" * 30 + b"\r\n", b"content-length: 999\r\n"),
        *(b"content-length: 3\r\ncontent-length: 9\r\n", b"transfer-encoding: chunked\r\ncontent-length: 5\r\n"),
        *(b"transfer-encoding: gzip\r\n", b"x" * 70_000 + b": 1\r\n", b"a: b\x00c\r\n"),
    ]
    paths = [b"/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"http://evil.example/predict", b"/" + b"a" * 5000]
    return [
        *map(_request, bodies),
        *(_request(good, each) for each in headers),
        *(_request(good, path=each) for each in paths),
        *(_request(good, host=each) for each in (b"evil.example", b"", b"a b", b"localhost\r\nhost: b")),
        draw.randbytes(300) + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]


_ATTACKS: tuple[Callable[[random.Random, _Clients], str], ...] = (
    *(_half_sent, _flood, _gone, _signal_while_answering, _hostile),
)
