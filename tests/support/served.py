"""A service on a port of its own, in a thread."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nystromformer.serve.answers import Answer, Choice, Source
from nystromformer.serve.connections import Patience, Server


class FakeModel:
    """Says how many characters a text has, once `go` is set; explains short ones, or all by a page."""

    name, does, example, window = "counting <b>", "It counts & tells.", "one <i>two</i>", None
    longest: int | None = 100
    label = "other"
    source = Source("counting", "glue/SST-2", "seed0-abc", 7, "cp-0002.model", "a" * 64, "b" * 64)

    def __init__(self, page: str | None = None) -> None:
        self.sizes: list[int] = []
        self.begun = self.explained = 0
        self.go = threading.Event()
        self.go.set()
        self._page = page

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        self.begun += 1
        assert self.go.wait(30)
        self.sizes.append(len(texts))
        if "wrong" in texts:
            raise ValueError("this text has no answer")
        if "broken" in texts:
            raise RuntimeError("out of order")
        return [Answer([Choice(str(len(text)), 0.75), Choice(self.label, 0.25)], len(text), False) for text in texts]

    def explain(self, text: str) -> str | None:
        self.explained += 1
        return self._page or (f"<p>{len(text)}</p>" if len(text) < 50 else None)


@contextmanager
def served(app: Any, patience: Patience | None = None, most: int | None = None) -> Iterator[str]:
    """The address of an ASGI app while the context lasts."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = Server(app, listener, patience, most)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.started
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "it does not stop"


def ask(address: str, content: bytes | None = None, **headers: str) -> tuple[int, str]:
    """Status and body of a GET, or with content of a POST."""
    request = urllib.request.Request(address, content, {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask_json(address: str, **body: Any) -> tuple[int, Any]:
    """Status and JSON of a POST of JSON."""
    status, text = ask(address, json.dumps(body).encode())
    return status, json.loads(text)
