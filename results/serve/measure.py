"""A service under load: rounds of 200 requests at once, texts of mixed lengths among bad JSON, huge bodies and clients
that leave; how each is answered, how long it takes, and what memory it needs. Writes serve.json and serve.md here.

`python results/serve/measure.py`, with nothing beside it. The model has BERT-small's size (4 layers, width 512) and
reads 2,048 tokens; texts are made-up words, weights those of a training of one step: neither changes the time. All
clients begin at the same moment, so a time is mostly that of waiting for the others.
"""

import collections
import http.client
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.benchmark.one_step import run_of_one_step
from nystromformer.files import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.tables import markdown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROUNDS = 4
LENGTH = 2048
TEXTS, BAD, HUGE, GONE = 170, 10, 10, 10
"""Requests of a round: 200."""
EXPECTED = {"text": 200, "bad JSON": 400, "huge body": 413, "left": None}
PATIENCE = 600
"""Seconds."""


@dataclass(frozen=True)
class Answered:
    """A request and what became of it."""

    kind: str
    status: int | None
    """None: the client has gone."""
    seconds: float


class Client:
    """Asks one service."""

    def __init__(self, port: int) -> None:
        self.port = port

    def text(self, content: str) -> Answered:
        return self._posted("text", json.dumps({"text": content}).encode())

    def bad_json(self) -> Answered:
        return self._posted("bad JSON", b'{"text": "never closed')

    def huge_body(self) -> Answered:
        return self._posted("huge body", b"{}", length=1 << 40)

    def left(self, content: str) -> Answered:
        began = time.monotonic()
        body = json.dumps({"text": content}).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as gone:
            gone.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
            gone.sendall(b"content-length: %d\r\n\r\n%s" % (len(body), body))
        return Answered("left", None, time.monotonic() - began)

    def _posted(self, kind: str, body: bytes, length: int | None = None) -> Answered:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.putrequest("POST", "/predict")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(length or len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return Answered(kind, answer.status, time.monotonic() - began)


def texts(seed: int, count: int) -> list[str]:
    """Of 5 to 2,500 words, short ones more often, as people's are."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(500)]
    return [" ".join(draw.choices(words, k=int(5 * 500 ** draw.random()))) for _ in range(count)]


def one_round(client: Client, seed: int) -> tuple[list[Answered], float]:
    """All at once, and the seconds until the last has its answer."""
    contents = texts(seed, TEXTS + GONE)
    calls: list[Callable[[], Answered]] = [
        *(lambda content=content: client.text(content) for content in contents[:TEXTS]),
        *(lambda content=content: client.left(content) for content in contents[TEXTS:]),
        *([client.bad_json] * BAD),
        *([client.huge_body] * HUGE),
    ]
    random.Random(seed).shuffle(calls)
    together = threading.Barrier(len(calls))

    def ask(call: Callable[[], Answered]) -> Answered:
        together.wait()
        return call()

    began = time.monotonic()
    with ThreadPoolExecutor(len(calls)) as pool:
        found = list(pool.map(ask, calls))
    return found, time.monotonic() - began


def memory(process: int) -> float:
    """MiB that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def port_of(log: Path, server: "subprocess.Popen[bytes]") -> int:
    """Where it listens, as it says."""
    while server.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())
        if found is not None:
            return int(found[1])
        time.sleep(0.2)
    sys.exit(log.read_text())


def measured(client: Client, server: int) -> list[dict[str, Any]]:
    client.text("to begin with")
    rounds = []
    for number in range(ROUNDS):
        before = memory(server)
        found, seconds = one_round(client, number)
        times = sorted(each.seconds for each in found if each.kind == "text")
        cuts = statistics.quantiles(times, n=100)
        rounds.append({
            "round": number + 1,
            "statuses": [
                {"kind": kind, "status": status, "count": count}
                for (kind, status), count in collections.Counter((each.kind, each.status) for each in found).items()
            ],
            "unexpected": sum(each.status != EXPECTED[each.kind] for each in found),
            "p50_seconds": cuts[49],
            "p99_seconds": cuts[98],
            "seconds": seconds,
            "refusal_seconds": max(each.seconds for each in found if each.kind in ("bad JSON", "huge body")),
            "mib_before": before,
            "mib_after": memory(server),
        })  # fmt: skip
    return rounds


def table(rounds: Sequence[dict[str, Any]]) -> str:
    header = ["round", "answered otherwise than stated", "p50, s", "p99, s", "all, s", "slowest refusal, s",
              "memory before, MiB", "after"]  # fmt: skip
    names = ("p50_seconds", "p99_seconds", "seconds", "refusal_seconds")
    lines = [
        [str(each["round"]), str(each["unexpected"]), *(f"{each[name]:.1f}" for name in names),
         f"{each['mib_before']:,.0f}", f"{each['mib_after']:,.0f}"]
        for each in rounds
    ]  # fmt: skip
    return markdown(header, lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = run_of_one_step(folder, LENGTH, texts(-1, 40))
        log = folder / "log"
        words = [sys.executable, "code/run_serve.py", str(run), "--port", "0"]
        with log.open("wb") as file:
            server = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            rounds = measured(Client(port_of(log, server)), server.pid)
        finally:
            server.terminate()
            server.wait()
    write_json(HERE / "serve.json", {"machine": machine_facts(), "rounds": rounds})
    write_text(HERE / "serve.md", table(rounds))


if __name__ == "__main__":
    main()
