"""Pieces of a measurement: what fails costs itself alone, and the time limit is kept."""

import multiprocessing
import os
import time
from functools import partial

import pytest

from nystromformer.benchmark import pieces as pieces_module
from nystromformer.benchmark.pieces import Piece, run_pieces

CODE = {
    "dies": "__import__('os')._exit(7)",
    "hangs": "__import__('time').sleep(600)",
    "raises": "exec('raise RuntimeError(\\'at 3:7:\\\\n  x = y\\\\n\\\\nout of registers\\\\n\\')')",
    "absent": "exec('from nystromformer.benchmark.pieces import LeftOut; raise LeftOut(\\'not here\\')')",
}
"""What processes of their own can import."""


def fake_piece(title: str, seconds: float = 0.0) -> Piece:
    """Does what its title says."""
    works = "[{'process': __import__('os').getpid()}]"
    return Piece(title, partial(eval, CODE.get(title, works)), seconds)


def test_what_fails_or_has_no_time_is_told_and_the_rest_goes_on() -> None:
    pieces = [fake_piece("raises"), fake_piece("absent"), fake_piece("late", seconds=99.0), fake_piece("works")]
    outcomes = list(run_pieces(pieces, 0, time.monotonic() + 9.2))
    assert [(o.title, o.failed, o.left_out.partition(":")[0]) for o in outcomes] == [
        ("raises", "RuntimeError: at 3:7: ... out of registers", ""),
        ("absent", "", "not here"),
        ("late", "", "the time limit"),
        ("works", "", ""),
    ]
    assert outcomes[3].records == [{"process": os.getpid()}]


@pytest.mark.slow
def test_what_dies_or_never_ends_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "GRACE", 0.0)
    pieces = [*map(fake_piece, ("first", "dies", "second", "hangs")), fake_piece("late", 1.0)]
    outcomes = list(run_pieces(pieces, 1, time.monotonic() + 40))
    assert [(each.title, each.failed, each.left_out[:14]) for each in outcomes] == [
        ("first", "", ""),
        ("dies", "its process ended with status 7", ""),
        ("second", "", ""),
        ("hangs", "stopped: the time was over", ""),
        ("late", "", "the time limit"),
    ]
    assert len({record["process"] for each in outcomes for record in each.records} | {os.getpid()}) == 3
    assert not multiprocessing.active_children()
