"""Pieces of a measurement: what fails costs itself alone, and the time limit is kept."""

import multiprocessing
import os
import time

import pytest
import torch
from failing_pieces import fake_piece

from nystromformer.benchmark.gpu.run import GRACE, SHARES, Budget
from nystromformer.benchmark.pieces import (
    FAILED,
    LEFT_OUT,
    MEASURED,
    LeftOut,
    NoFigure,
    Piece,
    attempt,
    describe_error,
    measure_here,
    measure_in_processes,
)
from nystromformer.benchmark.questions.gpu import SECTIONS


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_section_ends_at_its_share_and_leaves_the_rest_to_those_behind() -> None:
    clock = Clock()
    budget = Budget(1.0, ["check", "training"], clock)
    share = 60 * SHARES["check"] / (SHARES["check"] + SHARES["training"])
    assert budget.refusal(fake_piece("a", seconds=share - 0.1)) is None
    reason = budget.refusal(fake_piece("a", seconds=share + 0.1))
    assert reason is not None
    assert reason.startswith("the time limit: of check's time ")
    assert budget.refusal(fake_piece("a", "training", seconds=59.9)) is None
    clock.now += share + 1
    assert budget.refusal(fake_piece("a")) is not None
    assert budget.refusal(fake_piece("a", "training", seconds=60 - share - 1.1)) is None
    clock.now = 1060 + GRACE - 2
    assert budget.refusal(fake_piece("a", "training")) is not None
    assert budget.until_stopped("training") == pytest.approx(2)
    assert budget.until_stopped("check") == 0
    clock.now += 5
    assert budget.until_stopped("training") == 0


def test_what_compiles_beside_the_comparisons_ends_with_them() -> None:
    clock = Clock()
    budget = Budget(1.0, ["compile", "check", "training"], clock)
    assert budget.until_stopped("compile") == budget.until_stopped("check") < budget.until_stopped("training")
    assert Budget(1.0, ["compile", "training"], clock).until_stopped("compile") < GRACE + 30


def test_every_section_has_a_share_and_one_alone_has_all() -> None:
    assert set(SHARES) == {"compile", *SECTIONS}
    for name in SHARES:
        assert Budget(2.0, [name], Clock()).refusal(fake_piece("a", name, seconds=119.9)) is None


def test_what_fails_or_is_refused_is_told_and_the_rest_goes_on() -> None:
    def refusal(piece: Piece) -> str | None:
        return "no time" if piece.title == "late" else None

    pieces = [fake_piece(title) for title in ("raises", "absent", "late", "works")]
    outcomes = list(measure_here(pieces, None, refusal))
    assert [(o.title, o.status, o.reason) for o in outcomes] == [
        ("raises", FAILED, "RuntimeError: out of memory ... and more"),
        ("absent", LEFT_OUT, "not here"),
        ("late", LEFT_OUT, "no time"),
        ("works", MEASURED, ""),
    ]
    assert outcomes[3].rows == [f"works in {os.getpid()}"]


@pytest.mark.slow
def test_a_process_that_dies_costs_its_piece_alone() -> None:
    pieces = [fake_piece(title) for title in ("first", "dies", "raises", "last")]
    outcomes = list(measure_in_processes(pieces, None, 1))
    assert [(o.title, o.status, o.reason) for o in outcomes] == [
        ("first", MEASURED, ""),
        ("dies", FAILED, "its process ended with status 7"),
        ("raises", FAILED, "RuntimeError: out of memory ... and more"),
        ("last", MEASURED, ""),
    ]
    first, last = (str(outcomes[index].rows[0]).split()[-1] for index in (0, 3))
    assert len({first, last, str(os.getpid())}) == 3
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_what_never_ends_is_stopped_and_costs_its_section_alone() -> None:
    ends = {"check": time.monotonic() + 25, "training": time.monotonic() + 60}

    def refusal(piece: Piece) -> str | None:
        return "too late" if time.monotonic() > ends[piece.section] else None

    def until_stopped(section: str) -> float:
        return max(0.0, ends[section] - time.monotonic())

    pieces = [*(fake_piece(title) for title in ("works", "hangs", "waits")), fake_piece("goes on", "training")]
    outcomes = []
    for outcome in measure_in_processes(pieces, None, 1, refusal, until_stopped):
        outcomes.append((outcome.title, outcome.status, outcome.reason))
        ends["check"] = min(ends["check"], time.monotonic() + 1)
    assert outcomes == [
        ("works", MEASURED, ""),
        ("hangs", FAILED, "stopped: its section's time was over"),
        ("waits", LEFT_OUT, "too late"),
        ("goes on", MEASURED, ""),
    ]
    assert not multiprocessing.active_children()


def test_attempts_tell_failures_from_what_is_not_there() -> None:
    def fail(error: Exception) -> int:
        raise error

    assert attempt("a", lambda: 3) == 3
    assert attempt("a", lambda: fail(LeftOut("quadratic"))) == NoFigure("a", "quadratic", failed=False)
    missing = attempt("a", lambda: fail(RuntimeError("No available kernel. Aborting execution.")))
    assert isinstance(missing, NoFigure)
    assert not missing.failed
    assert attempt("a", lambda: fail(ValueError("N"))) == NoFigure("a", "ValueError: N", failed=True)
    full = attempt("a", lambda: fail(torch.OutOfMemoryError("tried to allocate 3 GiB")))
    assert full == NoFigure("a", "OutOfMemoryError: tried to allocate 3 GiB", failed=True, is_memory=True)


def test_an_error_is_told_by_its_first_and_last_line() -> None:
    assert describe_error(ValueError()) == "ValueError"
    error = ValueError("at 3:7:\n  x = y\n\nout of registers\n")
    assert describe_error(error) == "ValueError: at 3:7: ... out of registers"
