"""Pieces of a measurement that fail in every way, for processes of their own."""

import os
import time
from collections.abc import Sequence
from typing import Any

from nystromformer.benchmark.pieces import LeftOut, Piece


def fake_piece(title: str, section: str = "check", seconds: float = 0.0) -> Piece:
    """Does what its title says."""
    return Piece(section, title, seconds, _do, (title,))


def _do(settings: object, title: str) -> Sequence[Any]:
    if title == "dies":
        os._exit(7)
    if title == "hangs":
        time.sleep(600)
    if title == "raises":
        raise RuntimeError("out of memory\nand more")
    if title == "absent":
        raise LeftOut("not here")
    return [f"{title} in {os.getpid()}"]
