"""Running the launcher, and looking at what it leaves, for tests against a real engine."""

import subprocess
from collections.abc import Mapping

from container_engine import Engine
from small import command

_SECONDS = 120.0


class Launcher:
    """`launch.py` against an engine, as a process of its own."""

    def __init__(self, engine: Engine, **variables: str) -> None:
        self.env: Mapping[str, str] = {**engine.env, **variables}

    def __call__(self, *words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command("code/launch.py", *words),
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def begin(self, *words: object) -> subprocess.Popen[str]:
        """Not waited for; stdout is a pipe."""
        return subprocess.Popen(
            command("code/launch.py", *words), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
