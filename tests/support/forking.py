"""Runs in processes of their own that import nothing: forks of the test's process, which has imported all they need."""

import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch


class Forked:
    """`work` in a fork of this process; to be asked and ended as a `subprocess.Popen`.

    Args:
        work: gives the exit status.
        log: the file to which it logs.
        environment: variables to set in it.
    """

    def __init__(self, work: Callable[[], int], log: Path, environment: Mapping[str, str] | None = None) -> None:
        if torch.cuda.is_initialized():
            pytest.skip("a process that has used a GPU cannot fork")
        self._process = get_context("fork").Process(target=_run, args=(work, log, environment or {}))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self._process.exitcode
        assert status is not None, f"still at work after {timeout} seconds"
        return status


def _run(work: Callable[[], int], log: Path, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)  # OpenMP's other threads did not come along
    with log.open("a") as stream:
        logging.basicConfig(level=logging.INFO, stream=stream, force=True)
        try:
            status = work()
        except BaseException:
            traceback.print_exc(file=stream)
            raise
    sys.exit(status)


def as_torchrun(processes: int) -> list[dict[str, str]]:
    """The environment that each of several processes on this machine has from torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{processes}"}
    return [shared | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(processes)]
