"""What the libraries below Python are told before torch is imported: OpenMP, memory, the profiler; and the command's
line.
"""

import ctypes
import os
import shlex
import sys

OPENMP_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables that say what an OpenMP thread does while it waits for others."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""glibc's names in malloc.h."""
_MOST = 2**31 - 1
_GROW_BY = 64 << 20


def set_environment() -> None:
    """Set variables that torch, OpenMP and the profiler read when they are loaded; child processes inherit them."""
    if not any(name in os.environ for name in OPENMP_WAITING):
        # GNU OpenMP's threads spin at each barrier. Beside another busy process, the thread that they wait for has no
        # core meanwhile, and training takes several times as long.
        os.environ["OMP_WAIT_POLICY"] = "passive"
    # Huge pages for torch's large CPU tensors: without them a third of a CPU step's time goes into mapping fresh pages.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # PyTorch's profiler, by which benchmarks count memory, would print two lines each time.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def keep_freed_memory() -> None:
    """Have glibc keep freed memory of any size instead of returning it to the system.

    By default each tensor of more than 32 MiB is mapped anew and returned when it is freed, and the system clears every
    page again: up to half of the time of windowed attentions over long rows. It does nothing where the C library is
    another one, or where the environment sets glibc's malloc already.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_M_MMAP_THRESHOLD, _MOST), (_M_TRIM_THRESHOLD, _MOST), (_M_TOP_PAD, _GROW_BY)):
            mallopt(option, value)


def this_command() -> str:
    """The line that started this process' command, for a shell."""
    processes = os.environ.get("WORLD_SIZE", "1")
    launcher = ["python"] if processes == "1" else ["torchrun", "--standalone", "--nproc_per_node", processes]
    return shlex.join([*launcher, *sys.argv])
