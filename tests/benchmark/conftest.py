"""Kernels run in Triton's interpreter where there is no GPU, which must be said before anything imports Triton."""

from importlib.util import find_spec

from interpreting import ON_GPU, quicken_the_interpreter

if not ON_GPU and find_spec("triton") is not None:
    quicken_the_interpreter()
