"""Parts predicted by workers of a Ray cluster: one CPU or one GPU each."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nystromformer.errors import UserError, first_line
from nystromformer.tasks.prediction.folder import Engine
from nystromformer.tasks.prediction.parts import FinishedPart, PartsJob, predict_part

logger = logging.getLogger(__name__)

TRIES = 3
"""Workers that may end while they compute one part."""
_SECONDS_TO_CONNECT = 10


class Worker:
    """Predicts parts, one after the other."""

    def __init__(self, job: PartsJob) -> None:
        self._job = job

    def predict(self, number: int) -> FinishedPart | str:
        """A part, or what a user is told of why there is none: an error that Ray raises again has a traceback in it."""
        try:
            return predict_part(self._job, number)
        except UserError as error:
            return str(error)


@contextmanager
def ray_engine(address: str | None, workers: int | None, device: str) -> Iterator[Engine]:
    """A Ray cluster.

    Args:
        address: of a cluster that runs; None: that of RAY_ADDRESS, or one on this machine for as long as this lasts.
        workers: of a cluster that runs at most so many; None: one for each CPU or GPU of the cluster.
        device: cpu, or cuda: a GPU for each worker.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        UserError: there is no cluster at the address, it has no such resource, or workers end again and again.
    """
    # Nothing is sent to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = importlib.import_module("ray")
    _check_address(address)
    place = address or os.environ.get("RAY_ADDRESS")
    # "local": not one that somebody else started on this machine.
    its_own = {"address": "local", "num_cpus": None if device == "cuda" else workers}
    try:
        ray.init(**({"address": place} if place else its_own), logging_level=logging.ERROR)
    except Exception as error:  # of no narrower class where a cluster on this machine does not start in time
        what = "no Ray cluster could be started here" if place is None else f"no Ray cluster can be reached at {place}"
        raise UserError(f"--engine ray: {what}: {first_line(error)}") from None
    try:
        kind = "GPU" if device == "cuda" else "CPU"
        there = int(ray.cluster_resources().get(kind, 0))
        if not there:
            raise UserError(f"--engine ray: expected a cluster with a {kind}, found none")
        needs = {"num_cpus": 1, "num_gpus": int(device == "cuda")}
        actor = ray.remote(**needs)(Worker)
        yield lambda job, numbers: _predict(ray, actor, job, numbers, min(workers or there, there, len(numbers)))
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Check that something listens there: Ray itself tries for minutes.

    Raises:
        UserError: nothing does.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--engine ray: no Ray cluster can be reached at {address}: {error}") from None


def _predict(ray: Any, actor: Any, job: PartsJob, numbers: Sequence[int], workers: int) -> Iterator[FinishedPart]:
    """The parts as they are finished; each worker has one at a time.

    Raises:
        UserError: as `predict_part`; or workers ended again and again with one part.
    """
    to_do = list(reversed(numbers))
    tries = dict.fromkeys(numbers, 0)
    running: dict[Any, tuple[Any, int]] = {}

    def start(worker: Any) -> None:
        if to_do:
            number = to_do.pop()
            running[worker.predict.remote(number)] = worker, number

    for _ in range(workers):
        start(actor.remote(job))
    while running:
        (ready, *_), _ = ray.wait(list(running), num_returns=1)
        worker, number = running.pop(ready)
        try:
            found = ray.get(ready)
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            name = job.source.names[number]
            tries[number] += 1
            if tries[number] == TRIES:
                raise UserError(
                    f"{job.source.where(name)}: {TRIES} workers ended while they computed it, which running out of "
                    f"memory or a project that is not installed there may do: {_reason(error)}"
                ) from None
            logger.warning("%s: its worker ended; it is computed again by another one", name)
            to_do.append(number)
            worker = actor.remote(job)
        except ray.exceptions.RayError as error:
            raise UserError(f"{job.source.where(job.source.names[number])}: Ray: {_reason(error)}") from None
        else:
            if isinstance(found, str):
                raise UserError(found)
            yield found
        start(worker)
        # A worker without work ends with its last name, and another one that waits for its CPU starts.
        del worker


def _reason(error: Exception) -> str:
    """The last line of an error, in which the cause is."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
