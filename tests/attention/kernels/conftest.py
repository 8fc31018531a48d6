"""Kernels run in Triton's interpreter where there is no GPU."""

import pytest
from interpreting import ON_GPU, correct_the_interpreter, quicken_the_interpreter

pytest.importorskip("triton", reason="triton is not installed")
if not ON_GPU:
    correct_the_interpreter()
    quicken_the_interpreter()


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's time goes by programs: split the work only where a test asks for it."""
    if not ON_GPU:
        monkeypatch.setattr("nystromformer.attention.kernels.plan.ENOUGH_PROGRAMS", 1)
