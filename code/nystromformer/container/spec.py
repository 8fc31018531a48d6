"""What a container is made of, as one value: sent to the engine, printed as a `docker run` line, kept as a label."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from docker.types import DeviceRequest
from docker.types import Mount as DockerMount

from nystromformer.container.options import LaunchOptions, Mount
from nystromformer.container.scripts import COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL
from nystromformer.errors import UserError

STOP_SECONDS = 300
"""From `docker stop` to a kill: the step in progress and the writing of a checkpoint take less."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")


def gpu_ids(gpus: str) -> list[str]:
    """The GPUs that are named one by one."""
    return [] if gpus in ("all", "none") else gpus.split(",")


def container_name(text: str) -> str:
    """A folder's name with what engines refuse in a container's replaced."""
    name = re.sub(r"[^\w.-]", "-", text, flags=re.ASCII)
    return name if name[:1].isalnum() else f"x{name}"


@dataclass(frozen=True)
class RunSpec:
    """A container that runs one script into one log file.

    Args:
        options: the launcher's flags, of which the name and the GPUs do not count.
        argv: the program and its arguments, in the container.
        output: file in the container that stdout and stderr are appended to.
        mounts: folders and files; the first is the one that the log lies in.
        command, home: what runs, and the folder that it writes into on the engine's machine; the engine keeps both, and
            the GPUs, as labels, by which it is found again.
        gpus: all, none, or ids with commas between them.
        user: "uid:gid" that the script runs as.
        labels: more of them.
        to_make: a folder of this machine that is mounted and is not there yet.

    Raises:
        UserError: a name that engines refuse.
    """

    name: str
    options: LaunchOptions
    argv: tuple[str, ...]
    output: str
    mounts: tuple[Mount, ...]
    command: str
    home: str
    gpus: str = "none"
    user: str | None = None
    working_dir: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    to_make: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(
                f"--name {self.name}: engines take two or more letters, digits, `_`, `.` and `-`, beginning with a "
                "letter or digit"
            )

    @property
    def output_path(self) -> Path:
        """The log on the engine's machine."""
        return Path(self.mounts[0].source) / PurePosixPath(self.output).relative_to(self.mounts[0].target)

    @property
    def _all_labels(self) -> dict[str, str]:
        return {COMMAND_LABEL: self.command, EXPERIMENT_LABEL: self.home, GPUS_LABEL: self.gpus, **self.labels}

    @property
    def shell(self) -> str:
        """The command for bash; without `exec` bash would keep the SIGTERM of `docker stop` from the script."""
        return f"exec {shlex.join(self.argv)} >> {shlex.quote(self.output)} 2>&1"

    def create(self, api: Any) -> str:
        """Make the container, without starting it; returns its id. Raises what docker-py raises."""
        options = self.options
        policy, _, retries = options.restart.partition(":")
        devices = DeviceRequest(
            count=-1 if self.gpus == "all" else 0, device_ids=gpu_ids(self.gpus), capabilities=[["gpu"]]
        )
        host = api.create_host_config(
            mounts=[DockerMount(m.target, m.source, type="bind", read_only=m.read_only) for m in self.mounts],
            device_requests=None if self.gpus == "none" else [devices],
            ipc_mode="host" if options.shm_size is None else None,
            shm_size=options.shm_size,
            network_mode=options.network,
            restart_policy={"Name": policy, "MaximumRetryCount": int(retries or 0)},
            init=True,
        )
        created = api.create_container(
            options.image,
            ["/bin/bash", "-c", self.shell],
            name=self.name,
            user=self.user,
            environment=options.env,
            labels=self._all_labels,
            working_dir=self.working_dir,
            host_config=host,
            stop_timeout=STOP_SECONDS,
        )
        return str(created["Id"])

    def docker_run(self) -> str:
        """The `docker run` line that makes and starts the same container."""
        options = self.options
        flags = [["--name", self.name], ["--init"], ["--stop-timeout", str(STOP_SECONDS)]]
        flags += [["--user", self.user]] if self.user is not None else []
        flags.append(["--network", options.network])
        flags.append(["--ipc", "host"] if options.shm_size is None else ["--shm-size", options.shm_size])
        if self.gpus != "none":
            flags.append(["--gpus", "all" if self.gpus == "all" else f'"device={self.gpus}"'])
        flags += [["--mount", _mount_flag(mount)] for mount in self.mounts]
        flags += [["--env", variable] for variable in options.env or ()]
        flags += [["--label", f"{name}={value}"] for name, value in self._all_labels.items()]
        flags += [["--workdir", self.working_dir]] if self.working_dir is not None else []
        flags += [["--restart", options.restart]] if options.restart != "no" else []
        lines = ["docker run --detach", *(shlex.join(flag) for flag in flags)]
        lines += [shlex.quote(options.image), shlex.join(["/bin/bash", "-c", self.shell])]
        first = [] if self.to_make is None else [shlex.join(["mkdir", "-p", self.to_make])]
        return "\n".join([*first, " \\\n  ".join(lines)])


def _mount_flag(mount: Mount) -> str:
    """`--mount` reads its value as a line of CSV. Unlike -v it makes no folder that is not there."""
    line = io.StringIO()
    csv.writer(line).writerow(
        ["type=bind", f"source={mount.source}", f"target={mount.target}"] + ["readonly"] * mount.read_only
    )
    return line.getvalue().removesuffix("\r\n")
