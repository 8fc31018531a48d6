"""What a container is made of, as one value: sent to the engine, printed as a `docker run` line, kept as a label."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self

from docker.types import DeviceRequest
from docker.types import Mount as DockerMount
from pydantic import TypeAdapter

from nystromformer.errors import UserError

IMAGE = "nystromformer"
"""What `launch.py build` calls the image, if no flag says otherwise."""

STOP_SECONDS = 300
"""From `docker stop` to a kill: the step in progress and the writing of a checkpoint take less."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_RESTART = re.compile(r"no|on-failure(:[1-9]\d{0,8})?")
_RESTART_FOR_EVER = ("always", "unless-stopped")


@dataclass(frozen=True)
class Mount:
    """A folder or file of the engine's machine in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a container: `ids`, or every one of the machine, or none."""

    ids: tuple[str, ...] = ()
    every: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `all`, `none`, or numbers and UUIDs separated by commas.

        Raises:
            UserError: anything else.
        """
        if text in ("all", "none"):
            return cls(every=text == "all")
        ids = tuple(part.strip() for part in text.split(","))
        if not all(re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", each) for each in ids) or len(set(ids)) < len(ids):
            raise UserError(
                f"--gpus {text}: expected all, none, or the numbers (or UUIDs) of different GPUs with commas between "
                "them, such as 0,1"
            )
        return cls(ids)

    def __str__(self) -> str:
        return "all" if self.every else ",".join(self.ids) or "none"

    @property
    def request(self) -> DeviceRequest | None:
        """What the engine is asked for, as `docker run --gpus` does."""
        if self.every:
            return DeviceRequest(count=-1, capabilities=[["gpu"]])
        return DeviceRequest(device_ids=list(self.ids), capabilities=[["gpu"]]) if self.ids else None

    @property
    def flag(self) -> list[str]:
        """The flag of `docker run`; several devices need quotes of their own."""
        if self.every:
            return ["--gpus", "all"]
        quote = '"' if len(self.ids) > 1 else ""
        return ["--gpus", f"{quote}device={self}{quote}"] if self.ids else []


@dataclass(frozen=True)
class RunSpec:
    """A container that runs one script into one log file.

    Args:
        name: of the container.
        image: by its name.
        argv: the program and its arguments, in the container.
        output: file in the container that stdout and stderr are appended to.
        mounts: folders and files.
        gpus: what the engine is asked for.
        user: "uid:gid" that the script runs as.
        shm_size: of the container's own shared memory, such as 8g; None: the machine's (`--ipc host`).
        network: of the engine; host as the authors'.
        environment: variables.
        restart: the engine's restart policy.
        labels: names and values that the engine keeps.
        working_dir: in the container.
        stop_seconds: from a stop to a kill.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    output: str
    mounts: tuple[Mount, ...]
    gpus: Gpus = Gpus()
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
        if self.restart in _RESTART_FOR_EVER:
            raise UserError(
                f"--restart {self.restart}: would start a finished run again, for ever. --restart on-failure:3 starts "
                "one that failed, three times at the most"
            )
        if not _RESTART.fullmatch(self.restart):
            raise UserError(
                f"--restart {self.restart}: expected no, or on-failure:N with N from 1 on, such as on-failure:3 "
                "(on-failure alone has no bound: a mistake is started again for ever)"
            )
        if self.shm_size is not None and not re.fullmatch(r"[1-9]\d*[bkmgBKMG]?", self.shm_size):
            raise UserError(f"--shm_size {self.shm_size}: expected a number with b, k, m or g, such as 8g")
        for text in self._texts():
            if not _is_utf8(text):
                raise UserError(
                    f"{text!r}: not UTF-8 text, which is all that engines take: they would look for another name"
                )

    def _texts(self) -> Iterator[str]:
        yield from (*self.argv, self.output, self.image, self.network, self.working_dir or "")
        yield from (path for mount in self.mounts for path in (mount.source, mount.target))
        yield from (text for pair in (*self.environment.items(), *self.labels.items()) for text in pair)

    @property
    def output_path(self) -> Path:
        """The log on the engine's machine, in the folder that is mounted first."""
        return Path(self.mounts[0].source) / PurePosixPath(self.output).relative_to(self.mounts[0].target)

    @property
    def shell(self) -> str:
        """The command for bash; without `exec` bash would keep the SIGTERM of `docker stop` from the script."""
        return f"exec {shlex.join(self.argv)} >> {shlex.quote(self.output)} 2>&1"

    def labelled(self, **labels: str) -> RunSpec:
        """The same with more labels."""
        return replace(self, labels={**self.labels, **labels})

    def create(self, api: Any) -> str:
        """Make the container, without starting it; returns its id. Raises what docker-py raises."""
        policy, _, retries = self.restart.partition(":")
        host = api.create_host_config(
            mounts=[DockerMount(m.target, m.source, type="bind", read_only=m.read_only) for m in self.mounts],
            device_requests=None if self.gpus.request is None else [self.gpus.request],
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
            labels=dict(self.labels),
            working_dir=self.working_dir,
            host_config=host,
            stop_timeout=self.stop_seconds,
        )
        return str(created["Id"])

    def docker_run(self) -> str:
        """The `docker run` line that makes and starts the same container."""
        flags = [["--name", self.name], ["--init"], ["--stop-timeout", str(self.stop_seconds)]]
        if self.user is not None:
            flags.append(["--user", self.user])
        flags.append(["--network", self.network])
        flags.append(["--ipc", "host"] if self.shm_size is None else ["--shm-size", self.shm_size])
        flags += [self.gpus.flag] if self.gpus.flag else []
        flags += [["--mount", _mount_flag(mount)] for mount in self.mounts]
        flags += [["--env", f"{name}={value}"] for name, value in self.environment.items()]
        flags += [["--label", f"{name}={value}"] for name, value in self.labels.items()]
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


def _is_utf8(text: str) -> bool:
    """False for what Python makes of names in other encodings."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _mount_flag(mount: Mount) -> str:
    """`--mount` reads its value as a line of CSV. Unlike -v it makes no folder that is not there."""
    line = io.StringIO()
    parts = ["type=bind", f"source={mount.source}", f"target={mount.target}"] + ["readonly"] * mount.read_only
    # Without a line's end the writer would not put quotes around the ends of lines within a path.
    csv.writer(line, lineterminator="\r\n").writerow(parts)
    return line.getvalue().removesuffix("\r\n")
