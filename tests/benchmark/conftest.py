"""Kernels run in Triton's interpreter where there is no GPU, which must be said before anything imports Triton."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest
from interpreting import ON_GPU, quicken_the_interpreter
from small import run_here

if not ON_GPU and find_spec("triton") is not None:
    quicken_the_interpreter()


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`run_benchmark(*words, status=0)`: what the command prints, of a mistake its message on one line."""

    def run(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        assert run_here(monkeypatch, "code/run_benchmark.py", *words) == status
        printed = capsys.readouterr()
        return " ".join(printed.err.split()) if status == 2 else printed.out

    return run
