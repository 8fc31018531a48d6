"""Pieces of a measurement: what fails costs itself alone, and the time limit is kept."""

import multiprocessing
import os
import time
from functools import partial

import pytest

from nystromformer.benchmark import pieces as pieces_module
from nystromformer.benchmark.pieces import (
    FAILED,
    LEFT_OUT,
    MEASURED,
    Piece,
    describe_error,
    measure_here,
    measure_in_processes,
)

CODE = {
    "dies": "__import__('os')._exit(7)",
    "hangs": "__import__('time').sleep(600)",
    "raises": "exec('raise RuntimeError(\\'out of memory\\\\nand more\\')')",
    "absent": "exec('from nystromformer.benchmark.pieces import LeftOut; raise LeftOut(\\'not here\\')')",
}
"""What processes of their own can import."""


def fake_piece(title: str, section: str = "check", seconds: float = 0.0) -> Piece:
    """Does what its title says."""
    works = f"[f'{title} in ' + str(__import__('os').getpid())]"
    return Piece(section, title, seconds, partial(eval, CODE.get(title, works)))


def test_what_fails_or_has_no_time_is_told_and_the_rest_goes_on() -> None:
    pieces = [fake_piece("raises"), fake_piece("absent"), fake_piece("late", seconds=9.1), fake_piece("works")]
    outcomes = list(measure_here(pieces, {}, lambda section: 9.0))
    assert [(o.title, o.status, o.reason) for o in outcomes] == [
        ("raises", FAILED, "RuntimeError: out of memory ... and more"),
        ("absent", LEFT_OUT, "not here"),
        ("late", LEFT_OUT, "the time limit: of check's time 9 s are left, this takes about 9 s"),
        ("works", MEASURED, ""),
    ]
    assert outcomes[3].rows == [f"works in {os.getpid()}"]


@pytest.mark.slow
def test_what_dies_or_never_ends_costs_its_section_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "GRACE", 0.0)
    ends = {"check": time.monotonic() + 100, "training": time.monotonic() + 200}

    def seconds_left(section: str) -> float:
        return ends[section] - time.monotonic()

    titles = ("first", "dies", "raises", "last", "hangs", "waits")
    pieces = [*(fake_piece(title) for title in titles), fake_piece("goes on", "training")]
    outcomes, processes = [], []
    for outcome in measure_in_processes(pieces, {}, 1, seconds_left):
        outcomes.append((outcome.title, outcome.status, outcome.reason.partition(":")[0]))
        processes += [str(row).split()[-1] for row in outcome.rows]
        if outcome.title == "last":
            ends["check"] = time.monotonic() + 1
    assert outcomes == [
        ("first", MEASURED, ""),
        ("dies", FAILED, "its process ended with status 7"),
        ("raises", FAILED, "RuntimeError"),
        ("last", MEASURED, ""),
        ("hangs", FAILED, "stopped"),
        ("waits", LEFT_OUT, "the time limit"),
        ("goes on", MEASURED, ""),
    ]
    assert len({*processes, str(os.getpid())}) == 4
    assert not multiprocessing.active_children()


def test_an_error_is_told_by_its_first_and_last_line() -> None:
    error = ValueError("at 3:7:\n  x = y\n\nout of registers\n")
    assert describe_error(error) == "ValueError: at 3:7: ... out of registers"
