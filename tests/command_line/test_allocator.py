"""Freed memory stays with the process: the second tensor of a size faults no pages in."""

import os
import platform
import subprocess
import sys

import pytest

PAGES = 16_384  # of 4 KiB
PROGRAM = f"""
import resource, sys
from nystromformer.command_line.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for byte in (block := bytearray({PAGES} * 4096))[::4096]:
        pass
    block[::4096] = bytes([1]) * {PAGES}
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def second_faults(what: str, **environment: str) -> int:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, what], env=clean | environment, capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_freed_block_is_used_again() -> None:
    assert second_faults("leave") > 100  # fewer than pages where they are huge
    assert second_faults("keep") < 20
    # Whoever sets malloc by the environment is left alone.
    assert second_faults("keep", MALLOC_ARENA_MAX="2") > 100
