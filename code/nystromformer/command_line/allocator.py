"""Memory that is freed stays with the process, for the next tensor of its size."""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""glibc's names in malloc.h."""
_MOST = 2**31 - 1
_GROW_BY = 64 << 20


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
