"""A service on a port of its own, in a thread."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nystromformer.serve.connections import Patience, Server


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


def asked(address: str, **body: Any) -> tuple[int, Any]:
    """Status and JSON of a POST of JSON."""
    status, text = ask(address, json.dumps(body).encode())
    return status, json.loads(text)
