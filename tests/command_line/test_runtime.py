"""What commands tell OpenMP and malloc: waiting threads leave their core, and freed memory stays with the process."""

import os
import platform
import subprocess
import sys

import pytest

from nystromformer.command_line.runtime import OPENMP_WAITING
from nystromformer.machine import machine_facts

PAGES = 16_384  # of 4 KiB
PROGRAM = f"""
import resource, sys
from nystromformer.command_line.runtime import keep_freed_memory
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


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "passive"),
        ({"OMP_WAIT_POLICY": "active"}, "active"),
        ({"GOMP_SPINCOUNT": "1000"}, None),
        ({"KMP_BLOCKTIME": "0"}, None),
    ],
)
def test_openmp_waits_passively_unless_the_environment_says_otherwise(
    environment: dict[str, str], expected: str | None
) -> None:
    """Set before torch is imported, when OpenMP reads it."""
    clean = {name: value for name, value in os.environ.items() if name not in OPENMP_WAITING}
    script = (
        "import os, sys, nystromformer.command_line.cli\n"
        "print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], env=clean | environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [str(expected), "False"]


def test_figures_say_how_openmp_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPENMP_WAITING:
        monkeypatch.delenv(name, raising=False)
    assert machine_facts()["openmp"] == "default"
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert machine_facts()["openmp"] == "OMP_WAIT_POLICY=passive"


def test_commands_start_without_what_they_may_not_need() -> None:
    """The compiler, Triton and what shards models: they take longer to import than torch itself."""
    program = (
        "import sys, nystromformer.tasks.pretraining.pretrain, nystromformer.tasks.finetuning.run\n"
        "sys.exit(' '.join({'torch._dynamo', 'triton', 'torch.distributed.tensor'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
