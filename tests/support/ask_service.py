"""`run_serve.py`, asked once as soon as it listens: the answer goes to served.json, and the service is ended.

A pattern stands for the run's folder, whose name has a digest in it.
"""

import nystromformer.command_line.interrupt  # noqa: F401  # first of all, as in each script

import functools
import glob
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import served
import typer

from nystromformer.command_line import cli
from nystromformer.files.writing import write_json
from nystromformer.serve import server
from run_serve import serve

QUESTION = {"text": "the <mask> of a token"}
_answered: list[dict[str, Any]] = []


def ask(address: str) -> dict[str, Any]:
    """Status and answers."""
    status, said = served.ask(f"{address}predict", json.dumps(QUESTION).encode())
    return {"status": status, "answers": json.loads(said)["answers"]} if status == 200 else {"status": status}


def _told(text: str) -> None:
    found = re.search(r"http://\S+/", text)
    if found is not None:
        threading.Thread(target=_ask_and_end, args=(found[0],), daemon=True).start()


def _ask_and_end(address: str) -> None:
    _answered.append(ask(address))
    os.kill(os.getpid(), signal.SIGTERM)


@functools.wraps(serve)
def serve_once(*args: Any, **flags: Any) -> None:
    """Serve until asked, and write what was answered."""
    serve(*args, **flags)
    if not _answered:
        raise typer.Exit(128 + signal.SIGTERM)  # somebody else's signal
    write_json(Path("served.json"), _answered[0])


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what ends the service ends only that
    sys.argv[1:2] = sorted(glob.glob(sys.argv[1]))[:1] or sys.argv[1:2]
    server.serve_run = functools.partial(_served, server.serve_run)  # type: ignore[assignment]
    cli.run(serve_once)


def _served(real: Callable[..., None], *given: Any) -> None:
    real(*given[:-1], _told)


if __name__ == "__main__":
    main()
