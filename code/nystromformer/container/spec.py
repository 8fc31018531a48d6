"""What a container is made of, as one value: sent to the engine, printed as a `docker run` line, kept as a label."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

from docker.types import DeviceRequest
from docker.types import Mount as DockerMount
from pydantic import TypeAdapter

from nystromformer.container.scripts import COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL
from nystromformer.errors import UserError

IMAGE = "nystromformer"
"""What `launch.py build` calls the image, if no flag says otherwise."""

STOP_SECONDS = 300
"""From `docker stop` to a kill: the step in progress and the writing of a checkpoint take less."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_RESTART = re.compile(r"no|on-failure(:[1-9]\d{0,8})?")


@dataclass(frozen=True)
class Mount:
    """A folder or file of the engine's machine in the container."""

    source: str
    target: str
    read_only: bool = False


def check_gpus(text: str) -> None:
    """Refuse what is neither `all`, `none`, nor numbers and UUIDs with commas between them.

    Raises:
        UserError: says what is expected.
    """
    ids = text.split(",")
    if text not in ("all", "none") and (
        not all(re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", each) for each in ids) or len(set(ids)) < len(ids)
    ):
        raise UserError(
            f"--gpus {text}: expected all, none, or the numbers (or UUIDs) of different GPUs with commas between "
            "them, such as 0,1"
        )


def gpu_ids(gpus: str) -> list[str]:
    """The GPUs that are named one by one."""
    return [] if gpus in ("all", "none") else gpus.split(",")


@dataclass(frozen=True)
class RunSpec:
    """A container that runs one script into one log file.

    Args:
        argv: the program and its arguments, in the container.
        output: file in the container that stdout and stderr are appended to.
        mounts: folders and files; the first is the one that the log lies in.
        gpus: all, none, or ids with commas between them.
        user: "uid:gid" that the script runs as.
        shm_size: of the container's own shared memory, such as 8g; None: the machine's (`--ipc host`).
        restart: the engine's restart policy.
        command, home: what runs, and the folder that it writes into on the engine's machine; the engine keeps both, and
            the GPUs, as labels, by which it is found again.
        labels: more of them.
        stop_seconds: from a stop to a kill.

    Raises:
        UserError: a name, a policy or a size that engines refuse, or that would do harm.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    output: str
    mounts: tuple[Mount, ...]
    command: str
    home: str
    gpus: str = "none"
    user: str | None = None
    shm_size: str | None = None
    network: str = "host"
    environment: Mapping[str, str] = field(default_factory=dict)
    restart: str = "no"
    labels: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    stop_seconds: int = STOP_SECONDS

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(
                f"--name {self.name}: engines take two or more letters, digits, `_`, `.` and `-`, beginning with a "
                "letter or digit"
            )
        if not _RESTART.fullmatch(self.restart):
            raise UserError(
                f"--restart {self.restart}: expected no, or on-failure:N with N from 1 on, such as on-failure:3. Other "
                "policies would start a finished run, or one with a mistake, again for ever"
            )
        if self.shm_size is not None and not re.fullmatch(r"[1-9]\d*[bkmgBKMG]?", self.shm_size):
            raise UserError(f"--shm_size {self.shm_size}: expected a number with b, k, m or g, such as 8g")

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
        policy, _, retries = self.restart.partition(":")
        devices = DeviceRequest(
            count=-1 if self.gpus == "all" else 0, device_ids=gpu_ids(self.gpus), capabilities=[["gpu"]]
        )
        host = api.create_host_config(
            mounts=[DockerMount(m.target, m.source, type="bind", read_only=m.read_only) for m in self.mounts],
            device_requests=None if self.gpus == "none" else [devices],
            ipc_mode="host" if self.shm_size is None else None,
            shm_size=self.shm_size,
            network_mode=self.network,
            restart_policy={"Name": policy, "MaximumRetryCount": int(retries or 0)},
            init=True,
        )
        created = api.create_container(
            self.image,
            ["/bin/bash", "-c", self.shell],
            name=self.name,
            user=self.user,
            environment=dict(self.environment),
            labels=self._all_labels,
            working_dir=self.working_dir,
            host_config=host,
            stop_timeout=self.stop_seconds,
        )
        return str(created["Id"])

    def docker_run(self) -> str:
        """The `docker run` line that makes and starts the same container."""
        flags = [["--name", self.name], ["--init"], ["--stop-timeout", str(self.stop_seconds)]]
        flags += [["--user", self.user]] if self.user is not None else []
        flags.append(["--network", self.network])
        flags.append(["--ipc", "host"] if self.shm_size is None else ["--shm-size", self.shm_size])
        if self.gpus != "none":
            flags.append(["--gpus", "all" if self.gpus == "all" else f'"device={self.gpus}"'])
        flags += [["--mount", _mount_flag(mount)] for mount in self.mounts]
        flags += [["--env", f"{name}={value}"] for name, value in self.environment.items()]
        flags += [["--label", f"{name}={value}"] for name, value in self._all_labels.items()]
        flags += [["--workdir", self.working_dir]] if self.working_dir is not None else []
        flags += [["--restart", self.restart]] if self.restart != "no" else []
        lines = ["docker run --detach", *(shlex.join(flag) for flag in flags)]
        lines += [shlex.quote(self.image), shlex.join(["/bin/bash", "-c", self.shell])]
        return " \\\n  ".join(lines)

    def to_json(self) -> str:
        """As text, for a label."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Of `to_json`'s text.

        Raises:
            ValueError, UserError: of any other.
        """
        return TypeAdapter(cls).validate_json(text)


def _mount_flag(mount: Mount) -> str:
    """`--mount` reads its value as a line of CSV. Unlike -v it makes no folder that is not there."""
    line = io.StringIO()
    csv.writer(line).writerow(
        ["type=bind", f"source={mount.source}", f"target={mount.target}"] + ["readonly"] * mount.read_only
    )
    return line.getvalue().removesuffix("\r\n")
