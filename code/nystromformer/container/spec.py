"""What a container is made of, as one value: sent to the engine, or printed as a `docker run` line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.types import DeviceRequest
from docker.types import Mount as DockerMount

from nystromformer.container.options import LaunchOptions, Mount

COMMAND, FOLDER, GPUS, LOG = (f"nystromformer.{name}" for name in ("command", "folder", "gpus", "log"))
"""Labels: what runs, on which folder, on which GPUs, and the log's file, which is empty where the engine keeps it."""
STOP_SECONDS = 300
"""From `docker stop` to a kill: the step in progress and the writing of a checkpoint take less."""
_TORCHRUN = ("torchrun", "--standalone", "--shutdown_timeout", str(STOP_SECONDS - 20), "--nproc_per_node")


def program(gpus: LaunchOptions, shares_gpus: bool) -> tuple[str, ...]:
    """What runs a script: Python, or torchrun with a process for each GPU."""
    if not shares_gpus or gpus.gpus == "none" or len(gpus.gpu_ids) == 1:
        return ("python3",)
    return (*_TORCHRUN, str(len(gpus.gpu_ids)) if gpus.gpu_ids else "gpu")


@dataclass(frozen=True)
class ContainerSpec:
    """A container that runs one script.

    Args:
        options: the launcher's flags.
        command, folder: what runs, and on which folder of this machine.
        argv: the program and its arguments, in the container.
        mounts: folders and files.
        log: file that stdout and stderr are appended to, here and in the container; None: the engine keeps them.
        publish: address and port of this machine at which the container's port of that number is reached.
    """

    options: LaunchOptions
    command: str
    folder: Path
    argv: tuple[str, ...]
    mounts: Sequence[Mount]
    log: tuple[Path, str] | None = None
    publish: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        """The container's; engines take letters, digits, `_`, `.` and `-`."""
        return self.options.name or re.sub(r"[^\w.-]", "-", f"{self.folder.name}-{self.command}", flags=re.ASCII)

    @property
    def labels(self) -> dict[str, str]:
        log = str(self.log[0]) if self.log else ""
        return {COMMAND: self.command, FOLDER: str(self.folder), GPUS: self.options.gpus, LOG: log}

    @property
    def words(self) -> list[str]:
        """The container's command. Without `exec` bash would keep the SIGTERM of `docker stop` from the script."""
        if self.log is None:
            return [*self.argv]
        return ["/bin/bash", "-c", f"exec {shlex.join(self.argv)} >> {shlex.quote(self.log[1])} 2>&1"]

    @property
    def network(self) -> str:
        return self.options.network or ("bridge" if self.publish else "host")

    @property
    def published(self) -> list[tuple[str, int]]:
        """On the machine's own network every port is reached as it is."""
        return [self.publish] if self.publish is not None and self.network != "host" else []

    def create(self, api: Any, user: str | None) -> str:
        """Make the container by docker-py's low-level client, without starting it; returns its id.

        Args:
            user: "uid:gid" that the script runs as.
        """
        options, ids = self.options, self.options.gpu_ids
        devices = DeviceRequest(count=0 if ids else -1, device_ids=ids or None, capabilities=[["gpu"]])
        host = api.create_host_config(
            mounts=[DockerMount(m.target, str(m.source), type="bind", read_only=m.read_only) for m in self.mounts],
            device_requests=None if options.gpus == "none" else [devices],
            ipc_mode="host",
            network_mode=self.network,
            port_bindings={port: (address, port) for address, port in self.published},
            init=True,
        )
        created = api.create_container(
            options.image,
            self.words,
            name=self.name,
            user=user,
            environment=options.env,
            labels=self.labels,
            ports=[port for _, port in self.published],
            host_config=host,
            stop_timeout=STOP_SECONDS,
        )
        return str(created["Id"])

    def docker_run(self, user: str | None) -> str:
        """The `docker run` line that makes and starts the same container."""
        options = self.options
        flags = [["--name", self.name], ["--init"], ["--stop-timeout", str(STOP_SECONDS)]]
        flags += [["--user", user]] if user is not None else []
        flags += [["--network", self.network], ["--ipc", "host"]]
        flags += [["--publish", f"{address}:{port}:{port}"] for address, port in self.published]
        if options.gpus != "none":
            flags.append(["--gpus", f'"device={options.gpus}"' if options.gpu_ids else "all"])
        for mount in self.mounts:
            text = f"type=bind,source={mount.source},target={mount.target}"
            flags.append(["--mount", text + ",readonly" * mount.read_only])
        flags += [["--env", variable] for variable in options.env or ()]
        flags += [["--label", f"{name}={value}"] for name, value in self.labels.items()]
        lines = ["docker run --detach", *map(shlex.join, flags), shlex.join([options.image, *self.words])]
        return " \\\n  ".join(lines)
