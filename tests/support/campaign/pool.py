"""Work side by side, each piece in a fork of this process, which has imported what the commands import."""

import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from campaign.commands import end_with_parent

_FORK = get_context("fork")


class Failure(str):
    """In place of a result: what went wrong with the work itself."""


def in_forks(
    work: Callable[[Any], Any], items: Iterable[Any], workers: int, until: float = math.inf, limit: float = math.inf
) -> Iterator[tuple[Any, Any]]:
    """Items with their results, or a `Failure` instead, as they come.

    Args:
        workers: items at a time.
        until: no item begins after this time of the monotonic clock.
        limit: seconds after which one is ended.
    """
    waiting, running = iter(items), dict[Any, tuple[Any, Any, float]]()
    try:
        while True:
            while len(running) < workers and time.monotonic() < until:
                item = next(waiting, None)
                if item is None:
                    break
                answers, answer = _FORK.Pipe(duplex=False)
                process = _FORK.Process(target=_work, args=(work, item, answer))
                process.start()
                answer.close()
                running[answers] = item, process, time.monotonic()
            if not running:
                return
            for answers in {*wait(list(running), timeout=1), *_late(running, limit)}:
                item, process, _ = running.pop(answers)
                yield item, _receive(answers)
                _end(process)
    finally:
        for _, process, _ in running.values():
            _end(process)


def _work(work: Callable[[Any], Any], item: Any, answer: Connection) -> None:
    os.setsid()  # a Ctrl-C is for the parent
    end_with_parent()
    try:
        result = work(item)
    except BaseException:
        result = Failure(traceback.format_exc())
    answer.send(result)
    os._exit(0)


def _late(running: dict[Any, tuple[Any, Any, float]], limit: float) -> list[Any]:
    return [answers for answers, (_, _, began) in running.items() if time.monotonic() - began > limit]


def _receive(answers: Connection) -> Any:
    try:
        return answers.recv() if answers.poll() else Failure("it was ended after its time")
    except EOFError:
        return Failure("it ended without an answer")


def _end(process: Any) -> None:
    """End a fork; its commands, in sessions of their own, end with it."""
    process.kill()
    process.join()
