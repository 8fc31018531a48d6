"""Items of the GPU benchmark: what fails costs itself alone, and the time limit is kept."""

import multiprocessing
import os
import time

import pytest
from gpu_items import FakeItem

from nystromformer.benchmark.gpu.budget import GRACE, SHARES, Budget
from nystromformer.benchmark.gpu.items import FAILED, LEFT_OUT, MEASURED, LeftOut, Problem, attempt
from nystromformer.benchmark.gpu.processes import run_here, run_in_processes
from nystromformer.benchmark.gpu.settings import SECTIONS, GpuBenchmark

SETTINGS = GpuBenchmark(dry_run=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refuses_nothing(item: object) -> None:
    return None


def test_a_section_ends_at_its_share_and_leaves_the_rest_to_those_behind() -> None:
    clock = Clock()
    budget = Budget(1.0, ["check", "training"], clock)
    share = 60 * SHARES["check"] / (SHARES["check"] + SHARES["training"])
    assert budget.refusal(FakeItem("a", seconds=share - 0.1)) is None
    reason = budget.refusal(FakeItem("a", seconds=share + 0.1))
    assert reason is not None
    assert reason.startswith("the time limit: of check's time ")
    assert budget.refusal(FakeItem("a", "training", seconds=59.9)) is None
    clock.now += share + 1
    assert budget.refusal(FakeItem("a")) is not None
    assert budget.refusal(FakeItem("a", "training", seconds=60 - share - 1.1)) is None
    clock.now = 1060 + GRACE - 2
    assert budget.refusal(FakeItem("a", "training")) is not None
    assert budget.until_stopped() == pytest.approx(2)
    clock.now += 5
    assert budget.until_stopped() == 0


def test_every_section_has_a_share_and_one_alone_has_all() -> None:
    assert set(SHARES) == {"compile", *SECTIONS}
    for name in SHARES:
        assert Budget(2.0, [name], Clock()).refusal(FakeItem("a", name, seconds=119.9)) is None


def test_what_fails_or_is_refused_is_told_and_the_rest_goes_on() -> None:
    def refusal(item: object) -> str | None:
        return "no time" if isinstance(item, FakeItem) and item.title == "late" else None

    items = [FakeItem(title) for title in ("raises", "absent", "late", "works")]
    outcomes = list(run_here(items, SETTINGS, refusal))
    assert [(o.title, o.status, o.reason) for o in outcomes] == [
        ("raises", FAILED, "RuntimeError: out of memory"),
        ("absent", LEFT_OUT, "not here"),
        ("late", LEFT_OUT, "no time"),
        ("works", MEASURED, ""),
    ]
    assert outcomes[3].rows == [f"works in {os.getpid()}"]


def test_a_process_that_dies_costs_its_item_alone() -> None:
    items = [FakeItem(title) for title in ("first", "dies", "raises", "last")]
    outcomes = list(run_in_processes(items, SETTINGS, refuses_nothing, lambda: 60.0, 1))
    assert [(o.title, o.status, o.reason) for o in outcomes] == [
        ("first", MEASURED, ""),
        ("dies", FAILED, "its process ended with status 7"),
        ("raises", FAILED, "RuntimeError: out of memory"),
        ("last", MEASURED, ""),
    ]
    first, last = (str(outcomes[index].rows[0]).split()[-1] for index in (0, 3))
    assert len({first, last, str(os.getpid())}) == 3
    assert not multiprocessing.active_children()


def test_what_still_runs_at_the_end_is_stopped() -> None:
    end = time.monotonic() + 25

    def until_stopped() -> float:
        return max(0.0, end - time.monotonic())

    outcomes = []
    for outcome in run_in_processes(
        [FakeItem(title) for title in ("works", "hangs", "waits")], SETTINGS, refuses_nothing, until_stopped, 1
    ):
        outcomes.append((outcome.title, outcome.status, outcome.reason))
        end = time.monotonic() + 1
    assert outcomes == [
        ("works", MEASURED, ""),
        ("hangs", FAILED, "stopped: the time was over"),
        ("waits", LEFT_OUT, "the time limit: it is over"),
    ]
    assert not multiprocessing.active_children()


def test_attempts_tell_failures_from_what_is_not_there() -> None:
    def fail(error: Exception) -> int:
        raise error

    assert attempt(lambda: 3, SETTINGS) == 3
    assert attempt(lambda: fail(LeftOut("quadratic")), SETTINGS) == Problem("quadratic", is_failure=False)
    missing = attempt(lambda: fail(RuntimeError("No available kernel. Aborting execution.")), SETTINGS)
    assert isinstance(missing, Problem)
    assert not missing.is_failure
    assert attempt(lambda: fail(ValueError("N")), SETTINGS) == Problem("ValueError: N", is_failure=True)
