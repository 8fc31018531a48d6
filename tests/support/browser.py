"""An installed browser, without a window, told what to do over a pipe (the Chrome DevTools Protocol)."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
"""None where none is installed."""
_SECONDS = 60.0


class Browser:
    """One page of a running browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._unread = b""
        self._number = 0
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")
        self._session = {
            "sessionId": self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        }
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=address)
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script: str) -> Any:
        """The value of a script's last expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], end - time.monotonic())
            part = os.read(self._answers, 1 << 16) if ready else b""
            assert part, "the browser ended" if ready else f"the browser said nothing for {_SECONDS:.0f} s"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser with a profile of its own, closed at the end."""
    assert BROWSER is not None
    # It reads commands from file 3 and writes to file 4: ours must not be these, or one would be put over the other.
    command_end, commands = map(_above_ten, os.pipe())
    answers, answer_end = map(_above_ten, os.pipe())

    def connect() -> None:
        os.dup2(command_end, 3)
        os.dup2(answer_end, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--disable-dev-shm-usage"]
        process = subprocess.Popen(
            [BROWSER, *flags, "--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
        )
        os.close(command_end)
        os.close(answer_end)
        try:
            browser = Browser(commands, answers)
            yield browser
        finally:
            # It ends when nobody can tell it anything any more.
            os.close(commands)
            os.close(answers)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _above_ten(number: int) -> int:
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(number)
    return moved
