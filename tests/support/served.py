"""Asking a service, and a model for one."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nystromformer.prediction.serve import Answer, Choice


class FakeModel:
    """Says how many characters a text has, once `go` is set; explains short ones."""

    name, does, folder = "counting <b>", "It counts & tells.", Path("/runs/counting")

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.begun = 0
        self.go = threading.Event()
        self.go.set()

    def answer(self, texts: Sequence[str]) -> list[Answer]:
        self.begun += 1
        assert self.go.wait(30)
        if "broken" in texts:
            raise RuntimeError("out of order")
        self.sizes.append(len(texts))
        choices = [[Choice(label=str(len(text)), probability=0.75)] for text in texts]
        return [Answer(choices=each, tokens=1, rows=1, cut=False, unknown_share=0) for each in choices]

    def explain(self, text: str) -> str:
        if len(text) > 50:
            raise ValueError("no weights")
        return f"<p>{len(text)}</p>"


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
