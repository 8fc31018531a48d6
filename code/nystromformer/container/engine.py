"""The container engine: how to reach it, and what its errors mean to users."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import docker
import requests
import urllib3
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, ImageNotFound

from nystromformer.container.options import IMAGE
from nystromformer.errors import UserError

_DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_SSH = "ssh://"
_SECONDS = 60
"""For an answer of the engine; stopping a container has its own time."""


class NoEngine(UserError):
    """No engine can be reached."""


class Engine:
    """The engine that `docker` would talk to: DOCKER_HOST's, DOCKER_CONTEXT's, the current context's, or the local one.
    It is connected to when it is first used; raises NoEngine where there is none."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = dict(environment)
        self.address = engine_address(environment)

    @cached_property
    def client(self) -> docker.DockerClient:
        """docker-py's."""
        try:
            client = docker.from_env(timeout=_SECONDS, environment=self._environment, use_ssh_client=True)
            client.ping()
        except (DockerException, requests.RequestException, OSError, ValueError) as error:
            raise NoEngine(_unreachable(self.address, error)) from error
        return client

    @property
    def api(self) -> Any:
        """docker-py's low-level client, whose calls are the engine's own."""
        return self.client.api

    @property
    def is_local(self) -> bool:
        """Whether the engine sees this machine's folders: a socket file is of this machine, a network address is not
        taken to be."""
        return self.address.startswith(("unix://", "npipe://"))

    @cached_property
    def is_rootless(self) -> bool:
        """Whether the engine runs as an ordinary user: the container's root is that user then."""
        with clear_errors("asking the engine who it runs as"):
            options = self.client.info().get("SecurityOptions") or []
        return any("rootless" in str(option) for option in options)

    @cached_property
    def is_podman(self) -> bool:
        """Whether it is Podman, which speaks Docker's language with exceptions."""
        with clear_errors("asking the engine what it is"):
            parts = self.client.version().get("Components") or []
        return any("podman" in str(part.get("Name")).lower() for part in parts)


def engine_address(environment: Mapping[str, str]) -> str:
    """Where the engine is, as `docker` would find it."""
    if environment.get("DOCKER_HOST"):
        return environment["DOCKER_HOST"]
    name = environment.get("DOCKER_CONTEXT")
    try:
        context = ContextAPI.get_context(name)
    except Exception as error:  # docker-py raises bare Exception for a damaged context
        raise NoEngine(f"the docker context {name or 'in use'} cannot be read: {error}") from error
    # docker-py would take the local engine in place of a context that does not exist.
    if context is None:
        raise NoEngine(
            f"there is no docker context {name or 'of the name that is set as the current one'}: `docker context ls` "
            "lists them, and DOCKER_HOST names an engine without one"
        )
    return str(context.Host or _DEFAULT_ADDRESS)


@contextmanager
def clear_errors(what: str, image: str | None = None) -> Iterator[None]:
    """Within the block, every error of docker-py and of the connection is a UserError, on which users can act.

    Args:
        what: is being done, for the message: "starting nystrom-512-pretrain".
        image: that it needs.
    """
    try:
        yield
    except ImageNotFound as error:
        raise UserError(f"{what}: {_missing_image(image or 'the image')}") from error
    except APIError as error:
        raise UserError(f"{what}: {_refusal(error, image)}") from error
    # Of an answer that comes piece by piece, docker-py lets the connection's own errors through.
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError) as error:
        raise UserError(f"{what}: the engine stopped answering ({_reason(error)})") from error


def _missing_image(image: str) -> str:
    option = "" if image == IMAGE else f" --tag {image}"
    return (
        f"the engine has no image {image}. Build it with `python code/launch.py build{option}`, or name another with "
        "--image"
    )


def _refusal(error: APIError, image: str | None) -> str:
    said = str(error.explanation or error).strip()
    lowered = said.lower()
    if error.status_code == 404 and image and ("image" in lowered or image in lowered):
        return _missing_image(image)
    if "unknown device" in lowered:
        return f"--gpus names a GPU that the engine's machine does not have ({said}); `nvidia-smi -L` there lists them"
    if "could not select device driver" in lowered or "nvidia-container" in lowered or "nvidia.com/gpu" in lowered:
        return (
            f"the engine cannot give GPUs to containers ({said}). Install the NVIDIA Container Toolkit on its machine "
            "and restart the engine, or run on CPUs with --gpus none"
        )
    if "bind source path does not exist" in lowered or "statfs" in lowered:
        return f"a folder to mount is not on the engine's machine: {said}"
    return f"the engine refused: {said}"


def _unreachable(address: str, error: Exception) -> str:
    if address.startswith(_SSH):
        return (
            f"no container engine answers at {address} ({_reason(error)}). Needed: `ssh HOST docker version` answers, "
            "without a question where no terminal is"
        )
    if "PermissionError" in str(error):
        return (
            f"{address}: no permission to use this container engine. Become a member of the group that owns the socket "
            "(`sudo usermod -aG docker $USER`, then log in again), or use a rootless engine (DOCKER_HOST)"
        )
    return (
        f"no container engine answers at {address} ({_reason(error)}). Start one (`sudo systemctl start docker`, or "
        "Docker Desktop), or name one that runs: DOCKER_HOST=unix:///path/to.sock or ssh://user@machine, or "
        "`docker context use NAME`"
    )


def _reason(error: BaseException) -> str:
    """The innermost cause, which names the trouble where the outer ones name the library."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
