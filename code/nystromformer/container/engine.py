"""The container engine: its errors as messages on which users can act, and its containers of this project."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound

from nystromformer.container.spec import COMMAND, FOLDER, GPUS, LOG
from nystromformer.errors import UserError
from nystromformer.tables import Column, aligned

_SECONDS_BETWEEN_LOOKS = 0.5
_ACTIVE = {"running", "restarting", "paused", "stopping"}
"""`stopping` is Podman's word for the time from SIGTERM to the end."""
_COLUMNS = [Column(heading, is_text=True) for heading in ("CONTAINER", "COMMAND", "STATE", "GPU", "FOLDER")]


def with_engine_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, whose errors of docker-py and of the connection are UserErrors."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ImageNotFound as error:
            advice = "Build it with `python code/launch.py build`, or name another with --image"
            raise UserError(f"{error.explanation}. {advice}") from error
        except APIError as error:
            raise UserError(f"the engine refused: {error.explanation or error}{_advice(error)}") from error
        except (DockerException, requests.RequestException) as error:
            raise UserError(
                f"no container engine answers ({error}). Start one (`sudo systemctl start docker`, or Docker Desktop), "
                "or name one that runs by DOCKER_HOST or `docker context use`"
            ) from error

    return wrapped


def _advice(error: APIError) -> str:
    said = str(error.explanation).lower()
    if any(text in said for text in ("device driver", "nvidia-container", "nvidia.com/gpu", "unknown device")):
        return ". GPUs need the NVIDIA Container Toolkit, and numbers of `nvidia-smi -L`; on CPUs use --gpus none"
    return ". Give it another name with --name, or stop or remove the other" if error.status_code == 409 else ""


def connect() -> Any:
    """docker-py's client of DOCKER_HOST's engine, or that of docker's current context."""
    return docker.from_env(timeout=60)


def user_of_files(client: Any | None) -> str | None:
    """ "uid:gid" of a container whose files shall belong to who calls; an engine that runs as an ordinary user calls
    that one root."""
    options = client.info().get("SecurityOptions") or [] if client is not None else []
    if any("rootless" in option for option in options):
        return "0:0"
    return f"{os.getuid()}:{os.getgid()}" if hasattr(os, "getuid") else None


def find_containers(client: Any) -> list[Any]:
    """All that the launcher made, the newest first."""
    return list(client.containers.list(all=True, filters={"label": COMMAND}, ignore_removed=True))


def select(containers: Sequence[Any], name: str) -> list[Any]:
    """Those that users name by container, or else by folder or its name."""
    folder = Path(name).resolve()
    named = [each for each in containers if each.name == name]
    named = named or [each for each in containers if Path(each.labels[FOLDER]) == folder]
    named = named or [each for each in containers if Path(each.labels[FOLDER]).name == name]
    if not named:
        there = ", ".join(each.name for each in containers) or "none of this project"
        raise UserError(f"{name}: expected a container or its folder; there are: {there}")
    return named


def is_active(container: Any) -> bool:
    """Whether it has not ended, by what the engine said last."""
    return container.status in _ACTIVE


def exit_status(container: Any) -> int:
    return int(container.attrs["State"].get("ExitCode") or 0)


def state(container: Any) -> str:
    """For people."""
    if is_active(container) or container.status == "created":
        return str(container.status)
    if container.attrs["State"].get("OOMKilled"):
        return "out of memory"
    status = exit_status(container)
    return {0: "done", 130: "stopped", 143: "stopped", 137: "killed"}.get(status, f"failed ({status})")


def table(containers: Sequence[Any]) -> str:
    """A line for each."""
    rows = (
        [each.name, each.labels[COMMAND], state(each), *map(each.labels.get, (GPUS, FOLDER))] for each in containers
    )
    return "\n".join(aligned(_COLUMNS, rows))


def log_size(container: Any) -> int:
    """Bytes of the log's file; 0 where there is none."""
    log = container.labels[LOG]
    return os.path.getsize(log) if log and os.path.exists(log) else 0


def read_log(container: Any, follow: bool, begin: int = 0) -> Iterator[bytes]:
    """The log in pieces.

    Args:
        follow: go on with what is added until the container ends.
        begin: leave out so many bytes, which earlier starts wrote to its file.
    """
    if not container.labels[LOG]:
        yield from container.logs(stream=True, follow=follow)
        return
    with open(container.labels[LOG], "rb") as file:
        file.seek(begin)
        yield file.read()
        while follow:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            container.reload()
            follow = is_active(container)
            yield file.read()
