"""Parts of work computed by a Ray cluster, by one CPU or one GPU each.

They are tasks, and no blocks of Ray Data: a part is one file of the input, which a command that comes again skips.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator

from nystromformer.errors import UserError, first_line

TRIES = 3
"""Workers that may end while they compute one part."""
_SECONDS_TO_CONNECT = 10
_INHERITED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How OpenMP waits, which commands set."""


def _told(work: Callable[[str], object], name: str) -> str:
    """What a user is told of why there is no part: an error that Ray raises again has a traceback in it."""
    try:
        work(name)
    except UserError as error:
        return str(error)
    return ""


def each_on_ray(work: Callable[[str], object], names: Iterable[str], device: str) -> Iterator[str]:
    """Have work, which pickles, done on a Ray cluster: the one of RAY_ADDRESS, or one on this machine that ends with
    it. Gives the names of the parts as these are finished.

    Args:
        device: cpu, or cuda: a GPU for each part.
    """
    # Nothing is sent to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = importlib.import_module("ray")
    # "local": not one that somebody else started on this machine.
    address = os.environ.get("RAY_ADDRESS", "local")
    environment = {"env_vars": {name: os.environ[name] for name in _INHERITED if name in os.environ}}
    try:
        if ":" in address:  # Ray itself would try for minutes, and end this process
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
        ray.init(address=address, runtime_env=environment, logging_level=logging.ERROR)
    except Exception as error:  # of no narrower class where a cluster on this machine does not start in time
        raise UserError(f"--engine ray: no Ray cluster can be reached at {address}: {first_line(error)}") from None
    try:
        kind, needs = ("GPU", {"num_gpus": 1}) if device == "cuda" else ("CPU", {})
        if not ray.cluster_resources().get(kind):
            raise UserError(f"--engine ray: expected a cluster with a {kind}, found none")
        task, shared = ray.remote(num_cpus=1, max_retries=TRIES - 1, **needs)(_told), ray.put(work)
        running = {task.remote(shared, name): name for name in names}
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            name = running.pop(ready)
            try:
                refusal = ray.get(ready)
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1].strip()
                raise UserError(f"{name}: its worker ended {TRIES} times: {reason}") from None
            if refusal:
                raise UserError(refusal)
            yield name
    finally:
        ray.shutdown()
