"""A service that runs, and a model for one."""

import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

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


@contextmanager
def service(words: Sequence[str], **options: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process of a service that answers, started by these words on any port, and its port."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found
        # It listens already; the answer comes as soon as it is loaded.
        assert requests.get(f"{found[0]}health", timeout=60).status_code == 200
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str, **body: Any) -> requests.Response:
    """The answer to a POST of JSON."""
    return requests.post(f"http://127.0.0.1:{port}/{path}", json=body, timeout=60)
