"""A stand-in for the program `ssh`: it runs what it shall run over there right here, with another engine in reach."""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_SSH = """\
#!/bin/sh
for word; do printf '%s\\n' "$word"; done >> {log}
echo >> {log}
for last; do :; done
PATH={path}
DOCKER_HOST={engine}
export PATH DOCKER_HOST
{before}
eval "$last"
"""

_DOCKER = """\
#!{python} -SE
import os, socket, sys, threading, time
assert sys.argv[-2:] == ["system", "dial-stdio"], sys.argv
address = sys.argv[2] if sys.argv[1] == "--host" else os.environ["DOCKER_HOST"]
engine = socket.socket(socket.AF_UNIX)
engine.connect(address.removeprefix("unix://"))

def upwards():
    while piece := os.read(0, 65536):
        engine.sendall(piece)
    engine.shutdown(socket.SHUT_WR)

threading.Thread(target=upwards, daemon=True).start()
pause = float(os.environ.get("PAUSE", 0))  # in which what is sent in pieces comes together
while time.sleep(pause) or (piece := engine.recv(65536)):
    while piece:
        piece = piece[os.write(1, piece) :]
"""


@dataclass(frozen=True)
class SshProgram:
    """What tests ask of it.

    Args:
        folder: with the programs ssh and docker.
    """

    folder: Path

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        log = self.folder / "log"
        return [call.splitlines() for call in log.read_text().split("\n\n") if call] if log.exists() else []


def write_ssh(folder: Path, engine: str, before: str = "", docker: Path | None = None) -> SshProgram:
    """Make a folder for PATH.

    Args:
        engine: address of the engine that is found over there.
        before: lines of shell to run there first, as an error of ssh's own.
        docker: the docker command over there; None: one that knows `system dial-stdio` alone.
    """
    folder.mkdir()
    there = folder / "there"
    there.mkdir()
    if docker is None:
        _write(there / "docker", _DOCKER.format(python=sys.executable))
    else:
        (there / "docker").symlink_to(docker)
    path = os.pathsep.join([str(there), os.defpath])
    words = {"log": folder / "log", "path": path, "engine": engine}
    _write(folder / "ssh", _SSH.format(before=before, **{key: shlex.quote(str(text)) for key, text in words.items()}))
    return SshProgram(folder)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def on_path(program: SshProgram) -> str:
    """PATH with the stand-in first, and the shell that it needs."""
    assert shutil.which("sh") is not None
    return os.pathsep.join([str(program.folder), os.environ.get("PATH", os.defpath)])
