"""Items of the GPU benchmark that fail in every way, for processes of their own."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nystromformer.benchmark.gpu.items import LeftOut
from nystromformer.benchmark.gpu.settings import GpuBenchmark


@dataclass(frozen=True)
class FakeItem:
    """Does what its name says."""

    title: str
    section: str = "check"
    seconds: float = 0.0

    def measure(self, settings: GpuBenchmark) -> Sequence[Any]:
        if self.title == "dies":
            os._exit(7)
        if self.title == "hangs":
            time.sleep(600)
        if self.title == "raises":
            raise RuntimeError("out of memory\nand more")
        if self.title == "absent":
            raise LeftOut("not here")
        return [f"{self.title} in {os.getpid()}"]
