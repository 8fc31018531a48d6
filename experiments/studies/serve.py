"""A service under load: rounds of 200 requests at once, texts of mixed lengths among bad JSON, huge bodies and clients
that leave; how each is answered, how long it takes, and what memory it needs.

`python experiments/studies/serve.py run`, with nothing beside it, writes results/serve; `collect` writes its table
again. The model has BERT-small's size (4 layers, width 512) and reads 2,048 tokens; texts are made-up words, weights
those of a training of one step: neither changes the time. All clients begin at the same moment, so a time is mostly
that of waiting for the others.
"""

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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nystromformer import studies
from nystromformer.benchmark.one_step import run_of_one_step
from nystromformer.files.paths import PROJECT
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "serve"
ROUNDS = 4
LENGTH = 2048
TEXTS, BAD, HUGE, GONE = 170, 10, 10, 10
"""Requests of a round: 200."""
EXPECTED = {"text": 200, "bad JSON": 400, "huge body": 413, "left": None}
PATIENCE = 600
"""Seconds."""


@dataclass(frozen=True)
class Answer:
    """What became of a request."""

    kind: str
    status: int | None
    """None: the client has gone."""
    seconds: float


def post(port: int, kind: str, body: bytes, length: int | None = None) -> Answer:
    """Send a request.

    Args:
        length: that it claims to have; None: its own.
    """
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"content-type": "application/json", "content-length": str(length or len(body))}
    connection.request("POST", "/predict", body, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return Answer(kind, answer.status, time.monotonic() - began)


def post_and_leave(port: int, body: bytes) -> Answer:
    """Send a request, and do not wait for its answer."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        gone.sendall(b"content-length: %d\r\n\r\n%s" % (len(body), body))
    return Answer("left", None, time.monotonic() - began)


def make_words(draw: random.Random) -> list[str]:
    """500 made-up ones."""
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(500)]


def make_texts(seed: int, count: int) -> list[str]:
    """Of 5 to 2,500 words, short ones more often, as people's are."""
    draw = random.Random(seed)
    words = make_words(draw)
    return [" ".join(draw.choices(words, k=int(5 * 500 ** draw.random()))) for _ in range(count)]


def post_all(port: int, seed: int) -> tuple[list[Answer], float]:
    """All requests of a round at once, and the seconds until the last has its answer."""
    bodies = [json.dumps({"text": text}).encode() for text in make_texts(seed, TEXTS + GONE)]
    calls: list[Callable[[], Answer]] = [
        *(partial(post, port, "text", body) for body in bodies[:TEXTS]),
        *(partial(post_and_leave, port, body) for body in bodies[TEXTS:]),
        *[partial(post, port, "bad JSON", b'{"text": "never closed')] * BAD,
        *[partial(post, port, "huge body", b"{}", 1 << 40)] * HUGE,
    ]
    random.Random(seed).shuffle(calls)
    together = threading.Barrier(len(calls))

    def ask(call: Callable[[], Answer]) -> Answer:
        together.wait()
        return call()

    began = time.monotonic()
    with ThreadPoolExecutor(len(calls)) as pool:
        answers = list(pool.map(ask, calls))
    return answers, time.monotonic() - began


def memory_of(process: int) -> float:
    """MiB that a process holds."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def port_of(log: Path, server: "subprocess.Popen[bytes]") -> int:
    """Where it listens, as it says."""
    while server.poll() is None:
        if (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())) is not None:
            return int(found[1])
        time.sleep(0.2)
    sys.exit(log.read_text())


def measure_round(port: int, server: int, number: int) -> dict[str, Any]:
    """How its requests were answered, their times, and the service's memory."""
    before = memory_of(server)
    answers, seconds = post_all(port, number)
    cuts = statistics.quantiles([each.seconds for each in answers if each.kind == "text"], n=100)
    counts = Counter((each.kind, each.status) for each in answers)
    return {
        "round": number + 1,
        "statuses": [{"kind": kind, "status": status, "count": count} for (kind, status), count in counts.items()],
        "unexpected": sum(each.status != EXPECTED[each.kind] for each in answers),
        "p50_seconds": cuts[49],
        "p99_seconds": cuts[98],
        "seconds": seconds,
        "refusal_seconds": max(each.seconds for each in answers if each.kind in ("bad JSON", "huge body")),
        "mib_before": before,
        "mib_after": memory_of(server),
    }


def run() -> None:
    """Measure, and write serve.json and serve.md."""
    with tempfile.TemporaryDirectory() as name:
        model = run_of_one_step(Path(name), LENGTH, make_texts(-1, 40))
        log = Path(name) / "log"
        words = [sys.executable, "code/run_serve.py", str(model), "--port", "0"]
        with log.open("wb") as file:
            server = subprocess.Popen(words, cwd=PROJECT, stdout=file, stderr=subprocess.STDOUT)
        try:
            port = port_of(log, server)
            post(port, "text", b'{"text": "to begin with"}')
            rounds = [measure_round(port, server.pid, number) for number in range(ROUNDS)]
        finally:
            server.terminate()
            server.wait()
    studies.write_figures(RESULTS / "serve.json", rounds=rounds)
    collect()


def collect() -> None:
    """Write serve.md."""
    names = {"p50_seconds": "p50, s", "p99_seconds": "p99, s", "seconds": "all, s",
             "refusal_seconds": "slowest refusal, s"}  # fmt: skip
    header = ["round", "answered otherwise than stated", *names.values(), "memory before, MiB", "after"]
    lines = [
        [str(each["round"]), str(each["unexpected"]), *(f"{each[name]:.1f}" for name in names),
         f"{each['mib_before']:,.0f}", f"{each['mib_after']:,.0f}"]
        for each in studies.read_json(RESULTS / "serve.json")["rounds"]
    ]  # fmt: skip
    studies.write_page(RESULTS / "serve.md", markdown(header, lines))


if __name__ == "__main__":
    studies.run_commands(run, collect)
