"""Works in processes of their own: what fails costs itself alone, and the time limit is kept."""

import multiprocessing
import os
import time
from functools import partial

import pytest

from nystromformer.benchmark.isolated import Work, run_works

CODE = {
    "dies": "__import__('os')._exit(7)",
    "hangs": "__import__('time').sleep(600)",
    "raises": "exec('raise RuntimeError(\\'at 3:7:\\\\n  x = y\\\\n\\\\nout of registers\\\\n\\')')",
    "absent": "exec('from nystromformer.benchmark.isolated import LeftOut; raise LeftOut(\\'not here\\')')",
}
"""What processes of their own can import."""


def works(*titles: str) -> dict[str, Work]:
    """Each does what its title says."""
    return {title: partial(eval, CODE.get(title, "[{'process': __import__('os').getpid()}]")) for title in titles}


def test_what_fails_or_has_no_time_is_told_and_the_rest_goes_on() -> None:
    found = dict(run_works(works("raises", "absent", "works"), 0, time.monotonic() + 9))
    assert found == {
        "raises": {"failed": "RuntimeError: at 3:7: ... out of registers"},
        "absent": {"left_out": "not here"},
        "works": {"records": [{"process": os.getpid()}]},
    }
    assert dict(run_works(works("works"), 0, time.monotonic())) == {
        "works": {"left_out": "it did not end within the time limit"}
    }


@pytest.mark.slow
def test_what_dies_or_never_ends_costs_itself_alone() -> None:
    found = dict(run_works(works("first", "dies", "second", "hangs"), 2, time.monotonic() + 8))
    assert [[*outcome] for outcome in found.values()] == [["records"], ["left_out"], ["records"], ["left_out"]]
    assert len({found[name]["records"][0]["process"] for name in ("first", "second")} | {os.getpid()}) == 3
    assert not multiprocessing.active_children()
