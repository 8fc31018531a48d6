"""Parts predicted by a Ray cluster, by one CPU or one GPU each."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nystromformer.errors import UserError, first_line
from nystromformer.tasks.prediction.folder import Engine, FinishedPart, PartsJob, predict_part

TRIES = 3
"""Workers that may end while they compute one part."""
_SECONDS_TO_CONNECT = 10
_INHERITED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How OpenMP waits, which commands set."""


def _predict(job: PartsJob, number: int) -> FinishedPart | str:
    """A part, or what a user is told of why there is none: an error that Ray raises again has a traceback in it."""
    try:
        return predict_part(job, number)
    except UserError as error:
        return str(error)


@contextmanager
def ray_engine(device: str) -> Iterator[Engine]:
    """A Ray cluster: the one of RAY_ADDRESS, or one on this machine for as long as this lasts.

    Args:
        device: cpu, or cuda: a GPU for each part.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        UserError: there is no cluster at the address, it has no such resource, or workers end again and again.
    """
    # Nothing is sent to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = importlib.import_module("ray")
    # "local": not one that somebody else started on this machine.
    place = os.environ.get("RAY_ADDRESS", "local")
    environment = {"env_vars": {name: os.environ[name] for name in _INHERITED if name in os.environ}}
    try:
        if ":" in place:  # Ray itself would try for minutes, and end this process
            host, _, port = place.removeprefix("ray://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
        ray.init(address=place, runtime_env=environment, logging_level=logging.ERROR)
    except Exception as error:  # of no narrower class where a cluster on this machine does not start in time
        raise UserError(f"--engine ray: no Ray cluster can be reached at {place}: {first_line(error)}") from None
    kind, needs = ("GPU", {"num_gpus": 1}) if device == "cuda" else ("CPU", {})
    task = ray.remote(num_cpus=1, max_retries=TRIES - 1, **needs)(_predict)

    def compute(job: PartsJob, numbers: Sequence[int]) -> Iterator[FinishedPart]:
        shared = ray.put(job)
        names = {task.remote(shared, number): job.source.names[number] for number in numbers}
        while names:
            (ready, *_), _ = ray.wait(list(names), num_returns=1)
            name = names.pop(ready)
            try:
                found = ray.get(ready)
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1].strip()
                raise UserError(f"{job.source.where(name)}: its worker ended {TRIES} times: {reason}") from None
            if isinstance(found, str):
                raise UserError(found)
            yield found

    try:
        if not ray.cluster_resources().get(kind):
            raise UserError(f"--engine ray: expected a cluster with a {kind}, found none")
        yield compute
    finally:
        ray.shutdown()
