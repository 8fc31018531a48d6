"""A stand-in for the program `ssh`: it runs what it shall run over there right here, with another engine in reach."""

import os
import shlex
import shutil
import sys
from pathlib import Path

_SSH = """\
#!/bin/sh
for last; do :; done
PATH={path}
DOCKER_HOST={engine}
export PATH DOCKER_HOST
{before}
eval "$last"
"""

_DOCKER = """\
#!{python} -SE
import contextlib, os, socket, sys, threading
assert sys.argv[-2:] == ["system", "dial-stdio"], sys.argv
engine = socket.socket(socket.AF_UNIX)
engine.connect(os.environ["DOCKER_HOST"].removeprefix("unix://"))

def upwards():
    with contextlib.suppress(OSError):
        while piece := os.read(0, 65536):
            engine.sendall(piece)
        engine.shutdown(socket.SHUT_WR)

threading.Thread(target=upwards, daemon=True).start()
with contextlib.suppress(OSError):  # the launcher has closed its end
    while piece := engine.recv(65536):
        while piece:
            piece = piece[os.write(1, piece) :]
"""


def write_ssh(folder: Path, engine: str, before: str = "") -> Path:
    """Make a folder for PATH, with the programs ssh and, over there, docker.

    Args:
        engine: address of the engine that is found over there.
        before: lines of shell to run there first, as an error of ssh's own.
    """
    there = folder / "there"
    there.mkdir(parents=True)
    _write(there / "docker", _DOCKER.format(python=sys.executable))
    words = {"path": os.pathsep.join([str(there), os.defpath]), "engine": engine}
    _write(folder / "ssh", _SSH.format(before=before, **{key: shlex.quote(text) for key, text in words.items()}))
    return folder


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def on_path(folder: Path) -> str:
    """PATH with the stand-in first, and the shell that it needs."""
    assert shutil.which("sh") is not None
    return os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
